"""The sweeps of MagiAttention's IndexSparse tests, forward and backward, against float64.

    python -m benchmarks.sm100_gather_grid FILE [--runs emulated,cpu,full] [--sweep classic]

44 configurations of its pull request 334, with random lists for each tile, and 5 more whose queries
differ, which it has not: top-k lists, made `TokenTiles`, through `attention` in bfloat16, against a
token-level reference in float64. Three runs of each:

- `emulated`: `sm100-emulated`, forward and backward, of the first two Q tiles of a head;
- `cpu`: `cpu`, forward and backward, in full;
- `full`: `sm100-emulated`, the forward alone, in full: minutes each, so only if asked for.

One gate for all: O within twice the error of bfloat16 attention in torch plus 2^-8, by KV head and
128 packed rows; LSE within 1e-4; gradients within the budget of `benchmarks.gathered_gate`. FILE
keeps one line of JSON a configuration; those it holds are not run again. An error of the emulator
(a race, a fault, a deadlock) is a row too. It needs the extra sm100; run it in the root of a
checkout.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import maskplan as mp
from benchmarks.gathered_gate import Inputs, budget_used
from benchmarks.grid import Rows, fill, parser, tail
from kernels_sm100.errors import KernelError

HEADS = ((128, 1), (64, 1), (32, 1), (16, 1), (4, 4), (8, 2), (4, 1), (16, 16))
PARTIAL = ((256, 512, 192), (256, 512, 448), (128, 1024, 320), (512, 2048, 576), (1024, 4096, 960))
RUNS = ("emulated", "cpu", "full")
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
        run: "emulated", "cpu" or "full".
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
    run: str = "emulated"

    @property
    def queries(self) -> int:
        """Queries that are run: of the emulator the first two tiles, with the lists of the rest."""
        return min(self.seqlen_q, 2 * self.tokens) if self.run == "emulated" else self.seqlen_q

    @property
    def tokens(self) -> int:
        """Queries of a tile."""
        return self.tile_rows // self.group

    @property
    def backend(self) -> str:
        """Of the call."""
        return "cpu" if self.run == "cpu" else "sm100-emulated"

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
    """int32 [HK, queries, topk]: random, equal for the queries of a tile unless they differ."""
    rng = np.random.default_rng(case.seed)
    tokens = case.tokens
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
    return found[:, : case.queries]


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


def inputs(case: Case) -> Inputs:
    """Normal bfloat16 q, k, v and dO, float32 dLSE."""
    noise = torch.Generator().manual_seed(case.seed)
    queries = (1, case.queries, case.heads, case.head_dim)
    keys = (1, case.seqlen_k, case.kv_heads, case.head_dim)
    q, k, v, do = (
        torch.randn(x, generator=noise).bfloat16() for x in (queries, keys, keys, queries)
    )
    return Inputs(q, k, v, do, torch.randn(queries[:3], generator=noise).transpose(1, 2))


def reference(case: Case, given: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(O [queries, HQ, D], LSE [queries, HQ]) query by query over the keys it selects, in `dtype`.

    In bfloat16 it is torch's attention, and what the budget is made of.
    """
    lists = indices_of(case)
    group, scale = case.heads // case.kv_heads, case.head_dim**-0.5
    out = torch.empty(case.queries, case.heads, case.head_dim, dtype=torch.float64)
    lse = torch.full((case.queries, case.heads), torch.nan, dtype=torch.float64)
    q, k, v = (x.to(dtype) for x in (given.q, given.k, given.v))
    for query in range(case.queries):
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


def forward_used(case: Case, given: Inputs, out: Tensor, lse: Tensor) -> float:
    """Largest part of its budget that the error of O of any (KV head, packed tile) used.

    Raises:
        AssertionError: if O or LSE is not finite, or LSE off by more than 1e-4.
    """
    wanted, wanted_lse = reference(case, given, torch.float64)
    peer, _ = reference(case, given, torch.bfloat16)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(lse[0].T.double(), wanted_lse, rtol=0, atol=1e-4)
    group = case.heads // case.kv_heads
    shape = (case.queries, case.kv_heads, group, case.head_dim)
    ours = (out[0].double() - wanted).abs().view(shape).amax((2, 3))
    theirs = (peer - wanted).abs().view(shape).amax((2, 3))
    tokens = max(TILE // group, 1)
    used = 0.0
    for start in range(0, case.queries, tokens):
        tile = slice(start, start + tokens)
        budget = 2 * theirs[tile].amax(0) + FLOOR
        used = max(used, float((ours[tile].amax(0) / budget).max()))
    return used


def judged(case: Case) -> dict[str, float | None]:
    """Parts of their budgets that "forward" and "backward" used.

    Raises:
        AssertionError: for what is not finite, LSE that is off, or a gradient's norm.
        KernelError: for what the emulator finds.
    """
    given = inputs(case)
    leaves = [x.clone().requires_grad_(case.run != "full") for x in (given.q, given.k, given.v)]
    out, lse = mp.attention(*leaves, tiles_of(case), backend=case.backend, return_lse=True)
    found: dict[str, float | None] = {"backward": None}
    if case.run != "full":
        grads = torch.autograd.grad((out, lse), leaves, (given.do, given.dlse))
        found["backward"] = budget_used(given, out.detach(), indices_of(case), grads)
    return found | {"forward": forward_used(case, given, out.detach(), lse.detach())}


def run(case: Case) -> dict[str, Any]:
    """Part of its budget that the worst tile used, and what was wrong, if anything."""
    started = time.perf_counter()
    row: dict[str, Any] = {"used": None, "error": None, "form": tiles_of(case).form}
    try:
        row |= judged(case)
        row["used"] = max(part for part in (row["forward"], row["backward"]) if part is not None)
        if row["used"] > 1:
            row["error"] = "beyond its budget"
    except (KernelError, AssertionError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:400]
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def summary(rows: Rows) -> None:
    """A markdown table by run, sweep and form, and every failure."""
    print("| run | sweep | queries of a tile | form | number | forward | backward | faults |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in sorted({_kind(row) for row in rows.values()}):
        mine = [row for row in rows.values() if _kind(row) == kind]
        worst = [max((row.get(way) or 0.0 for row in mine), default=0.0)
                 for way in ("forward", "backward")]  # fmt: skip
        bad = sum(row["error"] is not None for row in mine)
        print(f"| {' | '.join(kind)} | {len(mine)} | {worst[0]:.2f} | {worst[1]:.2f} | {bad} |")
    tail(rows)


def _kind(row: dict[str, Any]) -> tuple[str, str, str, str]:
    case = row["case"]
    differ = "differ" if case["differ"] else "share a list"
    return case["run"], case["sweep"], differ, row["form"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", default="emulated,cpu", help=f"of {', '.join(RUNS)}")
    options.add_argument("--sweep", help="one of them alone")
    arguments = options.parse_args()
    wanted = (
        replace(case, run=name)
        for name in arguments.runs.split(",")
        for case in cases()
        if arguments.sweep in (None, case.sweep)
    )
    summary(fill(arguments, wanted, run))


if __name__ == "__main__":
    main()
