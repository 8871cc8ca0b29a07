"""Defects of an earlier planner of a public pull request, as far as tiles go."""

import pytest
import torch

import maskplan as mp
from tests.lower.tile_rows import random_lists


def test_d3_an_index_out_of_range_is_an_error_not_its_neighbour():
    lists = torch.zeros(2, 2, 200, 3, dtype=torch.int32)
    lists[1, 1, 150, 2] = 16
    wanted = r"in indices\[b=1, h=1, row=150, slot=2\]: got 16, wanted 0 <= token < 16"
    with pytest.raises(mp.PlanError, match=wanted):
        mp.TokenTiles.from_topk(lists, 16)


def test_d4_a_tile_is_not_its_first_query():
    """256 packed rows of groups of 8 are 32 queries, and none of their pairs is lost or added."""
    lists = random_lists((1, 1, 32), 16, 2048)
    with pytest.raises(mp.PlanError, match="select different keys"):
        mp.TokenTiles.from_topk(lists, 2048, group=8, tile_rows=256)
    tiles = mp.TokenTiles.from_topk(lists, 2048, group=8, tile_rows=256, policy="union")
    assert (tiles.kept_pairs, tiles.lost_pairs) == (32 * 8 * 16, 0)
    assert tiles.to_plan() == mp.from_topk(lists, 2048, block_size=(32, 128))


def test_d5_padding_inside_a_list_selects_nothing():
    row = torch.full((128,), -1)
    row[5:105] = torch.arange(100, 200)
    tiles = mp.TokenTiles.from_topk(row[None, None, None], 256)
    assert tiles.valid_counts.tolist() == [[[100]]]
    assert tiles.tile_token_indices[0, 0, 0].tolist() == [*range(100, 200), *[-1] * 28]


def test_d6_a_key_listed_twice_counts_once():
    tiles = mp.TokenTiles.from_topk(torch.tensor([[3, 3, 9, 3, 9]])[None, None], 16)
    assert (tiles.valid_counts.tolist(), tiles.wanted_pairs) == ([[[2]]], 2)


def test_d7_forward_and_backward_tiles_mean_the_same_pairs():
    """Tiles of 256 and of 128 rows, and the plan, keep the tokens and not their blocks."""
    lists = random_lists((1, 2, 300), 8, 4096)
    plans = [
        mp.TokenTiles.from_topk(lists, 4096, policy="union", tile_rows=rows).to_plan()
        for rows in (128, 256)
    ]
    assert plans[0].reblock((256, 128)) == plans[1]
    assert plans[0] == mp.from_topk(lists, 4096)
    assert plans[0].stats().pairs == 2 * 300 * 8


@pytest.mark.parametrize("shift", [0, 1])
def test_d8_blocks_are_measured_not_claimed(shift):
    lists = (torch.arange(128, 384) + shift).expand(1, 1, 200, 256)
    tiles = mp.TokenTiles.from_topk(lists, 512)
    assert tiles.form == ("tokens" if shift else "blocks")
    assert tiles.to_plan() == mp.from_topk(lists, 512)


def test_d9_the_ragged_last_block_is_kept():
    lists = torch.arange(256, 300).expand(1, 1, 64, 44)
    tiles = mp.TokenTiles.from_topk(lists, 300)
    assert (tiles.form, tiles.valid_counts.tolist()) == ("blocks", [[[44]]])
    assert tiles.blocks.full_block_idx.tolist() == [[[[2]]]]
    assert tiles.to_plan() == mp.from_topk(lists, 300)


def test_d16_whole_blocks_make_no_token_table():
    """65,536 of 524,288 keys: 4 bytes a block."""
    starts = random_lists((1, 1, 8), 512, 4096).sort(-1).values[..., None] * 128
    lists = (starts + torch.arange(128)).flatten(3).int()
    tiles = mp.TokenTiles.from_topk(lists, 524_288, group=128)
    assert (tiles.form, tiles.tile_token_indices, tiles.row_bits) == ("blocks", None, None)
    assert tiles.nbytes < 2 * 8 * 512 * 4
    assert tiles.valid_counts.unique().tolist() == [65_536]
