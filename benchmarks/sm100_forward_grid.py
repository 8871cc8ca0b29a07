"""Our SM100 forward in the emulator over a grid of shapes and masks, by way of plans.

Each configuration is a line of JSON, written as it comes; what the file already holds is not run
again. The race detector is on: a race, a deadlock or any other fault is the line's error.

    python -m benchmarks.sm100_forward_grid build/sm100_forward.jsonl
    python -m benchmarks.sm100_forward_grid build/sm100_forward.jsonl --summary

The budget of a (batch, head, Q tile) is twice the error of torch's attention in bfloat16 on the
same inputs, plus 2^-8. It needs the extra sm100; run it in the root of a checkout.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import maskplan as mp
from benchmarks.grid import Rows, fill, parser, tail, worst
from kernels_sm100.errors import KernelError
from tests.kernels.forward import masks
from tests.kernels.forward.run import Outcome, Problem, judge
from tests.oracle import plan_of_dense

# Query heads, KV heads, whether a group is packed. 128 heads are met with few queries alone.
HEADS = (
    (1, 1, False), (4, 4, False), (8, 2, False), (8, 2, True), (16, 1, False), (16, 1, True),
    (128, 1, False), (128, 1, True),
)  # fmt: skip
HEAD_DIMS = (64, 128)
SEQLEN_Q = (1, 64, 100, 128, 256, 300, 512)
FEW_QUERIES = (1, 4, 8)
SEQLEN_K = (1, 100, 128, 384, 1000)
MASKS = ("0", "0.1", "0.3", "0.5", "0.7", "1", "bits", "causal", "skewed", "empty rows")
EACH = 5  # shapes and masks of each (heads, head dim)
BLOCKS = ((128, 128), (64, 64), (256, 128))  # of the plans, before they are lowered


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration; sizes in tokens."""

    heads: int
    kv_heads: int
    packed: bool
    head_dim: int
    seqlen_q: int
    seqlen_k: int
    mask: str
    plan_heads: int
    batch: int
    block: tuple[int, int]
    seed: int


def cases() -> Iterator[Case]:
    """The grid: lists of coprime lengths go round at different speeds, so that pairs meet."""
    number = 0
    for heads, kv_heads, packed in HEADS:
        for head_dim in HEAD_DIMS:
            lengths = FEW_QUERIES if heads == 128 else SEQLEN_Q
            own = (1, kv_heads) if packed else (1, kv_heads, heads)
            for _ in range(EACH):
                yield Case(
                    heads=heads,
                    kv_heads=kv_heads,
                    packed=packed,
                    head_dim=head_dim,
                    seqlen_q=lengths[number % len(lengths)],
                    seqlen_k=SEQLEN_K[(number + number // 7) % len(SEQLEN_K)],
                    mask=MASKS[(3 * number + number // 10) % len(MASKS)],
                    plan_heads=own[number % len(own)],
                    batch=2 if heads == 1 else 1,
                    block=BLOCKS[number % len(BLOCKS)],
                    seed=number,
                )
                number += 1


def mask_of(case: Case) -> NDArray[np.bool_]:
    """Bool [1, plan heads, SQ, SK]."""
    shape = (1, case.plan_heads, case.seqlen_q, case.seqlen_k)
    rng = np.random.default_rng(case.seed)
    if case.mask == "bits":
        return rng.random(shape) < 0.4
    if case.mask == "causal":
        return np.broadcast_to(masks.causal(*shape[2:]), shape).copy()
    if case.mask == "skewed":
        return np.broadcast_to(masks.skewed(*shape[2:], seed=case.seed), shape).copy()
    if case.mask == "empty rows":
        mask = rng.random(shape) < 0.4
        mask[..., : case.seqlen_q // 3, :] = False
        mask[..., -1, :] = False
        return mask
    return masks.blocks(shape, float(case.mask), seed=case.seed, tokens=64)


def run(case: Case) -> dict[str, Any]:
    """Part of its budget that the worst tile used, and what was wrong, if anything."""
    mask = mask_of(case)
    patterns = torch.arange(case.plan_heads).view(1, -1)
    plan = plan_of_dense(torch.from_numpy(mask[0]), patterns, case.block).canonical()
    target = mp.target(
        "sm100",
        head_dim=case.head_dim,
        group=case.heads // case.kv_heads,
        pack_gqa=case.packed,
    )
    noise = torch.Generator().manual_seed(case.seed)
    q, k, v = (
        torch.randn(case.batch, length, heads, case.head_dim, generator=noise).bfloat16()
        for length, heads in (
            (case.seqlen_q, case.heads),
            (case.seqlen_k, case.kv_heads),
            (case.seqlen_k, case.kv_heads),
        )
    )
    given = Problem(q, k, v, mask, case.head_dim**-0.5)
    started = time.perf_counter()
    row: dict[str, Any] = {"used": None, "error": None}
    try:
        out, lse = mp.attention(
            q, k, v, plan.lower(target, backward=()), backend="sm100-emulated", return_lse=True
        )
        row["used"] = judge(given, Outcome(out, lse, None))
    except (KernelError, AssertionError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:400]
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def summary(rows: Rows) -> None:
    """A markdown table by heads and packing, and every failure."""
    print("| heads | packed | configurations | worst error / budget | faults, races among them |")
    print("| --- | --- | --- | --- | --- |")
    for heads, kv_heads, packed in HEADS:
        kind = {"heads": heads, "kv_heads": kv_heads, "packed": packed}
        mine = (row for row in rows.values() if row["case"].items() >= kind.items())
        print(f"| {heads}/{kv_heads} | {packed} | {worst(mine)} |")
    print(f"| all | | {worst(rows.values())} |")
    tail(rows)


if __name__ == "__main__":
    summary(fill(parser(__doc__).parse_args(), cases(), run))
