"""How many blocks a share is: the numbers of public reports, and what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.select import budget, tile_total


@pytest.mark.parametrize(
    ("shape", "tile", "of", "share", "expected"),
    [
        ((21, 45, 80), (4, 4, 4), "padded", 0.9, 144),
        ((21, 45, 80), (4, 4, 4), "real", 0.9, 119),
        ((21, 30, 52), (4, 4, 4), "padded", 0.9, 63),
        ((21, 30, 52), (4, 4, 4), "real", 0.9, 52),
        ((8, 32, 32), (4, 4, 4), "padded", 0.75, 32),
        ((21, 52, 30), (4, 8, 8), "padded", 0.0, 168),
    ],
)
def test_the_counts_of_public_reports(shape, tile, of, share, expected):
    assert budget(tile_total(shape, tile, of=of), sparsity=share, rounding="ceil") == expected


def test_a_share_is_the_decimal_that_was_typed():
    """In binary floats 1 - 0.9 is below 0.1, and 0.29 * 100 below 29."""
    assert budget(10, sparsity=0.9, rounding="floor") == 1
    assert budget(5, sparsity=0.8, rounding="ceil") == 1
    assert budget(100, density=0.29, rounding="floor") == 29
    assert budget(100, density=0.07, rounding="ceil") == 7


@given(st.integers(0, 2000), st.integers(0, 1000), st.integers(0, 3))
def test_rounding_and_the_least(total, thousandths, least):
    share = Fraction(thousandths, 1000)
    for rounding, exact in (("floor", share * total // 1), ("ceil", -(-share * total // 1))):
        count = budget(total, density=thousandths / 1000, rounding=rounding, at_least=least)
        assert count == min(max(exact, least), total)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: budget(10, rounding="ceil"), "exactly one"),
        (lambda: budget(10, density=0.5, sparsity=0.5, rounding="ceil"), "exactly one"),
        (lambda: budget(10, density=1.5, rounding="ceil"), "0 <= density <= 1"),
        (lambda: budget(10, density=float("nan"), rounding="ceil"), "share is out of range"),
        (lambda: budget(10, density=0.5, rounding="round"), "'floor' or 'ceil'"),
        (lambda: tile_total((1, 1, 1), (1, 1, 1), of="all"), "'padded' or 'real'"),
        (lambda: tile_total((1, 1, 1), (0, 1, 1), of="real"), "tile[t]"),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.PlanError) as caught:
        call()
    assert part in str(caught.value)
