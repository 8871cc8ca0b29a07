"""Neighbourhood attention against its definition, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder, neighborhood, sliding_tile
from tests.oracle import assert_plan
from tests.patterns.on_grids import coordinates, grids, video_slots
from tests.patterns.test_token_order import tile_slots
from tests.strategies import block_sizes


def axis_keeps(q: int, k: int, length: int, kernel: int, stride: int, dilation: int, causal: bool):
    """NATTEN's rule on one axis, in the coordinates of a dilation group."""
    if q % dilation != k % dilation:
        return False
    group = len(range(q % dilation, length, dilation))
    x, y = q // dilation, k // dilation
    if causal:
        leader = min((x // stride) * stride + stride - 1, group - 1)
        return y <= x and leader - y < kernel
    leader = min((x // stride) * stride + stride // 2, group - 1)
    right = kernel // 2 + (kernel % 2 - 1)
    centre = min(max(leader, kernel // 2), group - 1 - right)
    return centre - kernel // 2 <= y <= centre + right


def tokens_keep(grid: Grid, axes, q: int, k: int) -> bool:
    if q < 0 or k < 0:
        return False
    at_q, at_k = coordinates(grid, q), coordinates(grid, k)
    if at_q is None or at_k is None:
        return True
    return all(
        axis_keeps(a, b, length, *axis)
        for a, b, length, axis in zip(at_q, at_k, grid.shape, axes, strict=True)
    )


@st.composite
def neighborhoods(draw):
    """(grid, per axis (kernel, stride, dilation, causal)) with every legal value."""
    grid = draw(grids(high=(4, 5, 7)))
    axes = []
    for length in grid.shape:
        dilation = draw(st.integers(1, length))
        kernel = draw(st.integers(1, length // dilation))
        axes.append((kernel, draw(st.integers(1, kernel)), dilation, draw(st.booleans())))
    return grid, axes


@settings(max_examples=40)
@given(
    neighborhoods(),
    st.one_of(st.none(), st.tuples(*[st.integers(1, 4)] * 3)),
    st.booleans(),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_neighborhood_is_its_definition(case, tile, pad, queries, block_size):
    grid, axes = case
    kernel, stride, dilation, causal = zip(*axes, strict=True)
    plan = neighborhood(
        grid,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        causal=causal,
        tile=tile,
        pad=pad,
        block_size=block_size,
        queries=queries,
    )
    slots = list(range(grid.seqlen))
    if tile is not None:
        slots = tile_slots(grid, tile, tile[0] * tile[1] * tile[2] if pad else 1)
    rows = slots if queries == "all" else video_slots(grid, slots)
    dense = [[tokens_keep(grid, axes, q, k) for k in slots] for q in rows]
    assert_plan(plan, torch.tensor(dense)[None, None])


def test_golden_density_of_hunyuan():
    """Window 18 x 24 x 24 of 30 x 48 x 80 keeps 9% and drops 91%, in any order."""
    grid = Grid(30, 48, 80)
    raster = neighborhood(grid, kernel=(18, 24, 24))
    assert round(raster.density, 9) == 0.09
    strided = neighborhood(grid, kernel=(18, 24, 24), stride=(16, 8, 8), tile=(2, 8, 8))
    assert (strided.num_blocks, strided.num_tiles) == (72_900, 0), "perfectly block sparse"


def test_strides_of_whole_tiles_are_sliding_tiles():
    """An odd number of tiles as kernel, a tile as stride: both patterns are one."""
    grid = Grid(6, 8, 12, 5)
    tiled = sliding_tile(grid, tile=(2, 2, 4), window=(1, 3, 3), block_size=(16, 16))
    natten = neighborhood(
        grid, kernel=(2, 6, 12), stride=(2, 2, 4), tile=(2, 2, 4), block_size=(16, 16)
    )
    assert natten == tiled


def test_i1_an_even_kernel_is_one_short_on_the_right():
    plan = neighborhood(Grid(1, 1, 9), kernel=(1, 1, 4), block_size=(16, 16))
    rows = [row.nonzero().flatten().tolist() for row in plan.to_dense()[0, 0]]
    assert rows[4] == [2, 3, 4, 5]
    assert rows[0] == [0, 1, 2, 3]
    assert rows[8] == [5, 6, 7, 8]
    grid = Grid(1, 32, 32, 1, text_first=True)  # 32 x 32 and a class token
    counts = neighborhood(grid, kernel=(1, 8, 8)).to_dense()[0, 0].sum(1)
    assert counts.unique().tolist() == [65, 1025]


def test_i2_kernel_of_the_axis_length_is_full_on_that_axis():
    grid = Grid(4, 3, 5)
    plan = neighborhood(grid, kernel=(4, 3, 5), block_size=(16, 16))
    assert plan == mp.full(60, 60, block_size=(16, 16))
    rows = neighborhood(grid, kernel=(1, 3, 5), block_size=(16, 16))
    assert rows == mp.documents([15] * 4, block_size=(16, 16))


def test_the_plan_says_how_its_tokens_lie():
    grid = Grid(4, 5, 6, 2)
    raster = neighborhood(grid, kernel=(3, 3, 3))
    assert TokenOrder.from_provenance(raster.provenance) == TokenOrder.raster(grid)
    tiled = neighborhood(grid, kernel=(3, 3, 3), tile=(2, 2, 2), pad=True)
    order = TokenOrder.tiles(grid, (2, 2, 2), pad=True)
    assert TokenOrder.from_provenance(tiled.provenance) == order


def test_long_thin_axes_are_cheap():
    """One axis of many tokens: no table of the axis by itself is made."""
    plan = neighborhood(Grid(1, 1, 100_000), kernel=(1, 1, 129))
    assert plan.num_blocks < 2500
    assert neighborhood(Grid(20_000, 1, 1), kernel=(3, 1, 1)).num_blocks < 500


BAD = {
    "kernel beyond the axis": (
        lambda: neighborhood(Grid(4, 5, 6), kernel=(3, 7, 3)),
        mp.PlanError,
        ("axis h", "kernel 7 * dilation 1 = 7", "at most 5"),
    ),
    "dilated beyond the axis": (
        lambda: neighborhood(Grid(16, 14, 200), kernel=(7, 7, 7), dilation=(1, 1, 29)),
        mp.PlanError,
        ("axis w", "kernel 7 * dilation 29 = 203", "at most 200", "kernel 6"),
    ),
    "stride beyond the kernel": (
        lambda: neighborhood(Grid(4, 5, 6), kernel=(3, 3, 3), stride=(4, 1, 1)),
        mp.PlanError,
        ("axis t", "stride 4", "the kernel, 3"),
    ),
    "causal as a number": (
        lambda: neighborhood(Grid(4, 5, 6), kernel=(3, 3, 3), causal=(1, 0, 0)),
        mp.PlanTypeError,
        ("causal", "(1, 0, 0)", "(t, h, w)"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
