"""Our SM100 backward in the emulator over a grid of shapes and masks, by way of plans.

Each configuration is a line of JSON, written as it comes; what the file already holds is not run
again. The race detector is on: a race, a deadlock or any other fault is the line's error.

    python -m benchmarks.sm100_backward_grid build/sm100_backward.jsonl
    python -m benchmarks.sm100_backward_grid build/sm100_backward.jsonl --summary

A configuration is forward and backward of `attention`, so the backward is given the O and the LSE
of our own forward. One gate for both directions: the budget of `tests.kernels.backward.run.judge`
per (gradient, batch, head, tile), against float64. It needs the extra sm100; run it in the root of
a checkout.
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
from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.errors import KernelError
from maskplan.attention import sm100_backward
from tests.kernels.backward.run import Outcome, Problem, judge
from tests.kernels.backward.walks import gradients
from tests.kernels.forward import masks
from tests.oracle import plan_of_dense

EACH = 5  # shapes and masks of each kind
SEQLEN_Q = (1, 100, 128, 200, 300)
SEQLEN_K = (128, 1, 257, 100, 384, 200, 300)
MASKS = ("bits", "causal", "1", "0.5", "empty rows", "0.2", "skewed", "empty columns", "0")
BLOCKS = ((128, 128), (64, 64), (128, 64))  # of the plans, before they are lowered


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a backward is compiled for; `heads` over `kv_heads`, `subtile` Q tiles an entry."""

    direction: str
    head_dim: int
    dtype: str
    heads: int
    kv_heads: int
    packed: bool = False
    subtile: int = 1
    deterministic: bool = False
    spt: bool = False


KINDS = (
    Kind(direction="loop_q", head_dim=64, dtype="bfloat16", heads=1, kv_heads=1),
    Kind(direction="loop_q", head_dim=128, dtype="bfloat16", heads=2, kv_heads=2),
    Kind(direction="loop_q", head_dim=128, dtype="float16", heads=1, kv_heads=1, subtile=2),
    Kind(direction="loop_q", head_dim=64, dtype="bfloat16", heads=4, kv_heads=2),
    Kind(direction="loop_q", head_dim=128, dtype="bfloat16", heads=4, kv_heads=1, subtile=4),
    Kind(direction="loop_q", head_dim=64, dtype="float16", heads=8, kv_heads=1, packed=True),
    Kind(direction="loop_q", head_dim=128, dtype="bfloat16", heads=8, kv_heads=2, packed=True),
    Kind(direction="loop_q", head_dim=64, dtype="bfloat16", heads=2, kv_heads=2, subtile=2,
         deterministic=True, spt=True),
    Kind(direction="loop_q", head_dim=128, dtype="bfloat16", heads=1, kv_heads=1,
         deterministic=True),
    Kind(direction="loop_q", head_dim=64, dtype="float16", heads=8, kv_heads=1, packed=True,
         deterministic=True),
    Kind(direction="loop_k", head_dim=64, dtype="bfloat16", heads=1, kv_heads=1),
    Kind(direction="loop_k", head_dim=128, dtype="bfloat16", heads=2, kv_heads=2),
    Kind(direction="loop_k", head_dim=128, dtype="float16", heads=4, kv_heads=1),
    Kind(direction="loop_k", head_dim=64, dtype="float16", heads=4, kv_heads=2),
    Kind(direction="loop_k", head_dim=64, dtype="bfloat16", heads=8, kv_heads=1, packed=True),
    Kind(direction="loop_k", head_dim=128, dtype="bfloat16", heads=8, kv_heads=2, packed=True),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration; sizes in tokens."""

    kind: Kind
    seqlen_q: int
    seqlen_k: int
    mask: str
    plan_heads: int
    plan_batch: int
    batch: int
    block: tuple[int, int]
    seed: int


def cases() -> Iterator[Case]:
    """The grid: lists of coprime lengths go round at different speeds, so that pairs meet."""
    number = 0
    for kind in KINDS:
        own = (1, kind.kv_heads) if kind.packed else (1, kind.kv_heads, kind.heads)
        for _ in range(EACH):
            batch = 2 if kind.heads == 1 else 1
            yield Case(
                kind=kind,
                seqlen_q=SEQLEN_Q[(number + number // 5) % len(SEQLEN_Q)],
                seqlen_k=SEQLEN_K[number % len(SEQLEN_K)],
                mask=MASKS[(2 * number + number // 9) % len(MASKS)],
                plan_heads=own[number % len(own)],
                plan_batch=batch if number % 2 else 1,
                batch=batch,
                block=BLOCKS[number % len(BLOCKS)],
                seed=number,
            )
            number += 1


def mask_of(case: Case) -> NDArray[np.bool_]:
    """Bool [plan batch, plan heads, SQ, SK]."""
    shape = (case.plan_batch, case.plan_heads, case.seqlen_q, case.seqlen_k)
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
    if case.mask == "empty columns":
        mask = rng.random(shape) < 0.4
        mask[..., case.seqlen_k // 3 :] = False
        mask[..., 0] = True
        return mask
    return masks.blocks(shape, float(case.mask), seed=case.seed, tokens=64)


def lowered(case: Case, mask: NDArray[np.bool_]) -> mp.LoweredPlan:
    """The plan of the mask, for the case's kernels."""
    kind = case.kind
    patterns = torch.arange(case.plan_batch * case.plan_heads).view(case.plan_batch, -1)
    dense = torch.from_numpy(mask).flatten(0, 1)
    target = mp.target(
        "sm100", head_dim=kind.head_dim, group=kind.heads // kind.kv_heads, pack_gqa=kind.packed
    )
    plan = plan_of_dense(dense, patterns, case.block).canonical()
    return plan.lower(target, backward=kind.direction, subtile=kind.subtile, spt=kind.spt)


def gradients_of(case: Case, mask: NDArray[np.bool_]) -> tuple[Problem, Outcome]:
    """What the emulated kernels make of seeded noise, and what they should."""
    kind = case.kind
    noise = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, kind.dtype)
    sizes = ((case.seqlen_q, kind.heads), (case.seqlen_k, kind.kv_heads))
    q, k, v, do = (
        torch.randn(case.batch, *sizes[side], kind.head_dim, generator=noise).to(dtype)
        for side in (0, 1, 1, 0)
    )
    dlse = torch.randn(case.batch, kind.heads, case.seqlen_q, generator=noise)
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = mp.attention(
        *tensors, lowered(case, mask), backend="sm100-emulated", backward=kind.direction,
        deterministic=kind.deterministic, return_lse=True,
    )  # fmt: skip
    found = torch.autograd.grad((out, lse), tensors, (do, dlse))
    arrays = [x.detach().double().numpy() for x in (q, k, v, do, dlse)]
    scale = kind.head_dim**-0.5
    o = out.detach().double().numpy()
    wanted = gradients(*arrays, mask, scale, o=o)
    delta = np.einsum("bshd,bshd->bhs", o, arrays[3]) - arrays[4]
    given = Problem(q, k, v, do, dlse, mask, scale, wanted, delta)
    dq, dk, dv = (x.double().numpy() for x in found)
    return given, Outcome(dq, dk, dv, found, None)


