"""Facts of a call, which a backend is chosen by: what a plan is packed as, and plain values."""

from functools import lru_cache
from operator import index
from typing import Any

import torch
from torch import Tensor

from maskplan.attention.choice import metadata
from maskplan.attention.metadata import Metadata
from maskplan.geometry import Geometry
from maskplan.lower.lowered import LoweredPlan, as_it_is
from maskplan.lower.packing import Packed
from maskplan.plan import Plan


def operands(plan: Plan | LoweredPlan) -> Packed:
    """What the operator is given of a plan."""
    if isinstance(plan, LoweredPlan):
        return plan.packed
    bq, bk = plan.block_size
    parts = (plan.pattern_id, plan.row_ptr, plan.col, plan.tile_id, plan.tiles, plan.status)
    spec = _spec(
        plan.seqlen_q, plan.seqlen_k, bq, bk, plan.tile_id is not None, plan.status is not None
    )
    return Packed(tuple(part for part in parts if part is not None), spec)


@lru_cache(maxsize=1024)
def _spec_of(seqlen_q: int, seqlen_k: int, bq: int, bk: int, partial: bool, device: bool) -> str:
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=(bq, bk))
    ints = [torch.zeros(shape, dtype=torch.int32, device="cpu") for shape in ((1, 1), 0, 0, 1)]
    plan = Plan(
        geometry=geometry,
        pattern_id=ints[0],
        row_ptr=torch.zeros(geometry.num_q_blocks + 1, dtype=torch.int64, device="cpu"),
        col=ints[1],
        tile_id=ints[2] if partial else None,
        tiles=torch.zeros(0, bq, geometry.axes.words, dtype=torch.int32, device="cpu"),
        status=ints[3] if device else None,
    )
    return as_it_is(plan).packed.spec


def _spec(*of: int | bool) -> str:
    """The spec of a Plan as it is, from its plain values; a constant in a compiled region."""
    return _spec_of(*of)


_spec._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001 - as `decide`


def facts_of(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan | LoweredPlan, spec: str, layout: str,
    backward: str, deterministic: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments of `choice.metadata`."""
    grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    # A compiler that leaves these lengths open is asked for constants, which int() does not do.
    lengths = [index(x) for x in (q.shape[2], k.shape[2], q.shape[3], v.shape[3])]
    return (
        spec, q.dtype, q.device, *lengths, plan.heads, layout, backward, deterministic, grad,
    )  # fmt: skip


def asked_of(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan | LoweredPlan, *, backward: str,
    deterministic: bool = False,
) -> Metadata:  # fmt: skip
    """What backends are asked about a call, of q, k and v [B, S, H, F]."""
    spec = operands(plan).spec
    return metadata(*facts_of(q, k, v, plan, spec, "bshd", backward, deterministic))
