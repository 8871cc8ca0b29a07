"""Defects of an earlier planner of a public pull request, as far as builders go."""

import pytest
import torch

import maskplan as mp
from tests.build.memory import peak_growth_mib
from tests.oracle import assert_plan, dense_of_pairs


def kept_pairs(plan: mp.Plan) -> int:
    return int(plan.to_dense().sum())


def test_d1_padding_slots_touch_no_block():
    """Slots past a row's count hold 0, as that planner filled them, and block 0 stays as listed."""
    rows = [[0, 3], [0, 1, 2, 5], [1], [0, 7], []]
    idx = torch.zeros(5, 6, dtype=torch.int32)
    for row, blocks in enumerate(rows):
        idx[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    cnt = torch.tensor([len(blocks) for blocks in rows])
    plan = mp.from_block_lists(cnt, idx, 10, 16, block_size=(2, 2))
    listed = [plan.col[a:b].tolist() for a, b in zip(plan.row_ptr, plan.row_ptr[1:], strict=False)]
    assert listed == rows


@pytest.mark.parametrize("kind", ["topk", "mask"])
def test_d2_every_broadcast_head_has_the_blocks(kind):
    if kind == "topk":
        own = torch.tensor([[3, 1], [0, -1]])[None, None]
        plan = mp.from_topk(own.expand(2, 4, 2, 2), 4, block_size=(1, 2))
        one = dense_of_pairs({(0, 0, 0, 3), (0, 0, 0, 1), (0, 0, 1, 0)}, (1, 1, 2, 4))
    else:
        own = torch.tensor([[True, False], [True, True]])[None, None]
        plan = mp.from_block_mask(own.expand(2, 4, 2, 2), 2, 2, block_size=(1, 1))
        one = own
    assert_plan(plan, one.expand(2, 4, *one.shape[2:]))


def test_d3_an_index_out_of_range_is_an_error_not_its_neighbour():
    lists = torch.tensor([[5, 16]])[None, None]
    with pytest.raises(mp.PlanError, match=r"slot=1\]: got 16, wanted 0 <= token < 16"):
        mp.from_topk(lists, 16, block_size=(1, 4))


@pytest.mark.parametrize(("batch", "value"), [(0, 16), (1, 15), (1, 32), (1, 0)])
def test_d3_a_token_of_another_batch_is_an_error(batch, value):
    """Two batches of 16 keys: batch 1 owns 16 to 31, and 15 is not its key -1."""
    lists = torch.full((2, 1, 1, 2), -1)
    lists[batch, 0, 0, 1] = value
    low = 16 * batch
    wanted = rf"b={batch}, h=0, row=0, slot=1\]: got {value}, wanted {low} <= token < {low + 16}"
    with pytest.raises(mp.PlanError, match=wanted):
        mp.from_topk(lists, 16, block_size=(1, 4), base="global")


def test_d3_one_list_for_all_batches_cannot_be_global():
    lists = torch.tensor([3]).expand(2, 1, 1, 1)
    with pytest.raises(mp.PlanError, match=r"b=1, h=0, row=0, slot=0\]: got 3, wanted 16 <= token"):
        mp.from_topk(lists, 16, base="global")


def test_d4_a_tile_of_queries_is_the_union_and_keeps_each_query_exact():
    """g = 8 queries of random lists in one tile: nothing is lost, nothing is added."""
    generator = torch.Generator().manual_seed(0)
    lists = torch.stack([torch.randperm(256, generator=generator)[:32] for _ in range(64)])
    plan = mp.from_topk(lists[None, None], 256, block_size=(8, 16))
    pairs = {(0, 0, q, k) for q in range(64) for k in lists[q].tolist()}
    assert_plan(plan, dense_of_pairs(pairs, (1, 1, 64, 256)))
    for tile in range(8):
        union = {k // 16 for k in lists[8 * tile : 8 * tile + 8].flatten().tolist()}
        assert plan.col[plan.row_ptr[tile] : plan.row_ptr[tile + 1]].tolist() == sorted(union)


def test_d5_padding_inside_a_list_selects_nothing():
    row = torch.full((128,), -1)
    row[5:105] = torch.arange(100, 200)
    plan = mp.from_topk(row[None, None, None], 256, block_size=(1, 128))
    assert kept_pairs(plan) == 100
    assert not bool(plan.to_dense()[0, 0, 0, 0])


def test_d6_a_key_listed_twice_counts_once():
    plan = mp.from_topk(torch.tensor([[3, 3, 9, 3, 9]])[None, None], 16, block_size=(1, 4))
    assert kept_pairs(plan) == 2


@pytest.mark.parametrize("fault", ["shifted", "one missing", "two swapped", "one repeated"])
def test_d8_a_chunk_is_a_block_only_if_it_is_one(fault):
    """128 keys that start on a block and are not that block, or are it in another order."""
    keys = torch.arange(128, 256)
    expected = set(range(128, 256))
    if fault == "shifted":
        keys, expected = keys + 1, set(range(129, 257))
    elif fault == "one missing":
        keys[64] = -1
        expected -= {192}
    elif fault == "two swapped":
        keys[[3, 90]] = keys[[90, 3]]
    else:
        keys[64] = 191
        expected -= {192}
    plan = mp.from_topk(keys[None, None, None], 512, block_size=(1, 128))
    assert_plan(plan, dense_of_pairs({(0, 0, 0, k) for k in expected}, (1, 1, 1, 512)))
    assert (plan.tile_id is None) == (fault == "two swapped")


def test_d10_lists_ascend_at_4096_blocks():
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randperm(4096, generator=generator)[:64] for _ in range(64)])
    plan = mp.from_topk(ids[None, None], 4096, block_size=(1, 1))
    rows = plan.col.view(64, 64)
    assert torch.equal(rows, ids.sort(1).values)


def test_d12_heads_are_shared_not_copied():
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(0, 64, (1, 2, 16, 8), generator=generator)
    plan = mp.from_topk(lists.repeat_interleave(4, 1), 64, block_size=(8, 8))
    assert (plan.heads, plan.num_patterns) == (8, 2)
    assert plan.pattern_id.tolist() == [[0] * 4 + [1] * 4]


def test_d16_whole_blocks_hold_no_token_table():
    """A block of 128 selected keys is 4 bytes of plan."""
    ids = torch.arange(64).view(1, 1, 1, 64).expand(1, 1, 256, 64)
    plan = mp.from_topk(ids, 64 * 128, block_size=(1, 128), unit="block")
    size = sum(
        tensor.numel() * tensor.element_size()
        for tensor in (plan.pattern_id, plan.row_ptr, plan.col, plan.tiles)
    )
    assert size == 4 + 8 * 257 + 4 * 64 * 256


def test_d17_memory_does_not_grow_with_the_indices():
    """16.8 million indices, 64 MiB: less than that beyond the plan; it took 24 bytes each."""
    starts = torch.arange(0, 128 * 128, 128).repeat(1024, 1)
    lists = (starts[:, :, None] + torch.arange(128)).view(1, 1, 1024, 16_384).int()
    mp.from_topk(lists[:, :, :4], 131_072, block_size=(1, 128))
    grown = peak_growth_mib(lambda: mp.from_topk(lists, 131_072, block_size=(1, 128)))
    assert grown < 64
