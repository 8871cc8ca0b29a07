"""The covering arrays meet every pair of values of two factors, and no case of them is idle."""

from dataclasses import asdict

import pytest

from tests.kernels.attention import backward_array, forward_array
from tests.kernels.covering import unmet

ARRAYS = [
    pytest.param(forward_array, 34, id="forward"),
    pytest.param(backward_array, 25, id="backward"),
]


@pytest.mark.parametrize(("array", "count"), ARRAYS)
def test_every_pair_of_values_is_met(array, count):
    cases = [asdict(case) for case in array.CASES]

    assert unmet(cases, array.FACTORS, forward_array.impossible) == set()
    assert len(cases) == count


@pytest.mark.parametrize(("array", "count"), ARRAYS)
def test_without_any_case_a_pair_is_missed(array, count):
    """And so a pair that is not met is noticed."""
    for left in array.CASES:
        others = [asdict(case) for case in array.CASES if case != left]
        assert unmet(others, array.FACTORS, forward_array.impossible), left
        assert len(others) == count - 1
