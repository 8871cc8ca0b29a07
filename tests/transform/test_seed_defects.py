"""Defects of the planner this library grew from, transposing among them: each stays fixed."""

import torch

import maskplan as mp
from tests.oracle import plan_of_dense


def block_plan(rows: list[list[list[int]]], num_k: int, heads: int | None = None) -> mp.Plan:
    """A plan of 1 x 1 blocks whose head h lists rows[h][m]."""
    dense = torch.zeros(len(rows), len(rows[0]), num_k, dtype=torch.bool)
    for head, lists in enumerate(rows):
        for row, listed in enumerate(lists):
            dense[head, row, listed] = True
    ids = torch.zeros(1, heads, dtype=torch.int32) if heads else torch.arange(len(rows)).int()[None]
    return plan_of_dense(dense, ids, (1, 1)).canonical()


def transposed_lists(plan: mp.Plan, head: int = 0) -> list[list[int]]:
    """Q blocks of each KV block, from the padded LoopQ lists."""
    lists = plan.transpose().block_sparse_tensors()
    counts, index = lists.full_block_cnt[0, head], lists.full_block_idx[0, head]
    return [index[n, : counts[n]].tolist() for n in range(len(counts))]


def test_d1_transpose_keeps_block_0():
    """Rows shorter than the longest lost block 0: [[0,3],[0,1,2,5],[0],[0,7]] kept only row 1's."""
    plan = block_plan([[[0, 3], [0, 1, 2, 5], [0], [0, 7]]], 8)

    assert transposed_lists(plan) == [[0, 1, 2, 3], [1], [1], [0], [], [1], [], [3]]


def test_d1_random_plans_lose_no_block():
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        dense = torch.rand(1, 9, 12, generator=generator) < 0.4
        plan = plan_of_dense(dense, torch.zeros(1, 1, dtype=torch.int32), (1, 1)).canonical()

        want = [dense[0, :, n].nonzero()[:, 0].tolist() for n in range(12)]
        assert transposed_lists(plan) == want


def test_d2_broadcast_heads_are_all_transposed():
    plan = block_plan([[[0, 1], [1], [0]]], 2, heads=4)

    for head in range(4):
        assert transposed_lists(plan, head) == [[0, 2], [0, 1]]


def test_d10_lists_ascend_strictly():
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(3, 8, 4096, generator=generator) < 0.1
    lists = plan_of_dense(dense, torch.arange(3).int()[None], (1, 1)).block_sparse_tensors()
    index, count = lists.full_block_idx, lists.full_block_cnt
    listed = torch.arange(1, index.shape[-1]) < count[..., None]

    assert (index.diff(dim=-1)[listed] > 0).all()


def test_d11_a_transposed_plan_keeps_kinds_and_has_a_write_order():
    dense = torch.ones(1, 8, 8).tril().bool()
    plan = plan_of_dense(dense, torch.zeros(1, 1, dtype=torch.int32), (4, 4)).canonical()
    lists = plan.transpose().block_sparse_tensors()

    assert lists.mask_block_cnt.tolist() == [[[1, 1]]], "the diagonal stays masked"
    assert lists.full_block_cnt.tolist() == [[[1, 0]]], "below it stays full"
    assert lists.dq_write_order.tolist() == [[[[0], [1]]]]
    assert lists.dq_write_order_full.tolist() == [[[[0], [-1]]]]
    assert lists.spt is False


def test_d12_heads_that_do_not_divide_are_refused_and_expanding_copies_nothing():
    plan = block_plan([[[0]], [[1]], [[0, 1]]], 2)

    assert plan.with_heads(6).pattern_id.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert plan.with_heads(6).col.data_ptr() == plan.col.data_ptr()
