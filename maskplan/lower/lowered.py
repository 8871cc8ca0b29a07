"""`LoweredPlan`: everything one backend needs of a plan, as tensors."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.lower.target import TILE_ROWS, Target, check_target
from maskplan.lower.target import target as make_target
from maskplan.lower.walk import Walk, forward_walk, loop_q_walk
from maskplan.plan import Plan

_SUBTILES = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoweredPlan:
    """A plan made ready for one target. Made by `Plan.lower`; a pytree of tensors.

    Attributes:
        target: the kernels it is for.
        geometry: lengths and block size of the plan.
        pattern_id: int32 [batch, heads], as in the plan.
        forward: what the forward walks.
        loop_q: what the LoopQ backward walks, if asked for.
        loop_k: what the LoopK backward walks, if asked for.
    """

    target: Target
    geometry: Geometry
    pattern_id: Tensor
    forward: Walk
    loop_q: Walk | None
    loop_k: Walk | None

    @property
    def batch(self) -> int:
        """1, or the batch size."""
        return int(self.pattern_id.shape[0])

    @property
    def heads(self) -> int:
        """1, the number of KV heads, or the number of query heads."""
        return int(self.pattern_id.shape[1])


def lower(
    plan: Plan,
    target: Target | str,
    *,
    backward: Collection[str] = ("loop_q",),
    subtile: int = 1,
    spt: bool = False,
) -> LoweredPlan:
    """Merged walks of `plan` for a target, forward and backward.

    The plan is reblocked to the kernels' own tiles where it differs; on sm100 the forward walks two
    Q tiles at once. With PackGQA, tokens of a block larger than a pair of tiles keep one list:
    packed row r of the block reads the bits of token r // group.

    Args:
        plan: forward lists.
        target: from `maskplan.target`, or an architecture's name for head_dim 128, group 1.
        backward: which of "loop_q" and "loop_k" to make.
        subtile: Q tiles in a coarse Q block of LoopQ: 1, 2 or 4.
        spt: LoopQ adds dQ in descending order of KV blocks.

    Raises:
        PlanTypeError: if `plan` is not a Plan, or `target` neither a Target nor a name.
        PlanError: for an unknown direction or subtile.
        UnsupportedError: where the target lacks a direction asked for.
    """
    if not isinstance(plan, Plan):
        raise PlanTypeError(
            sentence(
                what="cannot lower this",
                where="lower",
                got=type(plan).__name__,
                wanted="a Plan",
                remedy="transpose a TransposedPlan back first",
            )
        )
    if isinstance(target, str):
        target = make_target(target)
    check_target(target, "lower")
    if isinstance(backward, str):
        backward = (backward,)
    if integer(subtile, "subtile") not in _SUBTILES:
        raise PlanError(
            sentence(
                what="subtile not available",
                where="lower",
                got=subtile,
                wanted=f"one of {_SUBTILES}",
                remedy="choose how many Q tiles a coarse Q block holds",
            )
        )
    for direction in backward:
        target.rule(direction)
    if target.arch != "cpu":
        plan = plan.canonical()  # so that every reblocked form numbers its patterns alike
    tiled, pair = _tiled(plan, target)
    streamed = _fitted(plan, target, "loop_q") if target.arch == "sm90" else tiled
    return LoweredPlan(
        target=target,
        geometry=plan.geometry,
        pattern_id=tiled.pattern_id,
        forward=forward_walk(tiled, parts=pair),
        loop_q=loop_q_walk(streamed, parts=subtile, spt=spt) if "loop_q" in backward else None,
        loop_k=forward_walk(tiled) if "loop_k" in backward else None,
    )


def _fitted(plan: Plan, target: Target, direction: str) -> Plan:
    """The plan in legal blocks of a direction: as it is where it fits."""
    fits = target.rule(direction).allows(
        plan.block_size[0] * target.rows_per_token, plan.block_size[1]
    )
    return plan if fits else plan.reblock(target.fit(plan.block_size, direction))


def _tiled(plan: Plan, target: Target) -> tuple[Plan, int]:
    """(plan in blocks of one Q tile by one KV tile, Q tiles of a forward CTA)."""
    if target.arch == "cpu":
        return plan, 1
    if target.arch != "sm100":
        return _fitted(plan, target, "forward"), 1
    per_token = target.rows_per_token
    pair = 2 if target.head_dim <= 192 and plan.seqlen_q * per_token > TILE_ROWS else 1
    tokens = TILE_ROWS // per_token
    keys = target.rules["forward"].k_multiple
    shared = target.pack_gqa and plan.block_size[0] % (pair * tokens) == 0
    if shared and plan.block_size[0] > pair * tokens:
        # One list serves several CTAs; each finds its rows of the bits by its place in the block.
        return (plan if plan.block_size[1] == keys else plan.reblock((plan.block_size[0], keys))), 1
    size = (tokens, keys)
    return (plan if plan.block_size == size else plan.reblock(size)), pair


def _flatten(lowered: LoweredPlan | Walk) -> tuple[list[Any], tuple[type, dict[str, Any]]]:
    values = {field.name: getattr(lowered, field.name) for field in fields(lowered)}
    is_leaf = {n: v is None or isinstance(v, (Tensor, Walk)) for n, v in values.items()}
    static = {name: value for name, value in values.items() if not is_leaf[name]}
    return [value for name, value in values.items() if is_leaf[name]], (type(lowered), static)


def _unflatten(leaves: Any, context: tuple[type, dict[str, Any]]) -> Any:
    kind, static = context
    names = [field.name for field in fields(kind) if field.name not in static]
    return kind(**static, **dict(zip(names, leaves, strict=True)))


for _kind in (LoweredPlan, Walk):
    pytree.register_pytree_node(_kind, _flatten, _unflatten)
