"""FlashInfer's BSR, and its blocks of variable size."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import flashinfer
from tests.handmade import plan_of
from tests.oracle import assert_plan
from tests.strategies import block_masks, plans


@given(plans(heads=(1, 1)), st.booleans())
def test_bsr_with_masks_both_ways(plan, shuffle):
    bsr = flashinfer.to_bsr(plan)
    indices, mask, bounds = bsr.indices, bsr.mask, bsr.indptr.tolist()
    if shuffle:  # FlashInfer does not ask for an order within a row
        order = np.concatenate(
            [np.arange(a, b)[::-1] for a, b in itertools.pairwise(bounds)]
            or [np.empty(0, np.int64)]
        )
        order = torch.from_numpy(order.astype(np.int64))
        indices, mask = indices[order], None if mask is None else mask[order]
    again = flashinfer.from_flashinfer_bsr(
        bsr.indptr, indices, bsr.M, bsr.N, block_size=(bsr.R, bsr.C), mask=mask
    )

    assert again == plan
    assert (mask is None) == (plan.tile_id is None)


def test_the_documented_example():
    """Six tokens in blocks of 1 x 1, as FlashInfer's docstring has it."""
    plan = flashinfer.from_flashinfer_bsr(
        torch.tensor([0, 2, 3, 4]), torch.tensor([0, 2, 2, 1]), 3, 3, block_size=(1, 1)
    )
    assert plan.to_dense()[0, 0].int().tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0]]


@st.composite
def variable_blocks(draw):
    """(map bool [H, MB, NB], row sizes [H, MB], column sizes [H, NB]) of one length each."""
    heads, rows, cols = (draw(st.integers(1, 3)) for _ in range(3))
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def sizes(count: int) -> torch.Tensor:
        total = draw(st.integers(0, 60))
        ends = np.sort(rng.integers(0, total + 1, (heads, count - 1)), axis=1)
        return torch.from_numpy(np.diff(ends, axis=1, prepend=0, append=total)).to(torch.int32)

    mask = torch.from_numpy(rng.random((heads, rows, cols)) < 0.5)
    return mask, sizes(rows), sizes(cols)


@given(variable_blocks(), st.sampled_from([(8, 8), (16, 32), (1, 1)]))
def test_variable_blocks_are_exact(case, block_size):
    mask, row_sizes, col_sizes = case
    plan = flashinfer.from_variable_blocks(*case, block_size=block_size)
    expected = torch.stack(
        [
            mask[head].repeat_interleave(row_sizes[head], 0).repeat_interleave(col_sizes[head], 1)
            for head in range(len(mask))
        ]
    )

    assert_plan(plan, expected[None])


@given(block_masks())
def test_variable_blocks_both_ways(case):
    mask, geometry = case
    plan = mp.from_block_mask(
        mask[:1], geometry.seqlen_q, geometry.seqlen_k, block_size=geometry.block_size
    )
    parts = flashinfer.to_variable_blocks(plan)

    assert torch.equal(parts[0], mask[0])
    if geometry.seqlen_q and geometry.seqlen_k:
        again = flashinfer.from_variable_blocks(*parts, block_size=geometry.block_size)
        assert again == plan


def two_heads() -> mp.Plan:
    masks = torch.stack([torch.ones(4, 4), torch.eye(4)]).bool()
    return plan_of(masks, (2, 2), [[0, 1]]).canonical()


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: flashinfer.to_bsr(two_heads()), "2 distinct patterns over 2 heads"),
        (lambda: flashinfer.to_variable_blocks(two_heads()), "blocks that are kept in part"),
        (
            lambda: flashinfer.to_variable_blocks(
                plan_of(torch.ones(1, 4, 4).bool(), (2, 2), [[0], [0]])
            ),
            "format has no batch",
        ),
        (
            lambda: flashinfer.from_flashinfer_bsr(
                [0, 1], [0], 2, 2, block_size=(2, 2), mask=torch.ones(2, 2, 2).bool()
            ),
            "shape [2, 2, 2], wanted [1, 2, 2]",
        ),
        (
            lambda: flashinfer.from_variable_blocks(
                torch.ones(2, 1, 1).bool(), torch.tensor([[3], [4]]), torch.tensor([[3], [3]])
            ),
            "block_row_sz: got sums [3, 4]",
        ),
        (
            lambda: flashinfer.from_variable_blocks(
                torch.ones(1, 2, 1).bool(), torch.tensor([[-1, 4]]), torch.tensor([[3]])
            ),
            "smallest size -1",
        ),
        (
            lambda: flashinfer.from_variable_blocks(
                torch.ones(1, 4, 1).bool(), torch.full((1, 4), 2**62), torch.tensor([[3]])
            ),
            "largest 4611686018427387904",
        ),
        (
            lambda: flashinfer.from_variable_blocks(
                torch.ones(0, 1, 1).bool(), torch.ones(0, 1).int(), torch.ones(0, 1).int()
            ),
            "and a head",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.PlanError) as caught:
        call()
    assert part in str(caught.value)
