"""MIT's Block-Sparse-Attention: dense, sparse and streaming heads, and descending lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import block_sparse_attention as bsa
from tests.oracle import assert_plan

LENGTHS = st.sampled_from([1, 100, 128, 129, 300, 400])


@st.composite
def calls(draw):
    """Arguments of `from_head_masks`."""
    seqlen_q, seqlen_k = draw(LENGTHS), draw(LENGTHS)
    types = draw(st.lists(st.sampled_from([0, 1, -1, -2]), min_size=1, max_size=3))
    causal = draw(st.booleans())
    exact = causal and draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shape = (draw(st.integers(1, 2)), types.count(1), -(-seqlen_q // 128), -(-seqlen_k // 128))
    mask = torch.rand(shape, generator=generator) < 0.5
    high = 200 if exact else 4
    info = torch.randint(0, high, (2 * len(types),), generator=generator)
    return mask, types, info, seqlen_q, seqlen_k, causal, exact


def expected(mask, types, info, seqlen_q, seqlen_k, causal, exact):
    """The reference masks of the library's own tests, pair by pair."""
    batch, offset = len(mask), seqlen_k - seqlen_q
    dense = torch.zeros(batch, len(types), seqlen_q, seqlen_k, dtype=torch.bool)
    q, k = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)[None]
    row, col = q // 128, k // 128
    sparse = 0
    for head, kind in enumerate(types):
        sink, local = info[2 * head : 2 * head + 2].tolist()
        if kind == 0:
            dense[:, head] = True
        elif kind == 1:
            dense[:, head] = mask[:, sparse][:, row, col]
            sparse += 1
        elif exact:
            dense[:, head] = (k >= q + offset - (local - 1)) | (k < sink)
        elif causal:
            start = max(-offset // 128, 0)
            ends = -(-max(offset, 0) // 128) + 1 + row - start
            dense[:, head] = (((col < ends) & (col >= ends - local)) | (col < sink)) & (
                row >= start
            )
        else:
            dense[:, head] = (col >= -(-seqlen_k // 128) - local) | (col < sink)
    return dense & (k <= q + offset) if causal else dense


@settings(max_examples=60)
@given(calls())
def test_head_masks_against_the_reference(call):
    mask, types, info, seqlen_q, seqlen_k, causal, exact = call
    plan = bsa.from_head_masks(
        mask, types, info, seqlen_q, seqlen_k, causal=causal, exact_streaming=exact
    )

    assert_plan(plan, expected(*call))


@settings(max_examples=40)
@given(calls())
def test_head_masks_both_ways(call):
    mask, types, info, seqlen_q, seqlen_k, causal, _ = call
    plan = bsa.from_head_masks(mask, types, info, seqlen_q, seqlen_k, causal=causal)
    base, kinds = bsa.to_head_masks(plan, causal=causal)

    assert base.shape[1] == int(kinds.sum())
    again = bsa.from_head_masks(base, kinds, None, seqlen_q, seqlen_k, causal=causal)
    assert again == plan


@settings(max_examples=40)
@given(calls())
def test_row_lists_both_ways(call):
    mask, _, _, seqlen_q, seqlen_k, _, _ = call
    if not mask.shape[1]:
        return
    plan = mp.from_block_mask(mask, seqlen_q, seqlen_k)
    lists = bsa.to_row_lists(plan)

    for row, listed in zip(mask.flatten(0, 2), lists.flatten(0, 2), strict=True):
        blocks = row.nonzero()[:, 0].flip(0).tolist()
        assert listed.tolist() == blocks + [-1] * (len(row) - len(blocks))
    assert bsa.from_row_lists(lists, seqlen_q, seqlen_k) == plan


def one(**changes):
    arguments = {
        "base_blockmask": torch.ones(1, 1, 2, 2).bool(),
        "head_mask_type": [1, 0],
        "streaming_info": None,
        "seqlen_q": 200,
        "seqlen_k": 200,
        "causal": False,
    } | changes
    return bsa.from_head_masks(**arguments)


def rows(*values):
    return bsa.from_row_lists(torch.tensor([[[values]]]), 100, 1000)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: one(head_mask_type=[2, 0]), "head_mask_type[0]: got 2"),
        (lambda: one(head_mask_type=[]), "no heads"),
        (lambda: one(head_mask_type=[1, 1]), "shape [1, 1, 2, 2], wanted [B, 2, 2, 2]"),
        (lambda: one(seqlen_k=300), "wanted [B, 1, 2, 3]"),
        (lambda: one(head_mask_type=[1, -1]), "streaming heads without sizes"),
        (
            lambda: one(head_mask_type=[1, -1], streaming_info=[1, 1, 1, -1]),
            "streaming_info[2:4]: got [1, -1]",
        ),
        (lambda: one(exact_streaming=True), "exact streaming is not causal"),
        (lambda: rows(1, 3), "list does not descend in row_blockmask[b=0, h=0, row=0, slot=1]"),
        (lambda: rows(3, 3), "got 3, wanted less than 3"),
        (lambda: rows(3, -1, 2), "slot=2]: got 2"),
        (lambda: rows(8, 3), "block out of range"),
        (lambda: rows(3, -2), "got -2"),
        (
            lambda: bsa.to_head_masks(mp.causal(200, 200), causal=False),
            "kept in part in Block-Sparse-Attention base_blockmask",
        ),
        (
            lambda: bsa.to_head_masks(mp.full(200, 200), causal=True),
            "keeps pairs past the causal diagonal",
        ),
        (lambda: bsa.to_row_lists(mp.causal(200, 200)), "superset=True"),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
