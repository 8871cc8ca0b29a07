"""One attention call, checked: what every backend is given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.attention.arguments import (
    check_choice,
    check_plan,
    check_plan_type,
    check_shapes,
    check_tensors,
    plain_scale,
)
from maskplan.lower.lowered import LoweredPlan, as_it_is
from maskplan.plan import Plan

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
        lse: whether lse is wanted; a traced backend may give None where it is not.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lowered: LoweredPlan
    scale: float
    layout: str = "bshd"
    backward: str = "auto"
    deterministic: bool = False
    lse: bool = True

    @property
    def plan(self) -> Plan:
        """The plan that was lowered, of which there is none for token tiles."""
        plan = self.lowered.plan
        assert plan is not None, "backends look at `lowered.gathered` first"
        return plan

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
        pattern = self.lowered.pattern_id
        if self.lowered.heads != 1:
            pattern = pattern.repeat_interleave(self.heads // self.lowered.heads, dim=1)
        return pattern.expand(self.batch, self.heads)

    @property
    def empty(self) -> bool:
        """Whether there is no query, or no key, at all."""
        return 0 in (self.batch, self.heads, self.lowered.seqlen_q, self.lowered.seqlen_k)

    def new(self, like: Tensor, features: int, dtype: torch.dtype) -> Tensor:
        """Room [B, S, H, features] for the tokens and heads of `like`, laid out as `layout`."""
        return room(like, features, dtype, self.layout)


def room(like: Tensor, features: int, dtype: torch.dtype, layout: str) -> Tensor:
    """Uninitialised [B, S, H, features] for the tokens and heads of `like`, dense in `layout`."""
    batch, length, heads, _ = like.shape
    if layout == "bshd":
        return like.new_empty((batch, length, heads, features), dtype=dtype)
    return like.new_empty((batch, heads, length, features), dtype=dtype).transpose(1, 2)


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
    check_choice("layout", layout, LAYOUTS)
    check_choice("backward", backward, BACKWARDS)
    known = check_plan_type(plan)
    check_tensors(q, k, v, layout)
    if layout == "bhsd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    check_shapes(q, k, v)
    check_plan(q, k, known, moves=moves)
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
