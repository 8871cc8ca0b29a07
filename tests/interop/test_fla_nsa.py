"""fla's NSA block indices, padded with T."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import fla_nsa
from tests.oracle import assert_plan, dense_of_pairs


@st.composite
def selections(draw):
    """(block_indices int64 [B, T, H, S] padded with T, counts or None, select_block)."""
    seqlen, select = draw(st.integers(1, 40)), draw(st.sampled_from([1, 3, 8, 64]))
    shape = (draw(st.integers(1, 2)), seqlen, draw(st.integers(1, 2)), draw(st.integers(1, 4)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    blocks = torch.randint(0, -(-seqlen // select), shape, generator=generator)
    unused = torch.rand(shape, generator=generator) < 0.3
    blocks = blocks.masked_fill(unused, seqlen)
    kind = draw(st.sampled_from(["none", "tensor", "number"]))
    counts = {
        "none": None,
        "tensor": torch.randint(0, shape[3] + 1, shape[:3], generator=generator),
        "number": draw(st.integers(0, shape[3])),
    }[kind]
    return blocks, counts, select


@settings(max_examples=60)
@given(selections(), st.sampled_from([(1, 1), (8, 16), (128, 128)]))
def test_selected_blocks_up_to_the_query(case, block_size):
    blocks, counts, select = case
    batch, seqlen, heads, slots = blocks.shape
    pairs = set()
    for b, t, h, slot in (
        torch.cartesian_prod(*map(torch.arange, blocks.shape)).view(-1, 4).tolist()
    ):
        count = slots if counts is None else counts if isinstance(counts, int) else counts[b, t, h]
        block = int(blocks[b, t, h, slot])
        if slot < count and block != seqlen:
            for key in range(block * select, min((block + 1) * select, t + 1)):
                pairs.add((b, h, t, key))
    plan = fla_nsa.from_block_indices(blocks, counts, select_block=select, block_size=block_size)

    assert_plan(plan, dense_of_pairs(pairs, (batch, heads, seqlen, seqlen)))
    indices, number = fla_nsa.to_block_indices(plan, select_block=select)
    again = fla_nsa.from_block_indices(indices, number, select_block=select, block_size=block_size)
    assert again == plan
    assert bool((indices.diff(dim=-1) >= 0).all())


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (
            lambda: fla_nsa.from_block_indices(torch.tensor([[[[-1]]]])),
            "block_indices[b=0, t=0, h=0, slot=0]: got -1, wanted T = 1",
        ),
        (lambda: fla_nsa.from_block_indices(torch.tensor([[[[2]]]])), "got 2"),
        (lambda: fla_nsa.from_block_indices(torch.zeros(1, 4, 1, 2).int(), 3), "topk = 2"),
        (lambda: fla_nsa.from_block_indices(torch.zeros(4, 1, 2).int()), "[B, T, H, S]"),
        *(
            (
                lambda shape=shape: fla_nsa.from_block_indices(
                    torch.zeros(1, 4, 1, 1).int(), torch.ones(shape).int()
                ),
                f"block_counts: got shape {list(shape)}, wanted [1, 4, 1]",
            )
            for shape in ((1, 3, 1), (1, 1, 1), (2, 4, 1), (1, 4, 2))
        ),
        (lambda: fla_nsa.to_block_indices(mp.full(4, 5)), "4 queries and 5 keys"),
        (lambda: fla_nsa.to_block_indices(mp.full(4, 4), select_block=2), "whole causal blocks"),
        (
            lambda: fla_nsa.to_block_indices(
                mp.sliding_window(8, 8, left=2, right=0), select_block=4
            ),
            "plan is not one of NSA's",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
