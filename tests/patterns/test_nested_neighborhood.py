"""LightX2V's nested neighbourhoods against the rule for pairs of blocks of published code."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, nested_neighborhood
from tests.oracle import assert_plan
from tests.patterns.on_grids import grids
from tests.strategies import block_sizes


def blocks_keep(i: int, j: int, a: Fraction, frames: int, coefficients, min_width) -> bool:
    """Block i of queries and block j of keys."""
    if j <= a:
        return True
    for m in range(frames):
        width = Fraction(min_width)
        if m < len(coefficients):
            width = max(width, Fraction(coefficients[m]) * a)
        for row, column in ((i, j), (j, i)):
            frame = row // a
            if (frame + m) * a <= column <= (frame + m + 1) * a:
                if -(m * a + width) <= row - column <= -(m * a - width):
                    return True
    return False


@settings(max_examples=40)
@given(
    grids(high=(5, 4, 6)),
    st.lists(st.sampled_from([1.0, 0.5, 0.25, 0.125]), max_size=4),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.integers(1, 9),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_nested_neighborhood_is_its_definition(
    grid, coefficients, min_width, block, queries, block_size
):
    coefficients = coefficients[: grid.t]
    plan = nested_neighborhood(
        grid,
        coefficients=coefficients,
        min_width=min_width,
        block=block,
        block_size=block_size,
        queries=queries,
    )
    start, video = (grid.text if grid.text_first else 0), grid.t * grid.h * grid.w
    a, count = Fraction(grid.h * grid.w, block), -(-video // block)
    on = [
        [blocks_keep(i, j, a, grid.t, coefficients, min_width) for j in range(count)]
        for i in range(count)
    ]
    rows = range(grid.seqlen) if queries == "all" else range(start, start + video)
    dense = torch.ones(len(rows), grid.seqlen, dtype=torch.bool)
    for at, q in enumerate(rows):
        for k in range(grid.seqlen):
            if 0 <= q - start < video and 0 <= k - start < video:
                dense[at, k] = on[(q - start) // block][(k - start) // block]
    assert_plan(plan, dense[None, None])


def test_blocks_on_the_edge_of_a_band_are_in_it():
    """20 tokens a frame in blocks of 3: bands end on whole blocks at sums of thirds."""
    grid, coefficients = Grid(4, 4, 5), [0.5, 1.0, 0.5]
    plan = nested_neighborhood(
        grid, coefficients=coefficients, min_width=0, block=3, block_size=(3, 3)
    )
    a, blocks = Fraction(20, 3), range(27)
    on = [[blocks_keep(i, j, a, 4, coefficients, 0) for j in blocks] for i in blocks]
    assert on[11][21]
    assert plan.to_dense()[0, 0, ::3, ::3].tolist() == on


def test_wan_720p_is_the_rule_for_all_its_blocks():
    """28.125 blocks a frame: every pair of 591 blocks is as published, and not symmetric."""
    grid = Grid.preset("wan2.1-720p")
    plan = nested_neighborhood(grid)
    a = 28.125
    i, j = torch.arange(591)[:, None].double(), torch.arange(591)[None].double()
    kept = j <= a
    for m, width in enumerate([a, 0.5 * a, max(0.056 * a, 1.0)] + [1.0] * 18):
        for x, y in ((i, j), (j, i)):
            n = torch.floor(x / a)
            near = (y >= (n + m) * a) & (y <= (n + m + 1) * a)
            kept = kept | near & (x - y + m * a + width >= 0) & (x - y + m * a - width <= 0)
    assert plan == mp.from_block_mask(kept, 75_600, 75_600)
    assert not torch.equal(kept, kept.T)


BAD = {
    "coefficients": (
        lambda: nested_neighborhood(Grid(2, 4, 4)),
        mp.PlanError,
        ("coefficients", "got 3", "at most 2"),
    ),
    "nan": (
        lambda: nested_neighborhood(Grid(2, 4, 4), coefficients=(float("nan"),)),
        mp.PlanError,
        ("min_width", "got nan"),
    ),
    "block": (
        lambda: nested_neighborhood(Grid(2, 4, 4), coefficients=(), block=0),
        mp.PlanError,
        ("block", "got 0"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
