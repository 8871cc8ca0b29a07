"""Grids and token orders against nested loops."""

import pickle
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder

SIDES = st.tuples(*[st.integers(1, 7)] * 3)


@st.composite
def grids(draw):
    return Grid(*draw(SIDES), text=draw(st.integers(0, 5)), text_first=draw(st.booleans()))


def tile_slots(grid: Grid, tile, multiple: int = 1) -> list[int]:
    """Raster number of each slot, -1 for none: tiles in raster order, tokens in it within."""
    start = grid.text if grid.text_first else 0
    slots = []
    for t0 in range(0, grid.t, tile[0]):
        for h0 in range(0, grid.h, tile[1]):
            for w0 in range(0, grid.w, tile[2]):
                here = [
                    start + (t * grid.h + h) * grid.w + w
                    for t in range(t0, min(t0 + tile[0], grid.t))
                    for h in range(h0, min(h0 + tile[1], grid.h))
                    for w in range(w0, min(w0 + tile[2], grid.w))
                ]
                slots += here + [-1] * (-len(here) % multiple)
    text = (
        list(range(grid.text))
        if grid.text_first
        else list(range(grid.t * grid.h * grid.w, grid.t * grid.h * grid.w + grid.text))
    )
    return text + slots if grid.text_first else slots + text


def assert_order(order: TokenOrder, slots: list[int]) -> None:
    assert order.slots.tolist() == slots
    assert order.seqlen == len(slots)
    assert order.is_compact == (-1 not in slots)
    assert [slots.index(token) for token in range(order.grid.seqlen)] == order.inverse.tolist()
    x = torch.arange(1.0, 3 * order.grid.seqlen + 1).view(3, -1, 1)
    there = order.apply(x, 1)
    for slot, token in enumerate(slots):
        expected = torch.zeros(3, 1) if token < 0 else x[:, token]
        assert torch.equal(there[:, slot], expected)
    assert torch.equal(order.undo(there, 1), x)


@settings(max_examples=80)
@given(grids(), SIDES, st.booleans())
def test_tile_order_is_tiles_then_tokens(grid, tile, pad):
    order = TokenOrder.tiles(grid, tile, pad=pad)
    whole = tile[0] * tile[1] * tile[2]
    assert_order(order, tile_slots(grid, tile, whole if pad else 1))
    counts = [
        min(tile[0], grid.t - t) * min(tile[1], grid.h - h) * min(tile[2], grid.w - w)
        for t in range(0, grid.t, tile[0])
        for h in range(0, grid.h, tile[1])
        for w in range(0, grid.w, tile[2])
    ]
    assert order.tile_counts.tolist() == counts
    n_t, n_h, n_w = order.tile_grid
    assert n_t * n_h * n_w == len(counts)


@settings(max_examples=30)
@given(grids())
def test_raster_order_moves_nothing(grid):
    assert_order(TokenOrder.raster(grid), list(range(grid.seqlen)))


@settings(max_examples=30)
@given(grids(), st.integers(1, 9))
def test_frames_are_padded_to_a_multiple(grid, multiple):
    order = TokenOrder.frames(grid, multiple)
    assert_order(order, tile_slots(grid, (1, grid.h, grid.w), multiple))


@settings(max_examples=30)
@given(grids(), SIDES, st.booleans())
def test_provenance_rebuilds_grid_and_order(grid, tile, pad):
    order = TokenOrder.tiles(grid, tile, pad=pad)
    made = mp.Provenance(builder="x", grid=grid.to_json(), token_order=order.to_json())
    kept = pickle.loads(pickle.dumps(made))
    assert Grid.from_provenance(kept) == grid
    assert TokenOrder.from_provenance(kept) == order


def test_provenance_without_a_grid_has_no_order():
    bare = mp.Provenance(builder="x")
    assert Grid.from_provenance(bare) is None
    assert TokenOrder.from_provenance(bare) is None
    on_grid = mp.Provenance(builder="x", grid=Grid(2, 3, 4).to_json())
    assert TokenOrder.from_provenance(on_grid) == TokenOrder.raster(Grid(2, 3, 4))


