"""Making books: from plans by key, by layer, or from a few choices and an index."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from maskplan.book.entries import AXES, check_index, choices_of, raise_heads, ranges_of
from maskplan.book.plan_book import PlanBook
from maskplan.book.pool import pooled
from maskplan.geometry import integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance

_ONE = "1, as a plan of one (step, layer, head)"


def book_of_plans(
    plans: Mapping[tuple[int, int, int], Plan],
    given: tuple[range | None, range | None, range | None],
    default: Plan | None,
    provenance: Provenance | None,
) -> PlanBook:
    """See `PlanBook.from_plans`; `given` are its steps, layers and heads."""
    ranges = ranges_of(plans, given, AXES)
    index, choices = choices_of(plans, ranges, AXES, default)
    return book_of_choices(choices, index, ranges, provenance)


def book_of_layers(
    plans: Mapping[tuple[int, int], Plan],
    given: tuple[range | None, range | None],
    heads: int | None,
    default: Plan | None,
    provenance: Provenance | None,
) -> PlanBook:
    """See `PlanBook.from_layers`; `given` are its steps and layers."""
    ranges = ranges_of(plans, given, AXES[:2])
    index, choices = choices_of(plans, ranges, AXES[:2], default)
    count = max(choice.heads for choice in choices) if heads is None else heads
    count = integer(count, "heads", low=1)
    for choice in choices:
        if choice.heads not in (1, count):
            raise_heads(choice, f"1 or {count}", "plan.with_heads")
    pool, ids = pooled(choices)
    by_choice = torch.stack([own.expand(count) for own in ids])
    return _book(pool, by_choice[index], (*ranges, range(count)), choices, provenance)


def book_of_choices(
    choices: Sequence[Plan],
    index: Tensor,
    ranges: tuple[range, range, range] | None,
    provenance: Provenance | None,
) -> PlanBook:
    """See `PlanBook.from_choices`."""
    check_index(index, len(choices))
    if ranges is None:
        ranges = (range(index.shape[0]), range(index.shape[1]), range(index.shape[2]))
    pool, ids = pooled(choices)
    for choice in choices:
        if choice.heads != 1:
            raise_heads(choice, _ONE, "PlanBook.from_layers")
    return _book(pool, torch.cat(ids)[index.long()], ranges, choices, provenance)


def _book(
    pool: Plan,
    pattern_id: Tensor,
    ranges: tuple[range, range, range],
    choices: Sequence[Plan],
    provenance: Provenance | None,
) -> PlanBook:
    """The book whose entries use these patterns of the pool."""
    flat = pattern_id.reshape(1, -1).to(torch.int32)
    plans = replace(pool, pattern_id=flat).canonical()
    made: dict[int, Provenance | None] = {}
    for number, origin in zip(plans.pattern_id[0].tolist(), _origins(flat, choices), strict=True):
        if made.get(number) is None:
            made[number] = origin
    return PlanBook(
        plans=plans,
        steps=ranges[0],
        layers=ranges[1],
        heads=ranges[2],
        pattern_provenance=tuple(made[number] for number in range(plans.num_patterns)),
        provenance=provenance,
    )


def _origins(flat: Tensor, choices: Sequence[Plan]) -> list[Provenance | None]:
    """For each entry, the provenance of the choice that its pattern came from."""
    origins: list[Provenance | None] = []
    for plan in choices:
        origins += [plan.provenance] * plan.num_patterns
    return [origins[number] for number in flat[0].tolist()]
