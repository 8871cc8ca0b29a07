"""FlashMLA's indices: what is no key, lanes past a length, and pages."""

import pytest
import torch
from hypothesis import given, settings

import maskplan as mp
from maskplan.interop import flashmla
from tests.oracle import assert_plan, dense_of_pairs
from tests.strategies import plans, token_topk

PAD = 2_147_480_000  # what FlashMLA's own tests put into unused lanes


def test_both_ways_of_no_key_and_lanes_past_the_length():
    """-1 and anything from s_kv on are no keys; lanes past topk_length count for nothing."""
    indices = torch.tensor([[[0, PAD, -1, 3]], [[4, 5, 1, 2]]], dtype=torch.int32)
    plan = flashmla.from_indices(indices, 5, topk_length=torch.tensor([4, 2]), block_size=(2, 2))

    assert_plan(plan, dense_of_pairs({(0, 0, 0, 0), (0, 0, 0, 3), (0, 0, 1, 4)}, (1, 1, 2, 5)))


@given(token_topk())
def test_indices_against_their_pairs(case):
    indices, geometry = case.indices[:1], case.geometry
    lengths = None if case.lengths is None else case.lengths[0, 0]
    if lengths is not None:  # one length a query, over all heads
        beyond = torch.arange(indices.shape[-1]) >= lengths[:, None]
        inside = (indices < -1) & ~beyond
        indices = indices.masked_fill(inside, -1)
    pairs = set()
    for h in range(indices.shape[1]):
        for q in range(indices.shape[2]):
            count = indices.shape[3] if lengths is None else int(lengths[q])
            for key in indices[0, h, q, :count].tolist():
                if 0 <= key < geometry.seqlen_k:
                    pairs.add((0, h, q, key))
    plan = flashmla.from_indices(
        indices[0].transpose(0, 1),
        geometry.seqlen_k,
        topk_length=lengths,
        block_size=geometry.block_size,
    )

    shape = (1, indices.shape[1], geometry.seqlen_q, geometry.seqlen_k)
    assert_plan(plan, dense_of_pairs(pairs, shape))


@settings(max_examples=50)
@given(plans())
def test_a_plan_comes_back(plan):
    if plan.batch != 1:
        with pytest.raises(mp.PlanError, match="format has no batch"):
            flashmla.to_indices(plan)
        return
    indices, lengths = flashmla.to_indices(plan)

    assert indices.shape[:2] == (plan.seqlen_q, plan.heads)
    assert lengths.tolist() == plan.to_dense()[0].sum(dim=2).amax(dim=0).tolist()
    again = flashmla.from_indices(
        indices, plan.seqlen_k, topk_length=lengths, block_size=plan.block_size
    )
    assert again == plan


def test_a_width_that_is_too_small_is_refused():
    with pytest.raises(mp.PlanError, match=r"topk: got 3, wanted at least 4"):
        flashmla.to_indices(mp.causal(4, 4), topk=3)
    assert flashmla.to_indices(mp.causal(4, 4), topk=64)[0].shape == (4, 1, 64)


def test_paged_indices_are_keys_of_their_own_sequence():
    table = torch.tensor([[7, 2], [0, -1]])
    indices = torch.tensor([[[7 * 4 + 1, 2 * 4 + 3, -1]], [[0, 3, 999]]], dtype=torch.int32)
    plan = flashmla.from_decode_indices(
        indices,
        8,
        topk_length=torch.tensor([3, 2]),
        block_table=table,
        page_size=4,
        block_size=(1, 4),
    )

    pairs = {(0, 0, 0, 1), (0, 0, 0, 7), (1, 0, 0, 0), (1, 0, 0, 3)}
    assert_plan(plan, dense_of_pairs(pairs, (2, 1, 1, 8)))


def test_decode_indices_without_pages():
    plan = flashmla.from_decode_indices(torch.tensor([[[2, PAD, 0]]]), 3, block_size=(1, 1))
    assert plan.col.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: flashmla.from_indices(torch.tensor([[[-2]]]), 4), "got -2"),
        (lambda: flashmla.from_indices(torch.tensor([[1]]), 4), "wanted [s_q, h_kv, topk]"),
        (
            lambda: flashmla.from_indices(torch.tensor([[[1]]]), 4, topk_length=torch.tensor([2])),
            "0 <= length <= topk = 1",
        ),
        (
            lambda: flashmla.from_decode_indices(torch.tensor([[[1]]]), 4, page_size=2),
            "page_size=2, no block_table",
        ),
        (
            lambda: flashmla.from_decode_indices(
                torch.tensor([[[9]]]), 4, page_size=2, block_table=torch.tensor([[1, 0]])
            ),
            "got page 4, wanted one of its pages [0, 1]",
        ),
        (
            lambda: flashmla.from_decode_indices(
                torch.tensor([[[9]]]), 4, page_size=2, block_table=torch.tensor([[1], [0]])
            ),
            "got 2 rows",
        ),
        *(
            (
                lambda rows=rows, paged=paged: flashmla.from_decode_indices(
                    torch.zeros(2, 1, 1).int(), 4, topk_length=torch.ones(rows).int(), **paged
                ),
                f"got {rows} lengths, wanted 2",
            )
            for rows in (1, 3)
            for paged in ({}, {"page_size": 2, "block_table": torch.tensor([[0], [1]])})
        ),
        (
            lambda: flashmla.from_indices(
                torch.zeros(2, 1, 1).int(), 4, topk_length=torch.ones(1).int()
            ),
            "got 1 lengths, wanted 2",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