def test_orders_move_along_any_axis_and_keep_gradients():
    order = TokenOrder.tiles(Grid(2, 3, 4, 1), (2, 2, 3), pad=True)
    x = torch.rand(2, 3, 25, requires_grad=True)
    order.undo(order.apply(x, -1), -1).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_vsa_tiles_of_wan_720p():
    """1440 tiles of (4, 4, 4), 1100 whole and 340 not, 92,160 slots when padded."""
    order = TokenOrder.tiles(Grid.preset("wan2.1-720p"), (4, 4, 4), pad=True)
    whole = int((order.tile_counts == 64).sum())
    assert (len(order.tile_counts), whole, order.seqlen) == (1440, 1100, 92_160)


def test_presets_have_their_tokens():
    wanted = {
        "wan2.1-480p": (32_760, 0),
        "wan2.1-720p": (75_600, 0),
        "hunyuanvideo-720p": (118_800, 256),
        "wan2.1-sta": (69_120, 0),
        "hunyuanvideo-sta": (115_200, 256),
        "hunyuanvideo-768p": (126_720, 256),
        "stepvideo-sta": (82_944, 0),
        "cogvideox-480p": (17_550, 226),
        "cogvideox1.5-768p": (44_880, 226),
        "mochi-480p": (44_520, 256),
        "magi1-720p": (86_400, 0),
    }
    assert set(Grid.presets()) == set(wanted)
    grids = {name: Grid.preset(name) for name in wanted}
    assert {name: (grid.video_tokens, grid.text) for name, grid in grids.items()} == wanted
    assert [name for name, grid in grids.items() if grid.text_first] == [
        "cogvideox-480p",
        "cogvideox1.5-768p",
    ]


def test_b11_frames_drift_against_blocks_until_they_are_padded():
    """A frame of 45 x 80 = 3600 tokens is 28.125 blocks of 128; padded it is 29."""
    grid = Grid(21, 45, 80)
    assert grid.frame_blocks(128) == Fraction(225, 8)
    order = TokenOrder.frames(grid, 128)
    assert order.seqlen == 21 * 3712
    assert order.tile_starts.diff().unique().tolist() == [3712]


BAD = {
    "empty axis": (lambda: Grid(0, 4, 4), mp.PlanError, ("t", "got 0", "1 <= t")),
    "float axis": (lambda: Grid(2, 4.0, 4), mp.PlanTypeError, ("h", "4.0 of type float")),
    "negative text": (lambda: Grid(2, 4, 4, -1), mp.PlanError, ("text", "got -1")),
    "too many tokens": (
        lambda: Grid(2**11, 2**10, 2**10),
        mp.PlanError,
        ("t * h * w + text", "got 2147483648"),
    ),
    "unknown preset": (
        lambda: Grid.preset("wan"),
        mp.PlanTypeError,
        ("'wan'", "'wan2.1-720p'", "Grid(t, h, w)"),
    ),
    "tile of two": (
        lambda: TokenOrder.tiles(Grid(2, 4, 4), (4, 4)),
        mp.PlanTypeError,
        ("tile", "(4, 4)", "(t, h, w)"),
    ),
    "tile of 0": (
        lambda: TokenOrder.tiles(Grid(2, 4, 4), (1, 0, 4)),
        mp.PlanError,
        ("tile[h]", "got 0"),
    ),
    "other tokens": (
        lambda: TokenOrder.raster(Grid(2, 4, 4)).apply(torch.ones(1, 33), 1),
        mp.PlanError,
        ("x, axis 1", "got 33", "32 tokens in raster order"),
    ),
    "other slots": (
        lambda: TokenOrder.frames(Grid(2, 3, 4), 8).undo(torch.ones(1, 24), 1),
        mp.PlanError,
        ("x, axis 1", "got 24", "32 tokens in this order"),
    ),
    "not a tensor": (
        lambda: TokenOrder.raster(Grid(2, 4, 4)).apply([1], 0),
        mp.PlanTypeError,
        ("x", "got list", "torch.Tensor"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_tile_far_larger_than_the_grid_takes_no_memory():
    grid = Grid(2, 3, 4, text=2)
    order = TokenOrder.tiles(grid, (10**4, 10**4, 10**4))
    assert torch.equal(order.inverse, torch.arange(26))
    assert torch.equal(order.slots, torch.arange(26))
