"""Covering arrays: lists of cases in which every pair of values of two factors is met."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(case: Mapping[str, Any]) -> set[Pair]:
    """The pairs that a case meets: its values of every two factors."""
    return {((a, case[a]), (b, case[b])) for a, b in combinations(case, 2)}


def unmet(
    cases: Iterable[Mapping[str, Any]],
    factors: Mapping[str, Sequence[Any]],
    impossible: Callable[[Mapping[str, Any]], bool],
) -> set[Pair]:
    """Pairs of values that no case meets, but could.

    Args:
        cases: factor -> value.
        factors: factor -> its values, in the order of `cases`.
        impossible: of two factors' values, whether no case can have both.
    """
    wanted = {
        ((a, x), (b, y))
        for a, b in combinations(factors, 2)
        for x, y in product(factors[a], factors[b])
        if not impossible({a: x, b: y})
    }
    met = set()
    for case in cases:
        assert list(case) == list(factors)
        assert all(value in factors[name] for name, value in case.items()), case
        met |= pairs(case)
    return wanted - met
