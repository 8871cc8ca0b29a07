"""Entries of a book as they are given: ranges, keys and plans, checked at the door."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.plan import Plan

AXES = ("steps", "layers", "heads")
MAX_ENTRIES = 2**24  # far past any model, and a bound for what a file claims


class PlanKeyError(PlanError, KeyError):
    """A (step, layer, head) that a book does not hold."""

    __str__ = BaseException.__str__  # KeyError would print the quoted form


PlanKeyError.__module__ = "maskplan"


def check_range(numbers: range, name: str) -> range:
    """`numbers`, checked to be a range of step 1 that numbers an axis of a book."""
    if not isinstance(numbers, range):
        raise PlanTypeError(
            sentence(
                what="argument is not a range",
                where=name,
                got=f"{numbers!r} of type {type(numbers).__name__}",
                wanted=f"a range of {name}",
                remedy=f"pass {name}=range(50), say",
            )
        )
    if numbers.step != 1 or not len(numbers) or numbers.start < 0 or numbers.stop > MAX_ENTRIES:
        raise PlanError(
            sentence(
                what="range cannot number a book",
                where=name,
                got=repr(numbers),
                wanted=f"at least one number, from 0 to {MAX_ENTRIES}, without gaps",
                remedy=f"pass {name}=range(first, last + 1)",
            )
        )
    return numbers


def place_of(numbers: range, number: Any, axis: str) -> int:
    """Where `number` stands in a range.

    Raises:
        PlanKeyError: if it does not.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__") or number not in numbers:
        noun = axis.removesuffix("s")
        raise PlanKeyError(
            sentence(
                what=f"no such {noun}",
                where="the book",
                got=repr(number),
                wanted=f"{numbers.start} <= {noun} < {numbers.stop}",
                remedy=f"ask for {axis} that the book holds, or make one that holds more",
            )
        )
    return numbers.index(operator.index(number))


def places_of(ranges: Sequence[range], key: object) -> tuple[int, ...]:
    """Where a (step, layer, head) stands in the ranges of a book.

    Raises:
        PlanKeyError: if it does not, or is no such key.
    """
    if not isinstance(key, tuple) or len(key) != len(AXES):
        raise PlanKeyError(
            sentence(
                what="key is not a place in a book",
                where="book[...]",
                got=repr(key),
                wanted="(step, layer, head)",
                remedy="use book.plan(step, layer) for all heads of a layer",
            )
        )
    return tuple(place_of(*one) for one in zip(ranges, key, AXES, strict=True))


def check_fit(plans: Plan, sizes: Sequence[int], provenances: int) -> None:
    """Check that `plans` has a head for each entry, and a provenance for each pattern."""
    facts = [
        ("plans", "batch", plans.batch, 1),
        ("plans", "heads", plans.heads, math.prod(sizes)),
        ("provenances", "number", provenances, plans.num_patterns),
    ]
    for what, name, got, wanted in facts:
        if got != wanted:
            raise PlanError(
                sentence(
                    what=f"{what} do not fit the book",
                    where=f"PlanBook, {name}",
                    got=got,
                    wanted=f"{wanted}, for {' * '.join(map(str, sizes))} entries",
                    remedy="make books with PlanBook.from_plans or from_layers",
                )
            )


def ranges_of(
    plans: Mapping[Any, Plan], given: Sequence[range | None], names: Sequence[str]
) -> tuple[Any, ...]:
    """The range of each axis: as given, or from the smallest key to the largest."""
    if not isinstance(plans, Mapping) or not plans:
        raise PlanError(
            sentence(
                what="no plans",
                where="plans",
                got=f"{type(plans).__name__} {plans!r:.40}",
                wanted=f"a mapping from ({', '.join(names)}) to plans, not empty",
                remedy="pass at least one plan",
            )
        )
    for key in plans:
        fits = isinstance(key, tuple) and len(key) == len(names)
        if not fits or not all(type(part) is int and part >= 0 for part in key):
            raise PlanTypeError(
                sentence(
                    what="key is not a place in a book",
                    where="plans",
                    got=repr(key),
                    wanted=f"{len(names)} whole numbers ({', '.join(names)})",
                    remedy="number steps, layers and heads from 0",
                )
            )
    found = []
    for axis, (numbers, name) in enumerate(zip(given, names, strict=True)):
        own = range(min(key[axis] for key in plans), max(key[axis] for key in plans) + 1)
        found.append(check_range(own if numbers is None else numbers, name))
    return tuple(found)


