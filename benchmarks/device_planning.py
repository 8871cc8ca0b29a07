"""What planning costs on a GPU, beside reading the indices once: a table, and a JSON line a row.

Times are medians of interleaved runs by the clocks of `maskplan.bench`: "device" is the replay of a
CUDA graph with a cold L2, "host" what an eager call takes the host. The floor of top-k lists is
`indices.max()`, which reads them and does no more. Ratios come first; they are of one run. "Made"
is the memory that an eager call leaves allocated, "spare" what it takes beyond that while it runs,
in MiB.

    python benchmarks/device_planning.py [--json FILE] [--runs 15] [--only topk,masks,closed,tokens]
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import maskplan as mp
from maskplan.bench.clock import CudaClock, HostClock, Work, graphed, interleaved

VIDEO = ((131_072, 2_048, 16_384), (524_288, 8_192, 65_536))  # SK, SQ, top-k
LENGTHS = tuple(
    (keys, keys // 64, keys // 8) for keys in (32_768, 65_536, 131_072, 262_144, 524_288)
)
WAN = (40, 591, 75_600)  # heads, blocks of 128, tokens
TOKENS = 115_200
HOST_RUNS = 3  # of 100 calls


def times_of(works: dict[str, Work], runs: int) -> dict[str, tuple[float, float]]:
    """(device, host) milliseconds of each work."""
    for work in works.values():
        work()  # compiles
    device = interleaved({name: graphed(work) for name, work in works.items()}, CudaClock(),
                         runs=runs)  # fmt: skip
    host = interleaved(works, HostClock(), runs=HOST_RUNS)
    return {name: (device[name].median, host[name].median) for name in works}


def memory_of(work: Work) -> tuple[float, float]:
    """(made, spare): MiB that a call leaves allocated, and takes beyond that while it runs."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = work()
    made = torch.cuda.memory_allocated() - before
    spare = torch.cuda.max_memory_allocated() - before - made
    del result
    return made / 2**20, spare / 2**20


