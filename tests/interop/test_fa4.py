"""flash-attn-4's tensors, both ways."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings

import maskplan as mp
from maskplan.interop import fa4
from tests.strategies import block_masks, plans


@settings(max_examples=50)
@given(plans())
def test_bits_travel_with_our_own_tensors(plan):
    tensors = plan.block_sparse_tensors()

    assert fa4.from_fa4(tensors, plan.seqlen_q, plan.seqlen_k) == plan


@settings(max_examples=50)
@given(block_masks())
def test_whole_blocks_both_ways(case):
    mask, geometry = case
    plan = mp.from_block_mask(
        mask, geometry.seqlen_q, geometry.seqlen_k, block_size=geometry.block_size
    )
    held = fa4.to_fa4(plan)

    assert fa4.from_fa4(held, geometry.seqlen_q, geometry.seqlen_k) == plan
    assert fa4.from_fa4(SimpleNamespace(**held), geometry.seqlen_q, geometry.seqlen_k) == plan


def causal(_b, _h, q, k):
    return k <= q


def test_masks_come_from_the_function():
    plan = mp.causal(300, 300)
    held = fa4.to_fa4(plan, mask_mod=causal)

    assert fa4.from_fa4(held, 300, 300, mask_fn=causal) == plan


def test_lists_without_full_blocks():
    held = {
        "mask_block_cnt": torch.tensor([[[1]]]),
        "mask_block_idx": torch.tensor([[[[0]]]]),
        "full_block_cnt": None,
        "full_block_idx": None,
        "block_size": (4, 4),
    }
    assert fa4.from_fa4(held, 4, 4, mask_fn=causal) == mp.causal(4, 4, block_size=(4, 4))


def test_one_head_of_c2():
    """Every Q block lists KV block 0 only: keys 0 to 63 (flash-attention 2897)."""
    held = {
        "mask_block_cnt": torch.zeros(1, 2, 4, dtype=torch.int32),
        "mask_block_idx": torch.zeros(1, 2, 4, 8, dtype=torch.int32),
        "full_block_cnt": torch.ones(1, 2, 4, dtype=torch.int32),
        "full_block_idx": torch.zeros(1, 2, 4, 8, dtype=torch.int32),
    }
    plan = fa4.from_fa4(held, 512, 512, block_size=(128, 64))

    assert bool(plan.to_dense()[..., :64].all())
    assert not bool(plan.to_dense()[..., 64:].any())
    rows = plan.transpose()
    assert rows.col.tolist() == [0, 1, 2, 3]
    assert rows.row_ptr.tolist() == [0] + [4] * 8


def lists(**changes):
    held = {
        "mask_block_cnt": torch.tensor([[[1]]]),
        "mask_block_idx": torch.tensor([[[[0]]]]),
        "full_block_cnt": torch.tensor([[[0]]]),
        "full_block_idx": torch.tensor([[[[0]]]]),
        "block_size": (4, 4),
    }
    return held | changes


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: fa4.to_fa4(mp.causal(4, 4)), "mask blocks without a mask"),
        (lambda: fa4.from_fa4(lists(), 4, 4), "mask_fn"),
        (lambda: fa4.from_fa4(lists(block_size=None), 4, 4), "block size is not given"),
        (lambda: fa4.from_fa4(lists(), 4, 4, block_size=(2, 2)), "(2, 2) and (4, 4)"),
        (
            lambda: fa4.from_fa4(lists(mask_block_cnt=None), 4, 4),
            "lists of mask blocks are",
        ),
        (lambda: fa4.from_fa4(lists(full_block_cnt=None), 4, 4), "pass both or neither"),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
