"""FlexAttention's BlockMask, judged by torch itself: create_block_mask and eager attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import (
    BlockMask,
    create_block_mask,
    create_mask,
    flex_attention,
)

import maskplan as mp
from maskplan.interop import flex
from tests.handmade import plan_of
from tests.strategies import geometries, plans

nonempty = geometries(low=1)
# Eager attention is what a CPU test is after; its hint to compile is for GPUs.
eager = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@settings(max_examples=60)
@given(st.data())
def test_the_mask_mod_is_the_plan(data):
    plan = data.draw(plans(geometry=data.draw(nonempty)))
    mask = create_mask(
        flex.mask_mod_of(plan), plan.batch, plan.heads, plan.seqlen_q, plan.seqlen_k, device="cpu"
    )

    assert torch.equal(mask, plan.to_dense())


@settings(max_examples=40)
@given(st.data())
def test_block_masks_both_ways(data):
    plan = data.draw(plans(geometry=data.draw(nonempty)))
    block_mask = flex.to_block_mask(plan)
    made = create_block_mask(
        block_mask.mask_mod,
        plan.batch,
        plan.heads,
        plan.seqlen_q,
        plan.seqlen_k,
        device="cpu",
        BLOCK_SIZE=plan.block_size,
    )

    assert block_mask.shape == made.shape
    assert torch.equal(block_mask.to_dense(), made.to_dense())
    assert torch.equal(block_mask.full_kv_num_blocks, _full_in_range(plan))
    assert flex.from_block_mask_object(block_mask) == plan
    assert flex.from_block_mask_object(made) == plan


def _full_in_range(plan):
    return plan.block_sparse_tensors().full_block_cnt


def prefix(_b, h, q, k):
    return (k <= q) | (k < 5 + 3 * h)


def test_what_create_block_mask_makes_is_read_exactly():
    for heads, sizes in ((3, (128, 128)), (3, (32, 64)), (1, 16)):
        block_mask = create_block_mask(prefix, 1, heads, 200, 170, device="cpu", BLOCK_SIZE=sizes)
        plan = flex.from_block_mask_object(block_mask)
        expected = create_mask(prefix, 1, heads, 200, 170, device="cpu")
        assert torch.equal(plan.to_dense(), expected)


def test_only_partial_blocks_are_evaluated():
    asked = []

    def counting(_b, _h, q, k):
        asked.append(1)
        return (k <= q) & (q < 10_000)

    block_mask = create_block_mask(counting, None, None, 512, 512, device="cpu")
    asked.clear()
    plan = flex.from_block_mask_object(block_mask)

    assert plan == mp.causal(512, 512)
    assert len(asked) == 1  # one call, over the 4 partial blocks of 10


def test_heads_that_share_lists_are_told_apart_when_asked_for():
    block_mask = create_block_mask(prefix, None, None, 40, 40, device="cpu", BLOCK_SIZE=64)
    plan = flex.from_block_mask_object(block_mask, batch=2, heads=3)

    assert (plan.batch, plan.heads) == (2, 3)
    assert torch.equal(plan.to_dense()[1], create_mask(prefix, 1, 3, 40, 40, device="cpu")[0])


@eager
def test_attention_by_the_block_mask_is_attention_by_the_plan():
    masks = torch.rand(3, 70, 90, generator=torch.Generator().manual_seed(0)) < 0.3
    masks[:, 3] = True
    masks[..., 0] = True  # no row is empty: flex gives those its own way
    plan = plan_of(masks, (16, 32), [[0, 1], [2, 1]]).canonical()
    q, k, v = (
        torch.randn(2, 2, n, 16, generator=torch.Generator().manual_seed(n)) for n in (70, 90, 91)
    )
    v = v[:, :, :90]
    out = flex_attention(q, k, v, block_mask=flex.to_block_mask(plan))
    scores = (q @ k.transpose(-1, -2)) / 4
    expected = scores.masked_fill(~plan.to_dense(), float("-inf")).softmax(-1) @ v

    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@eager
def test_a_plan_of_one_head_serves_all():
    block_mask = flex.to_block_mask(mp.causal(64, 64))
    x = torch.randn(2, 4, 64, 16)

    torch.testing.assert_close(
        flex_attention(x, x, x, block_mask=block_mask),
        torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: flex.to_block_mask(mp.full(0, 4)), "block masks have no length 0"),
        (lambda: flex.from_block_mask_object(prefix), "argument is not a BlockMask"),
        (
            lambda: flex.from_block_mask_object(
                create_block_mask(prefix, 1, 2, 40, 40, device="cpu"), heads=3
            ),
            "heads does not fit the block mask in heads: got 3, wanted 2",
        ),
        (
            lambda: flex.from_block_mask_object(
                BlockMask.from_kv_blocks(
                    torch.tensor([[[1]]]), torch.tensor([[[[7]]]]), compute_q_blocks=False
                )
            ),
            "block out of range",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
