"""`LoweredPlan`: everything one engine needs of a plan, as tensors."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskplan.device.move import to_cpu_as_numbered
from maskplan.device.place import placed
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.lower.direction import AUTO, BackwardChoice, choose_direction
from maskplan.lower.options import check_known, directions
from maskplan.lower.packing import Packed, pack, register, unpack
from maskplan.lower.target import TILE_ROWS, Target, check_target
from maskplan.lower.target import target as make_target
from maskplan.lower.walk import Walk, forward_walk, loop_k_walk, loop_q_walk
from maskplan.plan import Plan

if TYPE_CHECKING:
    from maskplan.lower.engine_lists import EngineLists
    from maskplan.lower.gathered import GatheredLists, Reading
    from maskplan.lower.token_tiles import TokenTiles

_SUBTILES = (1, 2, 4)
# Engines of others, which take lists of their own; the rest are architectures for our kernels.
LIST_ENGINES = ("flex", "fa4")
_WALKS = "leave them out: walks of cpu, sm90 and sm100 have them"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoweredPlan:
    """A plan made ready for one engine, by `Plan.lower` or `TokenTiles.lower`: a pytree of tensors.

    `attention` runs on it. It may be a global, an attribute of a module or an argument of a
    compiled region, which does not compile again for another one of equal shapes.

    Attributes:
        engine: what walks it: "cpu", "sm90" or "sm100" (walks, for kernels of our own), "flex" or
            "fa4" (padded lists). "plan" stands for a plan as it is, which the CPU runs too, and
            "tokens" for token tiles.
        target: the kernels that walks are for, with their legal tiles.
        geometry: lengths and block size of the plan.
        pattern_id: int32 [batch, heads], the pattern numbers that walks use.
        plan: what was lowered; None for token tiles, which are no plan.
        forward: what the forward walks; None for padded lists.
        loop_q: what the LoopQ backward walks, if asked for.
        loop_k: what the LoopK backward walks, if asked for.
        lists: the padded lists of "flex" and "fa4", which say for which shape of heads.
        gathered: lists of key tokens of token tiles.
        reading: of "cpu", how keys are read, gathered or not: NOTE [Blocks or tokens].
        packed: the tensors and all the rest, as the operator takes them.
    """

    engine: str
    target: Target | None
    geometry: Geometry
    pattern_id: Tensor
    plan: Plan | None
    forward: Walk | None = None
    loop_q: Walk | None = None
    loop_k: Walk | None = None
    lists: "EngineLists | None" = None
    gathered: "GatheredLists | None" = None
    reading: "Reading | None" = None
    packed: Packed = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packed", pack(self))
        _leave_open(self)

    @property
    def backward(self) -> tuple[str, ...]:
        """Directions of the backward that it has walks for, of "loop_q" and "loop_k"."""
        walks = (("loop_q", self.loop_q), ("loop_k", self.loop_k))
        return tuple(name for name, walk in walks if walk is not None)

    @property
    def seqlen_q(self) -> int:
        """SQ, in tokens."""
        return self.geometry.seqlen_q

    @property
    def seqlen_k(self) -> int:
        """SK, in tokens."""
        return self.geometry.seqlen_k

    @property
    def batch(self) -> int:
        """1, or the batch size."""
        return int(self.pattern_id.shape[0])

    @property
    def heads(self) -> int:
        """1, the number of KV heads, or the number of query heads."""
        return int(self.pattern_id.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.pattern_id.device

    def to(self, device: torch.device | str) -> "LoweredPlan":
        """The same on another device; itself if it is there already.

        Of a device plan, going to the CPU waits for the device, as `Plan.cpu` does.

        Raises:
            PlanTypeError: if `device` is no device.
            PlanError: if there is no such one here, or the device recorded a fault.
        """
        device = placed(device)
        return self if device == self.device else moved(self, device)

    @property
    def form(self) -> str:
        """What a kernel reads keys by: "blocks", or gathered, by "tiles" or by "tokens"."""
        lists = self.gathered
        if lists is None and self.reading is not None:
            lists = self.reading.lists(self.seqlen_q)
        return "blocks" if lists is None else lists.form

    def __repr__(self) -> str:
        form = "" if self.form == "blocks" else f"keys by {self.form}, "
        return (
            f"LoweredPlan({self.engine}, {self.geometry}, batch={self.batch}, heads={self.heads}, "
            f"{form}{len(self.packed.tensors)} tensors on {self.device})"
        )


def _leave_open(lowered: LoweredPlan) -> None:
    """Tell the compiler that numbers of blocks and tiles, and widths of lists, are no constants.

    Another plan of the same lengths then runs in the same compiled region. (Where there is none or
    one of something, the compiler insists on a constant.)
    """
    for tensor in lowered.packed.tensors:
        if tensor is not lowered.pattern_id:
            # What torch._dynamo.maybe_mark_dynamic does, which would import the whole compiler.
            tensor._dynamo_weak_dynamic_indices = {3 if tensor.ndim == 4 else 0}  # type: ignore[attr-defined]  # noqa: SLF001


def as_it_is(plan: Plan) -> LoweredPlan:
    """`plan` with nothing made beside it: what the CPU runs when it is given a Plan."""
    return LoweredPlan(
        engine="plan",
        target=None,
        geometry=plan.geometry,
        pattern_id=plan.pattern_id,
        plan=plan,
    )


def of_token_tiles(tiles: "TokenTiles") -> LoweredPlan:
    """Token tiles in the form of tokens, as the CPU reads them."""
    from maskplan.lower.gathered import of_tiles

    pattern_id, lists = of_tiles(tiles)
    geometry = Geometry(
        seqlen_q=tiles.seqlen_q, seqlen_k=tiles.seqlen_k, block_size=(tiles.tile_tokens, 128)
    )
    return LoweredPlan(
        engine="tokens",
        target=None,
        geometry=geometry,
        pattern_id=pattern_id,
        plan=None,
        gathered=lists,
    )


def restore(tensors: Sequence[Any], spec: str) -> LoweredPlan:
    """The lowered plan of packed tensors and spec; see NOTE [Packed plans]."""
    lowered: LoweredPlan = unpack(tensors, spec)
    object.__setattr__(lowered, "packed", Packed(tuple(tensors), spec))
    return lowered


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
    if isinstance(target, str):
        target = make_target(target)
    check_target(target, "lower")
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


def backward_choice(
    plan: Plan, target: Target | str = "sm100", *, kv_heads: int | None = None
) -> BackwardChoice:
    """Which backward "auto" takes for a plan, and why; see NOTE [LoopQ or LoopK].

    Args:
        plan: forward lists.
        target: as in `lower`; its group, and whether that is packed, matter.
        kv_heads: HK of the call; None for the plan's heads, over the group where they are those of
            queries.

    Raises:
        PlanTypeError: if `plan` is not a Plan, or `target` neither a Target nor a name.
        PlanError: for an unknown target, or heads that do not fit.
    """
    check_plan(plan)
    if isinstance(target, str):
        target = make_target(target)
    check_target(target, "backward_choice")
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


def moved(value: Any, device: torch.device) -> Any:
    """`value`, a tensor or a dataclass with some, on a device."""
    if isinstance(value, Plan) and device.type == "cpu":
        return to_cpu_as_numbered(value)  # walks and tables go by its numbers
    if isinstance(value, (Tensor, Plan)):
        return value.to(device)
    if not hasattr(value, "__dataclass_fields__"):
        return value
    parts = {f.name: moved(getattr(value, f.name), device) for f in fields(value) if f.init}
    return replace(value, **parts)


register(LoweredPlan, "maskplan.LoweredPlan", restore)
register(Walk, "maskplan.lower.Walk")
