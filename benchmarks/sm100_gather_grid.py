"""The sweeps of MagiAttention's IndexSparse tests through our SM100 forward, in the emulator.

    python -m benchmarks.sm100_gather_grid FILE

44 configurations of its pull request 334, with random lists for each tile, and 5 more whose queries
differ, which it has not: top-k lists, made `TokenTiles`, through `attention(backend=
"sm100-emulated")`, against a token-level reference in float64. One gate for all: twice the error of
bfloat16 attention in torch plus 2^-8. FILE keeps one line of JSON a configuration; those it holds
are not run again. An error of the emulator (a race, a fault, a deadlock) is a row too. It needs the
extra sm100; run it in the root of a checkout.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import maskplan as mp
from kernels_sm100.errors import KernelError

HEADS = ((128, 1), (64, 1), (32, 1), (16, 1), (4, 4), (8, 2), (4, 1), (16, 16))
PARTIAL = ((256, 512, 192), (256, 512, 448), (128, 1024, 320), (512, 2048, 576), (1024, 4096, 960))
FLOOR = 2.0**-8
TILE = 128  # packed rows that are judged together


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration; sizes in tokens.

    Attributes:
        sweep: "classic", "comprehensive" or "partial".
        heads: HQ.
        kv_heads: HK.
        seqlen_q: SQ.
        seqlen_k: SK.
        topk: keys of a query.
        head_dim: D and DV.
        block: 128 where keys come in whole aligned blocks of as many, else 1.
        packed: whether the heads of a group share a Q tile.
        differ: whether the queries of a tile have lists of their own, out of 1.5 * topk keys.
    """

    sweep: str
    heads: int
    kv_heads: int
    seqlen_q: int
    seqlen_k: int
    topk: int
    head_dim: int = 128
    block: int = 1
    packed: bool = True
    differ: bool = False

    @property
    def group(self) -> int:
        """Query heads in the rows of a tile."""
        return self.heads // self.kv_heads if self.packed else 1

    @property
    def tile_rows(self) -> int:
        """Packed rows of a tile: 256 where a head has more than 128."""
        return 256 if self.seqlen_q * self.group > TILE else TILE

    @property
    def seed(self) -> int:
        """Of lists and inputs."""
        return self.seqlen_q * 7 + self.seqlen_k * 3 + self.topk + self.heads + self.head_dim


def cases() -> Iterator[Case]:
    """The sweeps, the small ones first."""
    for heads, kv_heads in HEADS:
        shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "seqlen_q": 256}
        shape |= {"sweep": "comprehensive", "packed": heads > kv_heads}
        for head_dim in (64, 128):
            yield Case(**shape, seqlen_k=512, topk=128, head_dim=head_dim)
        if kv_heads == 1:
            yield Case(**shape, seqlen_k=4096, topk=256, block=128)
    for differ in (False, True):
        for seqlen_q, seqlen_k, topk in PARTIAL:
            yield Case(
                sweep="partial", heads=8, kv_heads=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k,
                topk=topk, differ=differ,
            )  # fmt: skip
    for seqlen_q in (128, 512, 1024):
        for seqlen_k in (512, 1024, 4096):
            for topk in (128, 256):
                yield Case(
                    sweep="classic", heads=128, kv_heads=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k,
                    topk=topk,
                )  # fmt: skip


