"""Tests of the tests: each fault a planner has had is planted, and a check has to fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import maskplan as mp
from maskplan.lower import padded_lists, walk
from maskplan.transform import transpose as transpose_module
from tests.lower import test_tensors, test_walk
from tests.oracle import plan_of_dense
from tests.transform import test_seed_defects
from tests.transform.test_laws import assert_same_arrays


def ragged_plan() -> mp.Plan:
    """Two heads of different masks, rows of different counts, mask and full blocks, ragged ends."""
    rows, cols = torch.arange(22)[:, None], torch.arange(27)[None]
    masks = torch.stack([rows + 3 >= cols, (rows // 8 == cols // 8) | (cols < 5)])
    return plan_of_dense(masks, torch.tensor([[0, 1]], dtype=torch.int32), (8, 8)).canonical()


def drop_entry(plan: mp.Plan, line: int, place: int) -> mp.Plan:
    entry = int(plan.row_ptr[line]) + place
    keep = torch.ones(plan.num_blocks, dtype=torch.bool)
    keep[entry] = False
    row_ptr = plan.row_ptr - (torch.arange(len(plan.row_ptr)) > line).long()
    return replace(plan, row_ptr=row_ptr, col=plan.col[keep], tile_id=plan.tile_id[keep])


def dropped_last_block(plan: mp.Plan) -> mp.Plan:
    return drop_entry(plan, 1, int(plan.row_ptr[2] - plan.row_ptr[1]) - 1)


def lost_block_0(plan: mp.Plan) -> mp.Plan:
    return drop_entry(plan, 2, 0)


def column_off_by_one(plan: mp.Plan) -> mp.Plan:
    return replace(plan, col=(plan.col + 1).clamp(max=plan.geometry.num_k_blocks - 1))


def row_off_by_one(plan: mp.Plan) -> mp.Plan:
    row_ptr = plan.row_ptr.clone()
    row_ptr[1] += 1
    return replace(plan, row_ptr=row_ptr)


def head_left_out(plan: mp.Plan) -> mp.Plan:
    return replace(plan, pattern_id=torch.zeros_like(plan.pattern_id))


def one_bit_lost(plan: mp.Plan) -> mp.Plan:
    tiles = plan.tiles.clone()
    tiles[0, 0, 0] &= tiles[0, 0, 0] - 1
    return replace(plan, tiles=tiles)


def mask_called_full(plan: mp.Plan) -> mp.Plan:
    return replace(plan, tile_id=torch.full_like(plan.tile_id, -1))


def tiles_swapped(plan: mp.Plan) -> mp.Plan:
    return replace(plan, tiles=plan.tiles.flip(0))


PLAN_FAULTS = [
    dropped_last_block,
    lost_block_0,
    column_off_by_one,
    row_off_by_one,
    head_left_out,
    one_bit_lost,
    mask_called_full,
    tiles_swapped,
]


@pytest.mark.parametrize("fault", PLAN_FAULTS)
def test_dense_masks_equality_and_digest_see_the_fault(fault: Callable[[mp.Plan], mp.Plan]):
    plan = ragged_plan()
    broken = fault(plan)

    assert not torch.equal(broken.to_dense(), plan.to_dense())
    assert broken != plan
    assert broken.digest != plan.digest
    with pytest.raises(AssertionError):
        assert_same_arrays(broken, plan)


@pytest.mark.parametrize("fault", PLAN_FAULTS)
def test_list_checks_see_the_fault(fault: Callable[[mp.Plan], mp.Plan]):
    plan = ragged_plan()
    lists = fault(plan).block_sparse_tensors(width="dense")
    if fault in {one_bit_lost, tiles_swapped}:
        assert not torch.equal(lists.tiles, plan.block_sparse_tensors().tiles)
        return
    with pytest.raises((AssertionError, IndexError)):
        test_tensors.check_lists(lists, plan.to_dense(), plan.block_size, "dense")


def test_the_checks_pass_without_a_fault():
    plan = ragged_plan()

    test_tensors.check_lists(
        plan.block_sparse_tensors(width="dense"), plan.to_dense(), plan.block_size, "dense"
    )
    assert_same_arrays(plan, ragged_plan())


def without_block_0(row_ptr: Tensor, col: Tensor, rows: int, cols: int, **options: bool):
    """The seed's fault: rows shorter than the longest lose KV block 0 when transposed."""
    lengths = row_ptr.diff()
    line = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    keep = (col != 0) | (lengths[line] == lengths.max())
    counts = torch.zeros_like(lengths).index_add_(0, line[keep], torch.ones_like(line[keep]))
    shorter = torch.cat([row_ptr[:1], counts.cumsum(0)])
    return original(shorter, col[keep], rows, cols, **options)


def swapped(row_ptr: Tensor, col: Tensor, rows: int, cols: int, **options: bool):
    """Lists that come back as they went in."""
    del rows, cols, options
    return row_ptr, col, torch.arange(len(col))


original = transpose_module.transpose_lists


@pytest.mark.parametrize("fault", [without_block_0, swapped])
def test_transpose_checks_see_the_fault(monkeypatch: pytest.MonkeyPatch, fault):
    monkeypatch.setattr(transpose_module, "transpose_lists", fault)

    with pytest.raises((AssertionError, RuntimeError, mp.MaskplanError)):
        test_seed_defects.test_d1_transpose_keeps_block_0()


def test_write_order_check_sees_ranks_from_the_wrong_end(monkeypatch: pytest.MonkeyPatch):
    right = padded_lists.write_order
    monkeypatch.setattr(
        padded_lists, "write_order", lambda plan, *, spt=False: right(plan, spt=not spt)
    )

    with pytest.raises(AssertionError):
        test_tensors.test_write_order_is_the_rank_among_contributors.hypothesis.inner_test(
            ragged_plan(), spt=False
        )


def test_schedule_check_sees_the_shortest_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "longest_first", lambda work: work.argsort().to(torch.int32))

    with pytest.raises(AssertionError):
        test_walk.test_schedule_starts_the_longest_rows_first.hypothesis.inner_test(
            ragged_plan(), parts=1
        )