class Table:
    """Prints rows, and keeps them as JSON lines."""

    def __init__(self, path: Path | None, runs: int) -> None:
        self.path, self.runs = path, runs
        properties = torch.cuda.get_device_properties(0)
        self.machine = {"gpu": properties.name, "torch": torch.__version__}
        print(f"{properties.name}, torch {torch.__version__}, medians of {runs} runs, ms")
        print(f"{'ratio':>7} {'device':>8} {'host':>8} {'made':>7} {'spare':>7}")

    def rows(self, title: str, works: dict[str, Work], floor: str | None = None) -> None:
        """Time `works` and print them; ratios are to the one named `floor`."""
        print(title)
        times = times_of(works, self.runs)
        for name, (device, host) in times.items():
            made, spare = memory_of(works[name])
            row: dict[str, Any] = {
                **self.machine,
                "title": title,
                "name": name,
                "ratio": None if floor is None else device / times[floor][0],
                "device_ms": device,
                "host_ms": host,
                "made_mib": made,
                "spare_mib": spare,
            }
            ratio = "" if floor is None else f"{row['ratio']:.2f}"
            numbers = f"{device:8.4f} {host:8.4f} {made:7.1f} {spare:7.1f}"
            print(f"{ratio:>7} {numbers}  {name}", flush=True)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def lists_of_blocks(queries: int, keys: int, topk: int) -> torch.Tensor:
    """int32 [1, 1, SQ, topk]: whole blocks of 128 keys, in any order."""
    generator = torch.Generator("cuda").manual_seed(1)
    score = torch.rand(queries, keys // 128, device="cuda", generator=generator)
    blocks = score.argsort(-1)[:, : topk // 128].int()
    inner = torch.arange(128, dtype=torch.int32, device="cuda")
    return (blocks[..., None] * 128 + inner).reshape(1, 1, queries, topk)


def presence_lists(indices: torch.Tensor, keys: int) -> torch.Tensor:
    """Block lists the usual way: scatter into a presence matrix, and sort it."""
    blocks = keys // 128
    present = torch.zeros(*indices.shape[:3], blocks, dtype=torch.bool, device=indices.device)
    present.scatter_(3, (indices // 128).long(), value=True)
    return torch.argsort(present.to(torch.int32), dim=-1, descending=True, stable=True)


def topk(table: Table, keys: int, queries: int, count: int) -> None:
    """Lists of a token each, as packed rows of one query make a Q block."""
    aligned = lists_of_blocks(queries, keys, count)
    random = torch.randint(0, keys, aligned.shape, dtype=torch.int32, device="cuda")
    options = {"block_size": (1, 128)}

    def lists(indices: torch.Tensor, width: str | int = "dense", **more: Any) -> Work:
        return lambda: mp.from_topk(indices, keys, **options, **more).block_sparse_tensors(
            width=width
        )

    def lists_alone(indices: torch.Tensor, **more: Any) -> Work:
        return lambda: mp.BlockSparseTensors.from_topk(
            indices, keys, **options, width="dense", **more
        )

    works: dict[str, Work] = {
        "read once: indices.max()": aligned.max,
        "lists alone, whole blocks, promised, dense": lists_alone(aligned, whole=True),
        "lists alone, whole blocks, exact, dense": lists_alone(aligned),
        "lists alone, random tokens, exact, dense": lists_alone(random),
        "plan and lists, whole blocks, promised, lists as wide as they are": lists(
            aligned, count // 128, whole=True
        ),
        "plan and lists, whole blocks, promised, dense": lists(aligned, whole=True),
        "plan and lists, whole blocks, exact, dense": lists(aligned),
        "plan and lists, random tokens, exact, dense": lists(random),
        "plan, random tokens": lambda: mp.from_topk(random, keys, **options),
    }
    if keys < 200_000:
        works["presence matrix and argsort"] = lambda: presence_lists(aligned, keys)
    title = f"top-k [{queries}, {count}] of {keys} keys to forward lists"
    table.rows(title, works, floor="read once: indices.max()")
    plan = mp.from_topk(aligned, keys, **options, whole=True)
    table.rows(
        "its transpose",
        {
            "transpose": plan.transpose,
            "transpose, lists and dQ order": lambda: plan.transpose().block_sparse_tensors(
                width="dense", spt=False
            ),
        },
    )


def topk_lists(table: Table) -> None:
    """Forward lists, and the transpose, of two lengths."""
    for keys, queries, count in VIDEO:
        topk(table, keys, queries, count)
        torch.cuda.empty_cache()


def masks(table: Table) -> None:
    """Block masks of a model's heads, forward and backward lists."""
    heads, blocks, tokens = WAN
    generator = torch.Generator("cuda").manual_seed(2)
    mask = torch.rand(1, heads, blocks, blocks, device="cuda", generator=generator) < 0.1
    plan = mp.from_block_mask(mask, tokens, tokens)
    table.rows(
        f"block masks, {heads} x {blocks} x {blocks}, density 0.1",
        {
            "plan": lambda: mp.from_block_mask(mask, tokens, tokens),
            "transpose": plan.transpose,
            "cut to 128 x 64": lambda: plan.reblock((128, 64)),
            "cut and joined to 128 x 96": lambda: plan.reblock((128, 96)),
            "transpose, 128 slots and dQ order": lambda: plan.transpose().block_sparse_tensors(
                width=128, spt=False
            ),
            "transpose, dense lists and dQ order": lambda: plan.transpose().block_sparse_tensors(
                width="dense", spt=False
            ),
        },
    )


def closed_forms(table: Table) -> None:
    """Windows over the tokens of a video, one head."""
    grid = mp.video.Grid(30, 48, 80)
    options = {"left": 2000, "right": 2000, "device": "cuda"}
    window = mp.sliding_window(TOKENS, TOKENS, **options)
    table.rows(
        f"patterns over {TOKENS} tokens, one head",
        {
            "sliding window, plan": lambda: mp.sliding_window(TOKENS, TOKENS, **options),
            "sliding window, 128 slots": lambda: mp.sliding_window(
                TOKENS, TOKENS, **options
            ).block_sparse_tensors(width=128),
            "sliding window, dense lists": lambda: mp.sliding_window(
                TOKENS, TOKENS, **options
            ).block_sparse_tensors(width="dense"),
            "sliding window, cut to 128 x 64": lambda: window.reblock((128, 64)),
            "sliding window, cut and joined to 96 x 80": lambda: window.reblock((96, 80)),
            "sliding tile, plan": lambda: mp.video.sliding_tile(grid, device="cuda"),
            "sliding tile, dense lists": lambda: mp.video.sliding_tile(
                grid, device="cuda"
            ).block_sparse_tensors(width="dense"),
            "sliding tile, joined to 256 x 128": lambda: mp.video.sliding_tile(
                grid, device="cuda"
            ).reblock((256, 128)),
        },
    )


def token_tiles(table: Table) -> None:
    """The video scenario as token tiles, 128 heads packed into the rows of a tile, a query each."""
    for keys, queries, count in LENGTHS:
        whole = lists_of_blocks(queries, keys, count)
        shifted = torch.where(whole + 1 < keys, whole + 1, 0)  # no block is whole

        def tiles(indices: torch.Tensor, form: str, keys: int = keys) -> mp.TokenTiles:
            return mp.TokenTiles.from_topk(indices, keys, form=form, group=128, tile_rows=128)

        table.rows(
            f"token tiles of top-k [{queries}, {count}] of {keys} keys",
            {
                "read once: indices.max()": whole.max,
                "whole blocks, as blocks": partial(tiles, whole, "blocks"),
                "shifted by a token, as tokens": partial(tiles, shifted, "tokens"),
            },
            floor="read once: indices.max()",
        )
        for indices, form in ((whole, "blocks"), (shifted, "tokens")):
            print(f"{'':>25}  {form}: {tiles(indices, form).nbytes:,} bytes")
        del whole, shifted, indices
        torch.cuda.empty_cache()


PARTS: dict[str, Callable[[Table], None]] = {
    "topk": topk_lists,
    "masks": masks,
    "closed": closed_forms,
    "tokens": token_tiles,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="append a JSON line a row")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by name")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    table = Table(given.json, given.runs)
    for name in given.only.split(","):
        PARTS[name](table)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
