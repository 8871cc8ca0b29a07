"""The plan of a layer at a step, with what a call hides, made ready for the device and kept."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.attention.ahead import lowered_ahead
from maskplan.book import PlanBook, PlanKeyError
from maskplan.build.slices import boxes, plan_of_slices
from maskplan.diffusers.processors import Planned
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.provenance import Provenance, shared_layout
from maskplan.untransformed import untransformed

Source = Plan | PlanBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a run a plan is used: one layer of one forward call.

    Attributes:
        step: from 0.
        layer: from 0.
        text_lengths: text tokens of each sample that are no padding; empty where there are none.
        like: [1, 1, H, D] on the device, in the dtype and with the need for a gradient of q.
    """

    step: int
    layer: int
    text_lengths: tuple[int, ...]
    like: Tensor


class PlanSource:
    """Plans of a run, found by step and layer.

    Equal plans of a book are made ready once; the `kept` last used ones are held.
    """

    def __init__(
        self, plans: Source, order: TokenOrder, options: Mapping[str, Any], kept: int
    ) -> None:
        self.plans = plans
        self.order = order
        self.options = options
        self.kept = kept
        self._ready: OrderedDict[Hashable, Plan | LoweredPlan] = OrderedDict()
        self._moved: dict[torch.device, tuple[Tensor | None, Tensor | None]] = {}

    @untransformed
    def at(self, place: Place) -> Planned:
        """What a layer attends by.

        Raises:
            PlanKeyError: if the book does not hold that step.
        """
        like = place.like
        key = (self._name(place), place.text_lengths, like.device, like.dtype, like.requires_grad)
        if key in self._ready:
            self._ready.move_to_end(key)
        else:
            self._ready[key] = ready(self._visible(place), like, self.options)
            if len(self._ready) > self.kept:
                self._ready.popitem(last=False)
        slots, inverse = self._indices(like.device)
        return Planned(plan=self._ready[key], slots=slots, inverse=inverse)

    def _name(self, place: Place) -> Hashable:
        """Equal for equal plans: the patterns of a layer's heads."""
        if isinstance(self.plans, Plan):
            return None
        book = self.plans
        if place.step not in book.steps:
            raise PlanKeyError(
                sentence(
                    what="no such step",
                    where="the book",
                    got=place.step,
                    wanted=f"{book.steps.start} <= step < {book.steps.stop}",
                    remedy="make a book of every step that is not dense, or raise dense_steps",
                )
            )
        ids = book.index[book.steps.index(place.step), book.layers.index(place.layer)]
        return tuple(ids.tolist())

    def _visible(self, place: Place) -> Plan:
        """The layer's plan, less keys that hold no token or padded text."""
        whole = self.plans
        plan = whole if isinstance(whole, Plan) else whole.plan(place.step, place.layer)
        held = held_keys(self.order, place.text_lengths)
        return plan if held.all() else plan & keys_plan(plan, held)

    def _indices(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """(slots, inverse) of the video's tokens on `device`, None each for raster order."""
        if device not in self._moved:
            video = self.order.without_text()
            slots, inverse = video.slots, video.inverse
            if video.is_compact and bool((slots == torch.arange(len(slots), device="cpu")).all()):
                self._moved[device] = None, None
            else:  # slots that hold no token repeat token 0, which no plan lets anyone see there
                self._moved[device] = slots.clamp(min=0).to(device), inverse.to(device)
        return self._moved[device]


def ready(plan: Plan, like: Tensor, options: Mapping[str, Any]) -> Plan | LoweredPlan:
    """`plan` as attention takes it without further work, in compiled regions too.

    Args:
        plan: on the CPU.
        like: as in `Place`.
        options: of `attention`: backend and deterministic.
    """
    q = like.expand(1, plan.seqlen_q, -1, -1)
    return lowered_ahead(
        plan, q, q, q, backend=options["backend"], deterministic=options["deterministic"]
    )


def held_keys(order: TokenOrder, text_lengths: tuple[int, ...]) -> Tensor:
    """Slots whose token is there to be seen: bool [samples or 1, slots]."""
    slots = order.slots
    text = slots - order.grid.text_start  # number among the text tokens; negative for video
    held = [
        (slots >= 0) & (text < length) for length in dict.fromkeys(text_lengths or (len(slots),))
    ]
    if len(held) == 1:
        return held[0][None]
    by_length = dict(zip(dict.fromkeys(text_lengths), held, strict=True))
    return torch.stack([by_length[length] for length in text_lengths])


def keys_plan(like: Plan, held: Tensor) -> Plan:
    """The plan in which every query of a sample sees the keys held there, and no others."""
    patterns = []
    for row in held.numpy():
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
        starts, stops = edges[0::2], edges[1::2]
        none = np.zeros_like(starts)
        patterns.append(boxes(none, none + like.seqlen_q, starts, stops))
    samples = torch.arange(len(held), dtype=torch.int32, device="cpu")[:, None]
    provenance = Provenance(builder="keys_held", parameters={"samples": len(held)})
    return plan_of_slices(patterns, like.geometry, provenance, samples)


def order_of(plans: Source, order: TokenOrder | None) -> TokenOrder:
    """The order that tokens have in the plans: as given, or from how the plans were made.

    Raises:
        PlanTypeError: if `plans` is no plan or book, or `order` no TokenOrder.
        PlanError: if the plans do not say, or lie in another order than the one given.
    """
    if not isinstance(plans, (Plan, PlanBook)):
        raise _type_error("plans", plans, "a Plan or a PlanBook", "use one of maskplan's builders")
    if order is not None and not isinstance(order, TokenOrder):
        raise _type_error("order", order, "a TokenOrder", "make one with maskplan.video.TokenOrder")
    own = _planned_order(plans)
    if order is None and own is None:
        raise PlanError(
            sentence(
                what="plans do not say where their tokens lie",
                where="plans",
                got="no grid in their provenance",
                wanted="the grid of the video and an order of its tokens",
                remedy="pass order=maskplan.video.TokenOrder.raster(grid), or the order used",
            )
        )
    if order is not None and own is not None and (order.slots != own.slots).any():
        raise PlanError(
            sentence(
                what="plans lie in another order",
                where="order",
                got=f"tiles of {order.tile} on {order.grid.shape}",
                wanted=f"tiles of {own.tile} on {own.grid.shape}, as the plans were made",
                remedy="leave order out, or plan in that order",
            )
        )
    found = order or own
    assert found is not None, "one of them is there, as checked above"
    return found


def _planned_order(plans: Source) -> TokenOrder | None:
    """The order in the provenance of the plans, if all agree on one."""
    if isinstance(plans, Plan):
        provenance = plans.provenance
    else:
        grid, token_order = shared_layout(plans.pattern_provenance)
        provenance = Provenance(builder="book", grid=grid, token_order=token_order)
    return None if provenance is None else TokenOrder.from_provenance(provenance)


def check_plans(plans: Source, order: TokenOrder, heads: int, layers: range) -> None:
    """Check that `plans` fit the model's heads, the layers that are planned, and the order.

    Raises:
        PlanError: if they do not.
    """
    planned = plans.heads if isinstance(plans, Plan) else len(plans.heads)
    if planned not in {1, heads}:
        _refuse(
            what="plans have another number of heads",
            got=planned,
            wanted=f"1 or {heads}, as the model",
            remedy="plan each head, or use one plan for all",
        )
    lengths = (plans.geometry.seqlen_q, plans.geometry.seqlen_k)
    if lengths != (order.seqlen, order.seqlen):
        _refuse(
            what="plans do not fit the token order",
            got=f"{lengths[0]} x {lengths[1]} tokens",
            wanted=f"{order.seqlen} x {order.seqlen}",
            remedy="plan queries and keys of the grid's video and text",
        )
    if isinstance(plans, PlanBook):
        missing = [layer for layer in layers if layer not in plans.layers]
        if missing:
            _refuse(
                what="book has no plans for some layers",
                got=f"layers {plans.layers.start} to {plans.layers.stop - 1}",
                wanted=f"layers {missing[0]} to {missing[-1]} too",
                remedy="number the book's layers as the model's, or raise dense_layers",
            )


def _refuse(*, what: str, got: object, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where="plans", got=got, wanted=wanted, remedy=remedy))


def _type_error(where: str, value: object, wanted: str, remedy: str) -> PlanTypeError:
    return PlanTypeError(
        sentence(
            what="argument is of the wrong type",
            where=where,
            got=type(value).__name__,
            wanted=wanted,
            remedy=remedy,
        )
    )
