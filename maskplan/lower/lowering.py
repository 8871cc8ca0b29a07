"""`lower`: plans made ready for an engine, and which way its backward goes."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import flag, integer
from maskplan.lower.direction import AUTO, BackwardChoice, choose_direction
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.options import check_known, directions
from maskplan.lower.target import TILE_ROWS, Target, target_of
from maskplan.lower.token_tiles import TokenTiles
from maskplan.lower.walk import forward_walk, loop_k_walk, loop_q_walk
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

_SUBTILES = (1, 2, 4)
# Engines of others, which take lists of their own; the rest are architectures for our kernels.
LIST_ENGINES = ("flex", "fa4")
_GATHERED = "tokens are gathered for queries, and LoopQ owns whole KV blocks"
_WALKS = "leave them out: walks of cpu, sm90 and sm100 have them"


def check_plan(plan: object) -> None:
    """Refuse to lower what is no Plan.

    Raises:
        PlanTypeError: if it is not.
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


@untransformed
def lower(
    plan: Plan,
    target: Target | str,
    *,
    backward: Collection[str] = ("loop_q",),
    subtile: int = 1,
    spt: bool = False,
    **shape: Any,
) -> LoweredPlan:
    """What one engine needs of `plan`, forward and backward.

    For "cpu", "sm90" and "sm100" these are merged walks. The plan is reblocked to the kernels' own
    tiles where it differs; on sm100 the forward walks two Q tiles at once. With PackGQA, tokens of
    a block larger than a pair of tiles keep one list: packed row r of the block reads the bits of
    token r // group. For "flex" and "fa4" they are padded lists, see `maskplan.lower.listed`.

    Args:
        plan: forward lists.
        target: from `maskplan.target`, or a name: of an architecture, for head_dim 128 and group
            1; "flex"; or "fa4".
        backward: which of "loop_q" and "loop_k" to make, or "auto" for the one that
            `backward_choice` gives, which differs between plans of one shape (a compiled region
            compiles for either); padded lists are for LoopQ.
        subtile: Q tiles in a coarse Q block of a LoopQ walk: 1, 2 or 4.
        spt: a LoopQ walk adds dQ in descending order of KV blocks.
        **shape: of "flex" and "fa4": head_dim, head_dim_v, heads, kv_heads and arch. With
            backward "auto" kv_heads, which the choice depends on.

    Raises:
        PlanTypeError: if `plan` is not a Plan, `target` neither a Target nor a name, `backward` no
            collection of names, or an option is none of the target's.
        PlanError: for an unknown direction or subtile, or heads that do not divide.
        UnsupportedError: where the target lacks a direction asked for.
    """
    check_plan(plan)
    backward = directions(backward)
    if isinstance(target, str) and target in LIST_ENGINES:
        from maskplan.lower.listed import SHAPE, listed

        check_known(shape, SHAPE, f"lower for {target}", "leave the rest out")
        if (subtile, spt) != (1, False):
            check_known({"subtile": subtile, "spt": spt}, SHAPE, f"lower for {target}", _WALKS)
        return listed(plan, target, backward=backward, **shape)
    wanted = f"the shape of heads for {' or '.join(LIST_ENGINES)} alone"
    known = ("kv_heads",) if backward == (AUTO,) else ()
    check_known(shape, known, "lower", "say it by maskplan.target(arch, head_dim=...)", wanted)
    target = target_of(target, "lower")
    spt = flag(spt, "spt")
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
    from maskplan.lower.gathered import reading_of

    for direction in () if backward == (AUTO,) else backward:
        target.rule(direction)
    if target.arch != "cpu" and plan.status is None:
        plan = plan.canonical()  # so that every reblocked form numbers its patterns alike
    tiled, pair = _tiled(plan, target)
    forward = forward_walk(tiled, parts=pair)
    if pair == 1:  # the same rows, so the same tensors
        forward = replace(forward, row_ptr=tiled.row_ptr, col=tiled.col)
    small = _backward_tiled(plan, tiled, target) if backward else tiled
    if backward == (AUTO,):
        backward = (_choice(small, target, shape.get("kv_heads")).direction,)
    loop_q = loop_q_walk(small, parts=subtile, spt=spt) if "loop_q" in backward else None
    turned = None if loop_q is None else loop_q.tiles
    return LoweredPlan(
        engine=target.arch,
        target=target,
        geometry=plan.geometry,
        pattern_id=tiled.pattern_id,
        plan=plan,
        forward=forward,
        loop_q=loop_q,
        loop_k=loop_k_walk(small, turned) if "loop_k" in backward else None,
        reading=reading_of(plan, target.rows_per_token) if target.arch == "cpu" else None,
    )


@untransformed
def backward_choice(
    plan: Plan | TokenTiles, target: Target | str = "sm100", *, kv_heads: int | None = None
) -> BackwardChoice:
    """Which backward "auto" takes for a plan, and why; see NOTE [LoopQ or LoopK].

    Args:
        plan: forward lists; token tiles, which are a plan where they list blocks, and have LoopK
            alone where they list tokens.
        target: as in `lower`; its group, and whether that is packed, matter.
        kv_heads: HK of the call; None for the plan's heads, over the group where they are those of
            queries.

    Raises:
        PlanTypeError: if `plan` is neither, or `target` neither a Target nor a name.
        PlanError: for an unknown target, or heads that do not fit.
    """
    target = target_of(target, "backward_choice")
    if isinstance(plan, TokenTiles):
        if plan.plan is None:
            return BackwardChoice(direction="loop_k", reason=_GATHERED)
        plan = plan.plan
    check_plan(plan)
    tiled, _ = _tiled(plan, target)
    return _choice(_backward_tiled(plan, tiled, target), target, kv_heads)


def _choice(small: Plan, target: Target, kv_heads: int | None) -> BackwardChoice:
    """The same of a plan in tiles of the backward."""
    if target.arch != "sm100" or "loop_k" in target.refused:
        return BackwardChoice(direction="loop_q", reason=f"{target} has no other")
    group = target.group // target.rows_per_token
    return choose_direction(small, kv_heads=kv_heads, group=group)


def _backward_tiled(plan: Plan, tiled: Plan, target: Target) -> Plan:
    """The plan in single Q tiles, also where one list serves several tiles of the forward."""
    if target.arch == "sm90":
        return _fitted(plan, target, "loop_q")
    if target.arch != "sm100":
        return tiled
    size = (TILE_ROWS // target.rows_per_token, target.rules["forward"].k_multiple)
    return tiled if tiled.block_size == size else plan.reblock(size)


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