def run(case: Case) -> dict[str, Any]:
    """Part of its budget that the worst tile used, and what was wrong, if anything."""
    ran: list[BackwardConfig] = []
    real = sm100_backward.backward_config

    def heard(*arguments: Any) -> BackwardConfig:
        ran.append(real(*arguments))
        return ran[-1]

    sm100_backward.backward_config = heard
    row: dict[str, Any] = {"used": None, "error": None}
    started = time.perf_counter()
    try:
        row["used"] = judge(*gradients_of(case, mask_of(case)))
    except (KernelError, AssertionError, mp.MaskplanError) as error:
        row["error"] = f"{type(error).__name__}: {error}"[:400]
    finally:
        sm100_backward.backward_config = real
    split = ran[0].head_split if ran else None
    return row | {"head_split": split, "seconds": round(time.perf_counter() - started, 2)}


def named(kind: Kind) -> str:
    words = [f"{kind.direction}, D {kind.head_dim}, {kind.dtype}, {kind.heads}/{kind.kv_heads}"]
    words += ["packed"] * kind.packed + [f"subtile {kind.subtile}"] * (kind.subtile > 1)
    words += ["deterministic"] * kind.deterministic + ["spt"] * kind.spt
    return ", ".join(words)


def summary(rows: Rows) -> None:
    """A markdown table by kind, and every failure."""
    print("| kind | configurations | worst error / budget | faults, races among them |")
    print("| --- | --- | --- | --- |")
    for kind in KINDS:
        mine = (row for row in rows.values() if Kind(**row["case"]["kind"]) == kind)
        print(f"| {named(kind)} | {worst(mine)} |")
    print(f"| all | {worst(rows.values())} |")
    print(f"\n{sum((row['head_split'] or 1) > 1 for row in rows.values())} with head_split")
    tail(rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--kind", type=int, help="one kind alone, by its number; for more processes"
    )
    arguments = options.parse_args()
    kinds = KINDS if arguments.kind is None else [KINDS[arguments.kind]]
    summary(fill(arguments, (case for case in cases() if case.kind in kinds), run))


if __name__ == "__main__":
    main()
