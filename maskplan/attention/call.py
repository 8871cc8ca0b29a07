"""One attention call, checked: what every backend is given."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.lower.lowered import LoweredPlan, as_it_is
from maskplan.plan import Plan, TransposedPlan

LAYOUTS = ("bshd", "bhsd")
BACKWARDS = ("auto", "loop_q", "loop_k")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionCall:
    """Inputs of one call, in one layout.

    Attributes:
        q: [B, SQ, HQ, D]; k: [B, SK, HK, D]; v: [B, SK, HK, DV]; one dtype, any strides.
        lowered: its lengths are SQ and SK, its batch 1 or B, its heads 1, HK or HQ.
        scale: factor of the scores.
        layout: how results lie in memory, "bshd" or "bhsd"; shapes are always [B, S, H, F].
        backward: "auto", "loop_q" or "loop_k".
        deterministic: whether equal calls must give equal bits.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lowered: LoweredPlan
    scale: float
    layout: str = "bshd"
    backward: str = "auto"
    deterministic: bool = False

    @property
    def plan(self) -> Plan:
        """The plan that was lowered."""
        return self.lowered.plan

    @property
    def batch(self) -> int:
        """B."""
        return int(self.q.shape[0])

    @property
    def heads(self) -> int:
        """HQ."""
        return int(self.q.shape[2])

    @property
    def group(self) -> int:
        """G = HQ / HK, query heads per KV head."""
        return self.heads // max(int(self.k.shape[2]), 1)

    @property
    def pattern(self) -> Tensor:
        """int32 [B, HQ]: the pattern of each query head."""
        pattern = self.plan.pattern_id
        if self.plan.heads != 1:
            pattern = pattern.repeat_interleave(self.heads // self.plan.heads, dim=1)
        return pattern.expand(self.batch, self.heads)

    @property
    def empty(self) -> bool:
        """Whether there is no query, or no key, at all."""
        return 0 in (self.batch, self.heads, self.plan.seqlen_q, self.plan.seqlen_k)

    def new(self, like: Tensor, features: int, dtype: torch.dtype) -> Tensor:
        """Room [B, S, H, features] for the tokens and heads of `like`, laid out as `layout`."""
        return room(like, features, dtype, self.layout)


def room(like: Tensor, features: int, dtype: torch.dtype, layout: str) -> Tensor:
    """Uninitialised [B, S, H, features] for the tokens and heads of `like`, dense in `layout`."""
    batch, length, heads, _ = like.shape
    if layout == "bshd":
        return like.new_empty((batch, length, heads, features), dtype=dtype)
    return like.new_empty((batch, heads, length, features), dtype=dtype).transpose(1, 2)


def _error(kind: type[PlanError] | type[PlanTypeError], **parts: Any) -> Exception:
    return kind(sentence(**parts))


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _error(
            PlanError,
            what=f"unknown {name}",
            where="attention",
            got=repr(value),
            wanted=" or ".join(repr(choice) for choice in choices),
            remedy=f"pass one of these as {name}",
        )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        known = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not known or tensor.ndim != 4 or not tensor.is_floating_point():
            raise _error(
                PlanTypeError,
                what="argument is not a dense float tensor of rank 4",
                where=name,
                got=_shape(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__,
                wanted=f"a dense float tensor [{', '.join(layout)}]",
                remedy="add the missing axes, or convert it",
            )
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise _error(
                PlanTypeError,
                what="dtypes differ",
                where=name,
                got=str(tensor.dtype).removeprefix("torch."),
                wanted=f"{str(q.dtype).removeprefix('torch.')}, as q",
                remedy=f"convert {name} or q",
            )
        if tensor.device != q.device:
            raise _error(
                PlanError,
                what="devices differ",
                where=name,
                got=str(tensor.device),
                wanted=f"{q.device}, as q",
                remedy=f"move {name} to {q.device}",
            )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Agreement of q, k and v, all [B, S, H, F]."""
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[0] != q.shape[0]:
            raise _error(
                PlanError,
                what="batch sizes differ",
                where=name,
                got=tensor.shape[0],
                wanted=f"{q.shape[0]}, as q",
                remedy=f"expand {name} to the batch of q",
            )
    if q.shape[3] != k.shape[3] or q.shape[3] == 0 or v.shape[3] == 0:
        raise _error(
            PlanError,
            what="head dims do not fit",
            where="q, k and v",
            got=f"{q.shape[3]}, {k.shape[3]} and {v.shape[3]}",
            wanted="q and k alike, none zero",
            remedy="pass q and k with one head dim; v may have its own",
        )
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise _error(
            PlanError,
            what="k and v differ in length or heads",
            where="v",
            got=f"{v.shape[1]} tokens, {v.shape[2]} heads",
            wanted=f"{k.shape[1]} tokens, {k.shape[2]} heads, as k",
            remedy="pass k and v of the same tokens",
        )
    if q.shape[2] % k.shape[2] if k.shape[2] else q.shape[2]:
        raise _error(
            PlanError,
            what="query heads do not divide among KV heads",
            where="q",
            got=f"HQ={q.shape[2]} with HK={k.shape[2]}",
            wanted="HQ a multiple of HK",
            remedy="repeat KV heads, or check which axis is heads",
        )


def _check_plan(q: Tensor, k: Tensor, plan: Plan | LoweredPlan, *, moves: bool) -> None:
    for axis, tensor, planned in (("q", q, plan.seqlen_q), ("k", k, plan.seqlen_k)):
        if tensor.shape[1] != planned:
            raise _error(
                PlanError,
                what="plan is for another length",
                where=axis,
                got=f"{tensor.shape[1]} tokens",
                wanted=f"{planned} tokens, as the plan's seqlen_{axis}",
                remedy="build the plan for this length, crop it, or check the layout",
            )
    heads = sorted({1, int(k.shape[2]), int(q.shape[2])})
    if plan.heads not in heads:
        raise _error(
            PlanError,
            what="plan has another number of heads",
            where="plan",
            got=plan.heads,
            wanted=f"one of {heads} (1, KV heads, query heads)",
            remedy="use plan.with_heads, or check which axis is heads",
        )
    if plan.batch not in (1, int(q.shape[0])):
        raise _error(
            PlanError,
            what="plan has another batch size",
            where="plan",
            got=plan.batch,
            wanted=f"1 or {q.shape[0]}",
            remedy="build the plan for this batch",
        )
    if plan.device != q.device and not (moves and isinstance(plan, Plan)):
        raise _error(
            PlanError,
            what="devices differ",
            where="plan",
            got=str(plan.device),
            wanted=f"{q.device}, as q",
            remedy=f"move q, k and v to {plan.device}",
        )


def plain_scale(scale: object, head_dim: int) -> float:
    """`scale` as a float, 1 / sqrt(D) for None.

    Raises:
        PlanTypeError: if it is no number, or a tensor that wants a gradient, which would get none.
    """
    if scale is None:
        return float(head_dim**-0.5)
    if isinstance(scale, float):
        return scale
    if not hasattr(scale, "__float__") or getattr(scale, "requires_grad", False):
        raise _error(
            PlanTypeError,
            what="scale is not a plain number",
            where="scale",
            got=f"{scale!r} of type {type(scale).__name__}",
            wanted="a float without a gradient of its own, or None for 1 / sqrt(D)",
            remedy="pass a float; multiply q by a scale that is learned",
        )
    return float(scale)


def check_plan_type(plan: object) -> Plan | LoweredPlan:
    """`plan` as a Plan or a LoweredPlan.

    Raises:
        PlanTypeError: if it is something else, a TransposedPlan above all.
    """
    if isinstance(plan, (LoweredPlan, Plan)):
        return plan
    transposed = isinstance(plan, TransposedPlan)
    raise _error(
        PlanTypeError,
        what="plan lists queries per key block" if transposed else "plan is of the wrong type",
        where="plan",
        got=type(plan).__name__,
        wanted="a Plan, which lists keys per query block",
        remedy="pass plan.transpose()" if transposed else "make one with a builder",
    )


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: object,
    *,
    layout: str,
    backward: str,
    moves: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Plan | LoweredPlan]:
    """q, k and v as [B, S, H, F], and the plan, once they are known to fit each other.

    Args:
        q: in `layout`, as k and v.
        k: likewise.
        v: likewise.
        plan: a Plan or a LoweredPlan.
        layout: "bshd" or "bhsd".
        backward: "auto", "loop_q" or "loop_k".
        moves: whether a Plan may be on another device, since it will be moved.

    Raises:
        PlanTypeError: on a wrong type, dtype or rank.
        PlanError: on shapes, lengths, heads or devices that do not fit each other.
    """
    _check_choice("layout", layout, LAYOUTS)
    _check_choice("backward", backward, BACKWARDS)
    known = check_plan_type(plan)
    _check_tensors(q, k, v, layout)
    if layout == "bhsd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    _check_shapes(q, k, v)
    _check_plan(q, k, known, moves=moves)
    return q, k, v, known


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: object,
    *,
    scale: float | None,
    layout: str,
    backward: str,
    deterministic: bool,
) -> AttentionCall:
    """The checked call of q, k, v in `layout` under `plan`; a Plan stays as it is.

    Raises:
        PlanTypeError: on a wrong type, dtype or rank.
        PlanError: on shapes, lengths, heads or devices that do not fit each other.
    """
    q, k, v, known = checked(q, k, v, plan, layout=layout, backward=backward)
    return AttentionCall(
        q=q,
        k=k,
        v=v,
        lowered=as_it_is(known) if isinstance(known, Plan) else known,
        scale=plain_scale(scale, int(q.shape[3])),
        layout=layout,
        backward=backward,
        deterministic=deterministic,
    )
