"""`Metadata`: everything about a call but its values, which is what a backend is chosen by."""

from dataclasses import dataclass

import torch

from maskplan.lower.lowered import LoweredPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredFor:
    """The one kind of call that a lowered plan serves.

    Attributes:
        arch: architecture of the kernels; None for a Plan.
        heads: (HQ, HK) that lists are for, or None for any.
        dims: (D, DV) that lists are for, or None for any.
        packed: heads of a group that rows of a walk pack, or None where nothing is packed.
        backward: whether gradients can be computed.
        directions: of the backward, which it has walks for; None for any.
    """

    arch: str | None = None
    heads: tuple[int, int] | None = None
    dims: tuple[int, int] | None = None
    packed: int | None = None
    backward: bool = True
    directions: tuple[str, ...] | None = None

    @classmethod
    def of(cls, plan: LoweredPlan) -> "LoweredFor":
        """What `plan` is for."""
        lists, kernels, gathered = plan.lists, plan.target, plan.gathered
        if plan.plan is None and gathered is not None:
            return cls(packed=gathered.group if gathered.group > 1 else None)
        if lists is None and (kernels is None or kernels.arch == "cpu"):
            return cls(arch=None if kernels is None else "cpu")
        if lists is None:
            assert kernels is not None, "walks have a target"
            return cls(
                arch=kernels.arch,
                packed=kernels.group if kernels.pack_gqa else None,
                backward=plan.backward != (),
                directions=plan.backward,
            )
        return cls(
            arch=lists.arch,
            heads=(lists.heads, lists.kv_heads),
            dims=(lists.head_dim, lists.head_dim_v),
            backward=lists.backward is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What `supports` of a backend is asked about. Hashable, and made of plain values.

    The batch size is no part of it: no choice depends on it, and a compiled region may leave it
    open.

    Attributes:
        dtype: of q, k and v.
        device: likewise.
        heads: HQ.
        kv_heads: HK.
        head_dim: D.
        head_dim_v: DV.
        plan_heads: 1, HK or HQ.
        partial: whether the plan may hold partial blocks; False promises that all are full.
        layout: "bshd" or "bhsd".
        backward: "auto", "loop_q" or "loop_k".
        deterministic: whether equal calls must give equal bits.
        differentiable: whether gradients may be asked for.
        engine: of a `LoweredPlan`; "plan" for a Plan.
        lowered_for: of a `LoweredPlan`, what its lists are for.
    """

    dtype: torch.dtype
    device: torch.device
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    plan_heads: int
    partial: bool
    layout: str
    backward: str
    deterministic: bool
    differentiable: bool
    engine: str
    lowered_for: LoweredFor

    @property
    def group(self) -> int:
        """G = HQ / HK, query heads per KV head."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def unserved(self) -> str | None:
        """Why the lowered plan does not serve this call, or None if it does."""
        given = self.lowered_for
        here = ((self.heads, self.kv_heads), (self.head_dim, self.head_dim_v))
        if given.heads is not None and (given.heads, given.dims) != here:
            (hq, hk), (d, dv) = given.heads, given.dims or (0, 0)
            return f"its plan is lowered for HQ={hq}, HK={hk}, D={d}, DV={dv}"
        if given.packed is not None and given.packed != self.group:
            return (
                f"its plan is lowered for packed groups of {given.packed} heads, not {self.group}"
            )
        if given.packed is not None and self.plan_heads not in (1, self.kv_heads):
            return "its plan is lowered for packed groups, whose heads share one list"
        if self.differentiable and not given.backward:
            return "its plan is lowered without a backward, and gradients are wanted"
        if self.differentiable and given.directions is not None:
            return self._other_direction(given.directions)
        return None

    def _other_direction(self, given: tuple[str, ...]) -> str | None:
        """Why a plan that is lowered for these directions has not the one that is wanted."""
        wanted = "loop_q" if self.deterministic and self.backward == "auto" else self.backward
        if wanted in ("auto", *given):
            return None
        return (
            f"its plan is lowered for {' and '.join(given)}, and {wanted} is wanted: lower it with "
            f'backward="{wanted}"'
        )
