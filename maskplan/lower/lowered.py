"""`LoweredPlan`: everything one engine needs of a plan, as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskplan.device.move import to_cpu_as_numbered
from maskplan.device.place import placed, require_values
from maskplan.device.status import raise_faults
from maskplan.geometry import Geometry
from maskplan.lower.packing import Packed, pack, register, unpack
from maskplan.lower.target import Target
from maskplan.lower.walk import Walk
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

if TYPE_CHECKING:
    from maskplan.lower.engine_lists import EngineLists
    from maskplan.lower.gathered import GatheredLists, Reading
    from maskplan.lower.token_tiles import TokenTiles


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
            PlanError: if there is no such one here, the device recorded a fault, or it comes from
                meta, which holds no values.
        """
        device = placed(device)
        if device == self.device:
            return self
        require_values(self.pattern_id, "LoweredPlan.to")
        lowered: LoweredPlan = moved(self, device)
        return lowered

    @property
    def form(self) -> str:
        """What a kernel reads keys by: "blocks", or gathered, by "tiles" or by "tokens".

        Raises:
            PlanError: on meta, which holds no values.
        """
        lists = self.gathered
        require_values(self.pattern_id, "LoweredPlan.form")
        if lists is None and self.reading is not None:
            lists = self.reading.lists(self.seqlen_q)
        return "blocks" if lists is None else lists.form

    def __repr__(self) -> str:
        form = "blocks" if self.device.type == "meta" else self.form
        form = "" if form == "blocks" else f"keys by {form}, "
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


@untransformed
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


def moved(value: Any, device: torch.device) -> Any:
    """`value`, a tensor or a dataclass with some, on a device."""
    if isinstance(value, Plan) and device.type == "cpu":
        return to_cpu_as_numbered(value)  # walks and tables go by its numbers
    if isinstance(value, (Tensor, Plan)):
        return value.to(device)
    if not hasattr(value, "__dataclass_fields__"):
        return value
    parts = {f.name: moved(getattr(value, f.name), device) for f in fields(value) if f.init}
    if device.type == "cpu" and parts.get("status") is not None:
        raise_faults(parts["status"], "lists'")
        parts["status"] = None  # exact from here on
    return replace(value, **parts)


register(LoweredPlan, "maskplan.LoweredPlan", restore)
register(Walk, "maskplan.lower.Walk")
