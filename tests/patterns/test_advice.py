"""The adviser's figures against counts by hand, and what it prints."""

from fractions import Fraction

import pytest
import torch

import maskplan as mp
from maskplan.video import Grid, advise, radial, sliding_tile, vsa


def whole_frames(grid: Grid) -> mp.Plan:
    return mp.documents([grid.frame_tokens] * grid.t, block_size=(16, 16))


def test_costs_are_counted_in_blocks_by_hand():
    """Three frames of 4 x 5: blocks of 16 lie across frames; 4 x 4 ones fit."""
    advice = advise(Grid(3, 4, 5), whole_frames, spread=(0, 0, 1))
    here = advice.here
    assert (here.slots, here.tail, here.padding) == (60, 12, 0)
    assert here.frame_blocks == Fraction(20, 16)
    assert here.kept == 3 * 20 * 20
    # Blocks of queries [0,16) [16,32) [32,48) [48,60) see keys [0,20) [0,40) [20,60) [40,60).
    assert (here.blocks, here.partial) == (2 + 3 + 3 + 2, 8)
    assert here.work == 10 * 256
    assert here.amplification == 2560 / 1200
    best = advice.better[0]
    assert best.grid == Grid(3, 4, 4)
    assert (best.amplification, best.partial_share, best.tail) == (1.0, 0.0, 0)
    assert [cost.grid.w for cost in advice.better] == [4, 6]


def test_heads_that_share_a_pattern_count_each():
    grid = Grid(2, 4, 4)
    one = advise(grid, whole_frames, spread=(0, 0, 0)).here
    three = advise(grid, lambda g: whole_frames(g).with_heads(3), spread=(0, 0, 0)).here
    assert (three.work, three.kept, three.blocks) == (3 * one.work, 3 * one.kept, 3 * one.blocks)


def test_a_target_counts_in_its_own_blocks():
    target = mp.target("sm100", head_dim=128)
    advice = advise(
        Grid(4, 16, 16), lambda g: radial(g, decay=0.2), target=target, spread=(0, 0, 0)
    )
    assert advice.block_size == (256, 128)
    assert advice.here.work % (256 * 128) == 0


def test_padding_of_a_token_order_is_counted():
    """Tiles of 4 x 4 x 4 on (5, 5, 5): 8 tiles of 64 slots for 125 tokens."""
    every = torch.arange(8).expand(1, 1, 8, 8)
    advice = advise(
        Grid(5, 5, 5), lambda g: vsa(g, every, pad=True, free_rows=True), spread=(0, 0, 0)
    )
    assert (advice.here.slots, advice.here.padding) == (512, 387)
    assert advice.here.amplification == 512 * 512 / (512 * 125)


def test_it_prints_a_table_and_names_what_was_refused():
    advice = advise(
        Grid(6, 8, 9),
        lambda g: sliding_tile(g, tile=(2, 4, 4), window=(3, 2, 3), block_size=(32, 32)),
        spread=(0, 1, 1),
    )
    printed = str(advice)
    assert printed.startswith("in blocks of 32 x 32 tokens")
    for part in ("t x h x w", "computed", "6 x 8 x 9", "sizes refused, such as 6 x 7 x 8: window"):
        assert part in printed, printed
    alone = str(advise(Grid(2, 4, 4), whole_frames, spread=(0, 0, 0)))
    assert "no size near it" in alone


def test_b4_b5_sizes_near_wan_720p_that_cost_less():
    """45 x 80 is 28.125 blocks a frame; users kept spreadsheets of such sizes."""
    advice = advise(Grid(5, 45, 80), lambda g: radial(g, decay=0.2), spread=(0, 1, 0))
    assert float(advice.here.frame_blocks) == 28.125
    assert all(cost.amplification < advice.here.amplification for cost in advice.better)


BAD = {
    "no function": (
        lambda: advise(Grid(2, 4, 4), "radial"),
        mp.PlanTypeError,
        ("pattern", "got str", "a Grid to a Plan"),
    ),
    "no plan": (
        lambda: advise(Grid(2, 4, 4), lambda _: 3),
        mp.PlanTypeError,
        ("pattern", "got int"),
    ),
    "spread": (
        lambda: advise(Grid(2, 4, 4), whole_frames, spread=(0, -1, 0)),
        mp.PlanError,
        ("spread[h]", "got -1"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