def indices_of(case: Case) -> NDArray[np.int32]:
    """int32 [HK, SQ, topk]: random, equal for the queries of a tile unless they differ."""
    rng = np.random.default_rng(case.seed)
    tokens = case.tile_rows // case.group
    found = np.empty((case.kv_heads, case.seqlen_q, case.topk), dtype=np.int32)
    for lists in found:
        for start in range(0, case.seqlen_q, tokens):
            tile = lists[start : start + tokens]
            if case.block > 1:
                blocks = rng.permutation(case.seqlen_k // case.block)[: case.topk // case.block]
                tile[:] = (blocks[:, None] * case.block + np.arange(case.block)).reshape(-1)
            elif case.differ:
                pool = rng.permutation(case.seqlen_k)[: case.topk * 3 // 2]
                tile[:] = rng.permuted(np.tile(pool, (len(tile), 1)), axis=1)[:, : case.topk]
            else:
                tile[:] = rng.permutation(case.seqlen_k)[: case.topk]
    return found


def tiles_of(case: Case) -> mp.TokenTiles:
    """The tiles that the kernel walks."""
    return mp.TokenTiles.from_topk(
        torch.from_numpy(indices_of(case))[None],
        case.seqlen_k,
        policy="union" if case.differ else "uniform",
        tile_rows=case.tile_rows,
        group=case.group,
        kv_heads=case.kv_heads,
        max_coverage=1.0,
    )


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Normal bfloat16 q, k, v."""
    noise = torch.Generator().manual_seed(case.seed)
    shapes = (
        (1, case.seqlen_q, case.heads, case.head_dim),
        (1, case.seqlen_k, case.kv_heads, case.head_dim),
        (1, case.seqlen_k, case.kv_heads, case.head_dim),
    )
    q, k, v = (torch.randn(shape, generator=noise).bfloat16() for shape in shapes)
    return q, k, v


def reference(
    case: Case, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(O [SQ, HQ, D], LSE [SQ, HQ]) query by query over the keys it selects, computed in `dtype`.

    In bfloat16 it is torch's attention, and what the budget is made of.
    """
    lists = indices_of(case)
    group, scale = case.heads // case.kv_heads, case.head_dim**-0.5
    out = torch.empty(case.seqlen_q, case.heads, case.head_dim, dtype=torch.float64)
    lse = torch.full((case.seqlen_q, case.heads), torch.nan, dtype=torch.float64)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    for query in range(case.seqlen_q):
        for head in range(case.kv_heads):
            mine = slice(head * group, (head + 1) * group)
            rows = q[0, query, mine]
            listed = torch.from_numpy(lists[head, query]).long()
            keys, values = k[0, listed, head], v[0, listed, head]
            if dtype == torch.bfloat16:
                out[query, mine] = torch.nn.functional.scaled_dot_product_attention(
                    rows[None], keys[None], values[None], scale=scale
                )[0].double()
                continue
            scores = rows @ keys.T * scale
            lse[query, mine] = scores.logsumexp(1)
            out[query, mine] = scores.softmax(1) @ values
    return out, lse


def judged(case: Case) -> float:
    """Largest part of its budget that the error of any (KV head, tile of packed rows) used.

    Raises:
        AssertionError: if O or LSE is not finite, or LSE off by more than 1e-4.
        KernelError: for what the emulator finds.
    """
    q, k, v = inputs(case)
    with torch.no_grad():
        out, lse = mp.attention(q, k, v, tiles_of(case), backend="sm100-emulated", return_lse=True)
    wanted, wanted_lse = reference(case, q, k, v, torch.float64)
    peer, _ = reference(case, q, k, v, torch.bfloat16)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(lse[0].T.double(), wanted_lse, rtol=0, atol=1e-4)
    group = case.heads // case.kv_heads
    shape = (case.seqlen_q, case.kv_heads, group, case.head_dim)
    ours = (out[0].double() - wanted).abs().view(shape).amax((2, 3))
    theirs = (peer - wanted).abs().view(shape).amax((2, 3))
    tokens = max(TILE // group, 1)
    used = 0.0
    for start in range(0, case.seqlen_q, tokens):
        tile = slice(start, start + tokens)
        budget = 2 * theirs[tile].amax(0) + FLOOR
        used = max(used, float((ours[tile].amax(0) / budget).max()))
    return used


def run(case: Case) -> dict[str, Any]:
    """Part of its budget that the worst tile used, and what was wrong, if anything."""
    started = time.perf_counter()
    row: dict[str, Any] = {"used": None, "error": None, "form": tiles_of(case).form}
    try:
        row["used"] = judged(case)
        if row["used"] > 1:
            row["error"] = "beyond its budget"
    except (KernelError, AssertionError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:400]
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Rows that the file holds, by case."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
    return {json.dumps(row["case"]): row for row in rows}


def summary(rows: dict[str, dict[str, Any]]) -> None:
    """A markdown table by sweep and form, and every failure."""
    print("| sweep | queries of a tile | form | configurations | worst error / budget | faults |")
    print("| --- | --- | --- | --- | --- | --- |")
    kinds = sorted({_kind(row) for row in rows.values()})
    for kind in kinds:
        mine = [row for row in rows.values() if _kind(row) == kind]
        worst = max((row["used"] for row in mine if row["used"] is not None), default=0.0)
        bad = sum(row["error"] is not None for row in mine)
        print(f"| {' | '.join(kind)} | {len(mine)} | {worst:.2f} | {bad} |")
    print(f"\n{sum(row['seconds'] for row in rows.values()):.0f} seconds, compilations among them")
    for row in rows.values():
        if row["error"] is not None:
            print(row["case"], row["error"])


def _kind(row: dict[str, Any]) -> tuple[str, str, str]:
    case = row["case"]
    return case["sweep"], "differ" if case["differ"] else "share a list", row["form"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--summary", action="store_true", help="print the table, run nothing")
    arguments = parser.parse_args()
    rows = read(arguments.path)
    wanted = {json.dumps(asdict(case)): case for case in cases()}
    if not arguments.summary:
        arguments.path.parent.mkdir(parents=True, exist_ok=True)
        with arguments.path.open("a") as file:
            for name, case in wanted.items():
                if name not in rows:
                    rows[name] = {"case": asdict(case)} | run(case)
                    print(json.dumps(rows[name]), file=file, flush=True)
                    print(f"{name}: {rows[name]['used']} {rows[name]['error'] or ''}", flush=True)
    summary({name: row for name, row in rows.items() if name in wanted})


if __name__ == "__main__":
    main()
