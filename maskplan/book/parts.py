"""Parts of a book: a distinct pattern, a layer at a step, and the book of some ranges."""

import operator
from dataclasses import replace
from typing import Any

import torch

from maskplan.book.entries import AXES, check_range, place_of
from maskplan.book.plan_book import PlanBook
from maskplan.book.pool import gathered
from maskplan.geometry import integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance, shared_layout


def pattern_of(book: PlanBook, number: int) -> Plan:
    """See `PlanBook.pattern`."""
    number = integer(number, "number", high=book.num_patterns - 1)
    plan = gathered(book.plans, torch.tensor([[number]], dtype=torch.int32, device="cpu"))
    return replace(plan, provenance=book.pattern_provenance[number])


def layer_of(book: PlanBook, step: int, layer: int) -> Plan:
    """See `PlanBook.plan`."""
    ids = book.index[_place(book, "steps", step), _place(book, "layers", layer)]
    used = [book.pattern_provenance[number] for number in dict.fromkeys(ids.tolist())]
    grid, token_order = shared_layout(used)
    provenance = Provenance(
        builder="PlanBook.plan",
        parameters={"step": operator.index(step), "layer": operator.index(layer)},
        grid=grid,
        token_order=token_order,
    )
    return replace(gathered(book.plans, ids[None]), provenance=provenance)


def selection_of(
    book: PlanBook, ranges: tuple[range | None, range | None, range | None]
) -> PlanBook:
    """See `PlanBook.select`; `ranges` are its steps, layers and heads."""
    parts = []
    for name, numbers in zip(AXES, ranges, strict=True):
        chosen = getattr(book, name) if numbers is None else check_range(numbers, name)
        first, last = _place(book, name, chosen[0]), _place(book, name, chosen[-1])
        parts.append((chosen, slice(first, last + 1)))
    ids = book.index[tuple(place for _, place in parts)].reshape(1, -1)
    kept = list(dict.fromkeys(ids.flatten().tolist()))
    return replace(
        book,
        plans=gathered(book.plans, ids),
        steps=parts[0][0],
        layers=parts[1][0],
        heads=parts[2][0],
        pattern_provenance=tuple(book.pattern_provenance[number] for number in kept),
    )


def _place(book: PlanBook, axis: str, number: Any) -> int:
    """Where `number` stands in one of the ranges."""
    return place_of(getattr(book, axis), number, axis)
