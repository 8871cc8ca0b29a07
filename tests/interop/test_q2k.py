"""q2k lists: packed groups, padding inside tiles, both ways."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import q2k
from tests.strategies import block_masks


@given(block_masks(), st.integers(1, 3))
def test_both_ways(case, repeat):
    mask, geometry = case
    size = geometry.block_size
    plan = mp.from_block_mask(mask, geometry.seqlen_q, geometry.seqlen_k, block_size=size)
    index, num = q2k.to_q2k(plan, size, repeat=repeat)

    assert torch.equal(num[:, :, ::repeat], mask.sum(3).to(torch.int32))
    assert bool(((index == -1) == (torch.arange(index.shape[3]) >= num[..., None])).all())
    lengths = (geometry.seqlen_q, geometry.seqlen_k)
    assert q2k.from_q2k(index, num, *lengths, block_size=size, repeat=repeat) == plan


def test_blocks_kept_in_part_need_a_word():
    with pytest.raises(mp.PlanError, match="kept in part in q2k lists"):
        q2k.to_q2k(mp.causal(8, 8), (4, 4))
    index, num = q2k.to_q2k(mp.causal(8, 8), (4, 4), superset=True)
    assert index[0, 0].tolist() == [[0, -1], [0, 1]]
    assert num[0, 0].tolist() == [1, 2]


def test_q2k_lists_of_packed_heads():
    lists = torch.tensor([[[[2, 0, -1], [2, 0, 7], [1, -1, -1], [1, 9, 9]]]])
    counts = torch.tensor([[[2, 2, 1, 1]]])
    plan = q2k.from_q2k(lists, counts, 8, 12, block_size=(4, 4), repeat=2)

    assert plan.row_ptr.tolist() == [0, 2, 3]
    assert plan.col.tolist() == [0, 2, 1]
    with pytest.raises(
        mp.PlanError, match=r"repeated lists disagree in q2k_index\[b=0, h=0, row=2"
    ):
        q2k.from_q2k(lists, counts, 4, 12, block_size=(4, 4), repeat=4)


def test_padding_inside_tiles_is_not_seen():
    """VSA: tiles are padded to one size, and each says how many of its keys are tokens."""
    lists, counts = torch.tensor([[[[0, 1]]]]), torch.tensor([[[2]]])
    plan = q2k.from_q2k(lists, counts, 4, 8, block_size=(4, 4), kv_block_sizes=[3, 4])

    assert plan.to_dense()[0, 0].int().tolist() == [[1, 1, 1, 0, 1, 1, 1, 1]] * 4
    with pytest.raises(mp.PlanError, match=r"kv_block_sizes\[1\]: got 5, wanted 0 to 4"):
        q2k.from_q2k(lists, counts, 4, 8, block_size=(4, 4), kv_block_sizes=[3, 5])


@pytest.mark.parametrize("shape", [(2,), (1, 2), (1, 1, 1), (1, 1, 3), (2, 1, 2), (1, 1, 2, 1)])
def test_counts_of_another_shape_are_refused(shape):
    index = torch.zeros(1, 1, 2, 1, dtype=torch.int32)
    with pytest.raises(mp.MaskplanError, match="q2k_num"):
        q2k.from_q2k(index, torch.ones(shape, dtype=torch.int32), 8, 8, block_size=(4, 4))


def test_repeated_rows_agree_in_their_counts():
    index = torch.tensor([[[[0, -1], [0, -1]]]])
    with pytest.raises(mp.PlanError, match=r"row=1.*got 2 blocks"):
        q2k.from_q2k(index, torch.tensor([[[1, 2]]]), 4, 8, block_size=(4, 4), repeat=2)
