"""Sliding tile attention against its definition, token by token."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder, sliding_tile
from tests.oracle import assert_plan
from tests.patterns.test_token_order import tile_slots
from tests.strategies import block_sizes


def coordinates(grid: Grid, token: int):
    """(t, h, w) of a token in raster order, or None for text."""
    video = token - (grid.text if grid.text_first else 0)
    if not 0 <= video < grid.t * grid.h * grid.w:
        return None
    return video // (grid.h * grid.w), video // grid.w % grid.h, video % grid.w


def axis_keeps(q: int, k: int, tiles: int, window: int) -> bool:
    """Centre clamp of arXiv 2502.04507, whose even windows keep `window` tiles."""
    after = window // 2 + window % 2 - 1
    centre = min(max(q, window // 2), tiles - 1 - after)
    return centre - window // 2 <= k <= centre + after


def tokens_keep(grid: Grid, tile, window, q: int, k: int) -> bool:
    if q < 0 or k < 0:
        return False
    at_q, at_k = coordinates(grid, q), coordinates(grid, k)
    if at_q is None or at_k is None:
        return True
    return all(
        axis_keeps(a // c, b // c, -(-n // c), size)
        for a, b, c, n, size in zip(at_q, at_k, tile, (grid.t, grid.h, grid.w), window, strict=True)
    )


@st.composite
def layouts(draw):
    """(grid, tile, window) of few tokens: ceil tiles and not, windows odd, even and whole."""
    tile = tuple(draw(st.integers(1, 3)) for _ in range(3))
    shape = [draw(st.integers(1, high)) for high in (4, 5, 6)]
    text = draw(st.integers(0, 3))
    grid = Grid(*shape, text=text, text_first=draw(st.booleans()))
    tiles = [-(-n // c) for n, c in zip(shape, tile, strict=True)]
    return grid, tile, tuple(draw(st.integers(1, n)) for n in tiles)


@settings(max_examples=60)
@given(layouts(), st.booleans(), block_sizes())
def test_sliding_tile_is_its_definition(layout, pad, block_size):
    grid, tile, window = layout
    plan = sliding_tile(grid, tile=tile, window=window, block_size=block_size, pad=pad)
    whole = tile[0] * tile[1] * tile[2]
    slots = tile_slots(grid, tile, whole if pad else 1)
    rows = [[tokens_keep(grid, tile, window, q, k) for k in slots] for q in slots]
    assert_plan(plan, torch.tensor(rows)[None, None])


@settings(max_examples=40)
@given(layouts())
def test_every_query_sees_window_tiles(layout):
    """As many tiles as the window has, for even windows too; text sees all."""
    grid, tile, window = layout
    plan = sliding_tile(Grid(*grid.shape), tile=tile, window=window, block_size=(8, 8))
    order = TokenOrder.tiles(Grid(*grid.shape), tile)
    tile_of = torch.repeat_interleave(torch.arange(len(order.tile_counts)), order.tile_counts)
    for row in plan.to_dense()[0, 0]:
        assert len(tile_of[row].unique()) == window[0] * window[1] * window[2]


def test_golden_canvas_of_hunyuanvideo():
    """Canvas (30, 48, 80), tile (6, 8, 8), window (3, 3, 3), blocks of 128: as published."""
    plan = sliding_tile(Grid(30, 48, 80))
    assert (plan.seqlen_q, plan.num_blocks, plan.num_tiles) == (115_200, 72_900, 0)
    assert plan.tile_id is None
    assert plan.num_blocks / 900**2 == 0.09
    assert plan == plan.canonical()


@pytest.mark.parametrize("window", [(3, 1, 10), (1, 5, 7), (3, 3, 3), (1, 6, 5), (3, 6, 1)])
def test_shipped_windows_of_wan_have_their_density(window):
    """Canvas (18, 48, 80): prod(window) of 3 * 6 * 10 tiles, 384 tokens or 3 blocks each."""
    plan = sliding_tile(Grid(18, 48, 80), window=window)
    tiles = window[0] * window[1] * window[2]
    assert (plan.num_blocks, plan.num_tiles) == (180 * 3 * tiles * 3, 0)


def test_b6_any_canvas_has_ceil_tiles():
    """(21, 45, 80) by (6, 8, 8) is 4 x 6 x 10 = 240 tiles, 92,160 slots when padded."""
    grid = Grid(21, 45, 80)
    padded = sliding_tile(grid, pad=True)
    assert TokenOrder.from_provenance(padded.provenance).tile_grid == (4, 6, 10)
    assert (padded.seqlen_q, sliding_tile(grid).seqlen_q) == (92_160, 75_600)


def test_i2_a_window_of_the_whole_axis_sees_the_axis():
    grid = Grid(5, 9, 7, 3)
    whole = sliding_tile(grid, tile=(2, 4, 3), window=(3, 3, 3), block_size=(16, 16))
    assert whole == mp.full(318, 318, block_size=(16, 16))


def test_text_sees_everything_and_is_seen():
    for first in (False, True):
        grid = Grid(4, 4, 4, 5, text_first=first)
        plan = sliding_tile(grid, tile=(1, 1, 4), window=(1, 1, 1), block_size=(8, 8))
        dense = plan.to_dense()[0, 0]
        text = slice(0, 5) if first else slice(64, 69)
        assert bool(dense[text].all())
        assert bool(dense[:, text].all())
        assert int(dense.sum()) == 69 * 5 + 64 * 5 + 64 * 4


def test_a_window_beyond_the_grid_is_cut_when_asked():
    grid = Grid(4, 4, 4)
    cut = sliding_tile(grid, tile=(2, 2, 2), window=(5, 1, 3), block_size=(8, 8), clamp=True)
    assert cut == sliding_tile(grid, tile=(2, 2, 2), window=(2, 1, 2), block_size=(8, 8))
    assert cut.provenance.parameters["window"] == [2, 1, 2]


def test_the_plan_says_how_its_tokens_lie():
    grid = Grid(5, 9, 7, 3, text_first=True)
    plan = sliding_tile(grid, tile=(2, 4, 3), window=(1, 2, 1))
    assert Grid.from_provenance(plan.provenance) == grid
    order = TokenOrder.from_provenance(plan.provenance)
    assert order == TokenOrder.tiles(grid, (2, 4, 3))
    x = torch.rand(1, plan.seqlen_q, 2)
    assert torch.equal(order.undo(order.apply(x, 1), 1), x)


def test_attention_over_the_plan_is_attention_over_the_mask_in_raster_order():
    """Permute, plan, un-permute: the mask between tokens does not depend on the order."""
    grid = Grid(3, 5, 4, 2)
    plan = sliding_tile(grid, tile=(2, 2, 2), window=(1, 2, 1), block_size=(8, 8))
    order = TokenOrder.from_provenance(plan.provenance)
    raster = order.undo(order.undo(plan.to_dense()[0, 0], 0), 1)
    for q, k in itertools.product(range(grid.seqlen), repeat=2):
        assert bool(raster[q, k]) == tokens_keep(grid, (2, 2, 2), (1, 2, 1), q, k)


BAD = {
    "window beyond the grid": (
        lambda: sliding_tile(Grid(21, 45, 80), window=(5, 3, 3)),
        mp.PlanError,
        ("window, axis t", "got 5", "at most 4 tiles", "clamp=True"),
    ),
    "window of 0": (
        lambda: sliding_tile(Grid(21, 45, 80), window=(1, 3, 0)),
        mp.PlanError,
        ("window[w]", "got 0", "1 <= window[w]"),
    ),
    "window of two": (
        lambda: sliding_tile(Grid(21, 45, 80), window=(3, 3)),
        mp.PlanTypeError,
        ("window", "(3, 3)", "(t, h, w)"),
    ),
    "tile of floats": (
        lambda: sliding_tile(Grid(21, 45, 80), tile=(6.0, 8, 8)),
        mp.PlanTypeError,
        ("tile[t]", "6.0 of type float"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_b7_text_of_396_tokens():
    """FastVideo 269: image-to-video prompts of 396 tokens, past a kernel's 256."""
    grid = Grid(6, 16, 24, text=396)
    plan = sliding_tile(grid, tile=(6, 8, 8), window=(1, 1, 3))
    dense = plan.to_dense()[0, 0]

    assert plan.seqlen_q == 6 * 16 * 24 + 396
    assert dense[:, -396:].all(), "every query sees all the text"
    assert dense[-396:].all(), "text sees everything"
    tiles = torch.arange(6 * 16 * 24) // 384 // 3
    assert torch.equal(dense[:-396, :-396], tiles[:, None] == tiles[None])


def test_blocks_of_hunyuanvideo_at_720p_with_text():
    """33 x 45 x 80 latents and 256 text tokens: 119,056 tokens, 931 blocks of 128, tail 16."""
    plan = sliding_tile(Grid.preset("hunyuanvideo-720p"), window=(3, 3, 3))

    assert plan.seqlen_q == 119_056
    assert plan.geometry.num_q_blocks == 931
    assert plan.seqlen_q % 128 == 16
