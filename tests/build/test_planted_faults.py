"""Tests of the tests: faults that planners have had, planted, must fail the comparison."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from tests.oracle import assert_plan, canonical_fault


def sound() -> tuple[mp.Plan, torch.Tensor]:
    """Two heads of different masks, full, mask and empty blocks, ragged on both sides."""
    rows, cols = torch.arange(21)[:, None], torch.arange(27)
    dense = torch.stack([rows >= cols - 3, (rows // 8 == cols // 8) | (cols < 3)])[None]
    return mp.from_token_mask(dense, block_size=(8, 8)), dense


def without(plan: mp.Plan, entry: int) -> mp.Plan:
    keep = torch.arange(plan.num_blocks) != entry
    row_ptr = plan.row_ptr - (plan.row_ptr > entry).long()
    return replace(plan, row_ptr=row_ptr, col=plan.col[keep], tile_id=plan.tile_id[keep])


def off_by_one(plan: mp.Plan) -> mp.Plan:
    col = plan.col.clone()
    last = plan.row_ptr[1] - 1
    col[last] += 1
    return replace(plan, col=col)


def shifted_bits(plan: mp.Plan) -> mp.Plan:
    return replace(plan, tiles=plan.tiles.roll(1, dims=1))


def full_for_mask(plan: mp.Plan) -> mp.Plan:
    return replace(plan, tile_id=torch.full_like(plan.tile_id, -1))


def head_left_out(plan: mp.Plan) -> mp.Plan:
    return replace(plan, pattern_id=torch.zeros_like(plan.pattern_id))


def heads_swapped(plan: mp.Plan) -> mp.Plan:
    return replace(plan, pattern_id=plan.pattern_id.flip(1))


def axes_swapped(plan: mp.Plan) -> mp.Plan:
    turned = plan.to_dense().transpose(-1, -2)
    return mp.from_token_mask(turned, block_size=plan.block_size)


FAULTS = {
    "dropped last block": lambda plan: without(plan, plan.num_blocks - 1),
    "lost block 0": lambda plan: without(plan, 0),
    "off by one": off_by_one,
    "shifted bits": shifted_bits,
    "full for mask": full_for_mask,
    "head left out": head_left_out,
    "heads swapped": heads_swapped,
    "axes swapped": axes_swapped,
}


def test_the_sound_plan_passes():
    plan, dense = sound()
    assert int((plan.tile_id < 0).sum()) > 1
    assert plan.num_tiles > 1
    assert_plan(plan, dense)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    plan, dense = sound()
    with pytest.raises((AssertionError, mp.PlanError)):
        assert_plan(FAULTS[name](plan), dense)


def renumbered(plan: mp.Plan) -> mp.Plan:
    number = torch.where(plan.tile_id >= 0, plan.num_tiles - 1 - plan.tile_id, -1)
    return replace(plan, tile_id=number.int(), tiles=plan.tiles.flip(0))


def doubled_tile(plan: mp.Plan) -> mp.Plan:
    last = int((plan.tile_id >= 0).nonzero()[-1])
    number = plan.tile_id.clone()
    tile = plan.tiles[number[last]]
    number[last] = plan.num_tiles
    return replace(plan, tile_id=number, tiles=torch.cat([plan.tiles, tile[None]]))


def doubled_pattern(plan: mp.Plan) -> mp.Plan:
    one = plan.row_ptr[:4]
    end = int(one[-1])
    return replace(
        plan,
        pattern_id=torch.tensor([[0, 1]], dtype=torch.int32),
        row_ptr=torch.cat([one, one[1:] + end]),
        col=plan.col[:end].repeat(2),
        tile_id=plan.tile_id[:end].repeat(2),
    )


@pytest.mark.parametrize("fault", [renumbered, doubled_tile, doubled_pattern])
def test_a_plan_that_is_not_canonical_is_caught(fault):
    plan, _ = sound()
    assert canonical_fault(plan) is None
    assert canonical_fault(fault(plan)) is not None