def choices_of(
    plans: Mapping[Any, Plan],
    ranges: Sequence[range],
    names: Sequence[str],
    default: Plan | None,
) -> tuple[Tensor, list[Plan]]:
    """(int64 [len of each range] of choices, the distinct plans)."""
    sizes = [len(numbers) for numbers in ranges]
    check_entries(sizes)
    choices: list[Plan] = []
    by_object: dict[int, int] = {}
    by_digest: dict[str, int] = {}
    index = torch.full(sizes, -1, dtype=torch.int64, device="cpu")
    flat = index.view(-1).numpy()
    for key, plan in plans.items():
        for part, numbers, name in zip(key, ranges, names, strict=True):
            if part not in numbers:
                _raise_outside(key, name, numbers)
        if id(plan) not in by_object:
            digest = check_plan(plan, f"plans[{', '.join(map(str, key))}]").digest
            if digest not in by_digest:
                by_digest[digest] = len(choices)
                choices.append(plan)
            by_object[id(plan)] = by_digest[digest]
        place = 0
        for part, numbers in zip(key, ranges, strict=True):
            place = place * len(numbers) + numbers.index(part)
        flat[place] = by_object[id(plan)]
    missing = (flat < 0).nonzero()[0]
    if len(missing) and default is None:
        first = torch.unravel_index(torch.tensor(int(missing[0]), device="cpu"), sizes)
        key = tuple(numbers[int(at)] for numbers, at in zip(ranges, first, strict=True))
        raise PlanError(
            sentence(
                what="entries are missing",
                where="plans",
                got=f"no plan for {len(missing)} of {len(flat)}, first ({', '.join(names)}) = "
                f"{key}",
                wanted="a plan for each",
                remedy="add them, pass narrower ranges, or name the rest with default=",
            )
        )
    if len(missing) and default is not None:
        flat[missing] = len(choices)
        choices.append(check_plan(default, "default"))
    return index, choices


def _raise_outside(key: object, name: str, numbers: range) -> None:
    raise PlanError(
        sentence(
            what="key is outside the ranges",
            where="plans",
            got=repr(key),
            wanted=f"{name} in [{numbers.start}, {numbers.stop})",
            remedy=f"pass the {name} that the model has",
        )
    )


def check_entries(sizes: Sequence[int]) -> None:
    """Check that a book of these sizes is no larger than books may be."""
    if math.prod(sizes) > MAX_ENTRIES:
        raise PlanError(
            sentence(
                what="book is too large",
                where="steps * layers * heads",
                got=" * ".join(map(str, sizes)),
                wanted=f"at most {MAX_ENTRIES} entries",
                remedy="keep one book for each part of the run",
            )
        )


def check_plan(plan: Plan, where: str) -> Plan:
    """`plan`, checked to be a Plan without a batch."""
    if not isinstance(plan, Plan):
        raise PlanTypeError(
            sentence(
                what="value is not a plan",
                where=where,
                got=type(plan).__name__,
                wanted="a Plan",
                remedy="make one with a builder",
            )
        )
    if plan.batch != 1:
        raise PlanError(
            sentence(
                what="plan has a batch",
                where=where,
                got=f"batch {plan.batch}",
                wanted="batch 1: a book says what a model does for every sample",
                remedy="keep one book for each sample, or plan without a batch",
            )
        )
    return plan


def raise_heads(plan: Plan, wanted: str, other: str) -> None:
    """Refuse a plan for its number of heads."""
    raise PlanError(
        sentence(
            what="plan has the wrong number of heads",
            where="plans",
            got=f"{plan.heads} heads in {plan!r}",
            wanted=wanted,
            remedy=f"use {other}",
        )
    )


def check_index(index: Tensor, choices: int) -> None:
    """Check that `index` is int [steps, layers, heads] into that many choices."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        got = str(index.dtype) if isinstance(index, Tensor) else type(index).__name__
        wanted = "int32 or int64 [steps, layers, heads]"
    elif index.ndim != 3 or 0 in index.shape:
        got, wanted = f"shape {list(index.shape)}", "[steps, layers, heads], none of them 0"
    else:
        check_entries(index.shape)
        bad = ((index < 0) | (index >= choices)).nonzero()
        if not len(bad):
            return
        place = tuple(bad[0].tolist())
        raise PlanError(
            sentence(
                what="unknown choice",
                where=f"index[{', '.join(map(str, place))}]",
                got=int(index[place]),
                wanted=f"0 <= choice < {choices}",
                remedy="number the plans of choices from 0",
            )
        )
    raise PlanTypeError(
        sentence(
            what="index is not a tensor of choices",
            where="index",
            got=got,
            wanted=wanted,
            remedy="pass the choice of each (step, layer, head)",
        )
    )
