"""Block masks, token masks and mask functions against loops and dense tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

import maskplan as mp
from tests.oracle import assert_plan
from tests.strategies import (
    block_masks,
    block_sizes,
    dense_masks,
    geometries,
    head_shapes,
    lengths,
    restrided,
)


def blown_up(mask: torch.Tensor, geometry: mp.Geometry) -> torch.Tensor:
    """bool [batch, heads, SQ, SK] of a block mask, pair by pair."""
    bq, bk = geometry.block_size
    dense = torch.zeros((*mask.shape[:2], geometry.seqlen_q, geometry.seqlen_k), dtype=torch.bool)
    for b, h, row, block in mask.nonzero().tolist():
        for q in range(row * bq, min((row + 1) * bq, geometry.seqlen_q)):
            for k in range(block * bk, min((block + 1) * bk, geometry.seqlen_k)):
                dense[b, h, q, k] = True
    return dense


@settings(max_examples=120)
@given(block_masks())
def test_from_block_mask_keeps_whole_blocks(case):
    mask, geometry = case
    plan = mp.from_block_mask(
        mask, geometry.seqlen_q, geometry.seqlen_k, block_size=geometry.block_size
    )
    assert_plan(plan, blown_up(mask, geometry))
    assert plan.tile_id is None


def test_from_block_mask_takes_2_to_4_axes():
    mask = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    plans = [mp.from_block_mask(part, 16, 20, block_size=(4, 4)) for part in (mask, mask[0])]
    assert [(plan.batch, plan.heads) for plan in plans] == [(2, 3), (1, 3)]
    one = mp.from_block_mask(mask[0, 0], 16, 20, block_size=(4, 4))
    assert_plan(one, plans[0].to_dense()[:1, :1])


def test_a_broadcast_block_mask_is_read_once():
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool).expand(1000, 1000, 2, 2)
    plan = mp.from_block_mask(mask, 200, 200)
    assert (plan.batch, plan.heads, plan.num_patterns, plan.num_blocks) == (1000, 1000, 1, 4)


@st.composite
def token_masks(draw):
    batch, heads = draw(head_shapes())
    shape = (batch, heads, draw(lengths()), draw(lengths()))
    own = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), *shape[2:])
    return restrided(draw, draw(dense_masks(own))).expand(shape)


@settings(max_examples=120)
@given(token_masks(), block_sizes())
def test_from_token_mask_keeps_what_is_true(mask, block_size):
    assert_plan(mp.from_token_mask(mask, block_size=block_size), mask)


def test_from_token_mask_takes_2_to_4_axes():
    mask = torch.rand(2, 3, 40, 50, generator=torch.Generator().manual_seed(0)) < 0.5
    assert_plan(mp.from_token_mask(mask[0, 0], block_size=(16, 16)), mask[:1, :1])
    assert_plan(mp.from_token_mask(mask[0], block_size=(16, 16)), mask[:1])


@settings(max_examples=25)
@given(geometries(), head_shapes(), st.integers(0, 100))
def test_from_mask_fn_agrees_with_flexattention(geometry, heads, seed):
    """Captured tensors indexed by q and k, arithmetic on b and h, and broadcasting results."""
    generator = torch.Generator().manual_seed(seed)
    owner_q = torch.randint(0, 3, (geometry.seqlen_q,), generator=generator)
    owner_k = torch.randint(0, 3, (geometry.seqlen_k,), generator=generator)

    def keep(b, h, q, k):
        return ((owner_q[q] == owner_k[k]) & (q >= k - h)) | (k == b)

    plan = mp.from_mask_fn(
        keep,
        geometry.seqlen_q,
        geometry.seqlen_k,
        batch=heads[0],
        heads=heads[1],
        block_size=geometry.block_size,
    )
    shape = (*heads, geometry.seqlen_q, geometry.seqlen_k)
    expected = torch.zeros(shape, dtype=torch.bool)
    if expected.numel():
        expected = create_mask(keep, *shape, device="cpu")
    assert_plan(plan, expected)


def test_from_mask_fn_joins_its_pieces(monkeypatch):
    """Pieces of 32 keys: none is lost at a seam, and none is doubled."""
    monkeypatch.setattr("maskplan.build.mask_fn._PIECE_PAIRS", 32)
    plan = mp.from_mask_fn(
        lambda _b, _h, q, k: (q * 7 + k * 5) % 3 == 0, 50, 131, block_size=(16, 8)
    )
    rows, cols = torch.arange(50)[:, None], torch.arange(131)
    assert_plan(plan, ((rows * 7 + cols * 5) % 3 == 0)[None, None])


def test_a_mask_fn_that_ignores_the_keys_still_covers_them():
    plan = mp.from_mask_fn(lambda _b, _h, q, _k: q < 3, 10, 12, block_size=(4, 4))
    assert_plan(plan, (torch.arange(10) < 3)[:, None].expand(10, 12)[None, None])


def test_equal_heads_of_a_mask_fn_share_a_pattern():
    plan = mp.from_mask_fn(lambda _b, _h, q, k: q >= k, 20, 20, batch=2, heads=3, block_size=(8, 8))
    assert (plan.batch, plan.heads, plan.num_patterns) == (2, 3, 1)
    causal = torch.ones(20, 20, dtype=torch.bool).tril()
    assert_plan(plan, causal.expand(2, 3, 20, 20))


BAD = {
    "int block mask": (
        lambda: mp.from_block_mask(torch.ones(2, 2, dtype=torch.uint8), 200, 200),
        mp.PlanTypeError,
        ("mask", "uint8", "bool, True where attention is kept", "mask != 0 or mask == 0"),
    ),
    "other blocks": (
        lambda: mp.from_block_mask(torch.ones(2, 3, dtype=torch.bool), 200, 200),
        mp.PlanError,
        ("last two axes", "2 x 3 blocks", "wanted 2 x 2", "200 x 200 tokens in blocks of 128"),
    ),
    "swapped axes": (
        lambda: mp.from_block_mask(torch.ones(2, 3, dtype=torch.bool), 300, 200),
        mp.PlanError,
        ("2 x 3 blocks", "wanted 3 x 2"),
    ),
    "1-d mask": (
        lambda: mp.from_block_mask(torch.ones(2, dtype=torch.bool), 200, 200),
        mp.PlanTypeError,
        ("mask", "1 axes [2]", "[M, N], [heads, M, N] or [batch, heads, M, N]"),
    ),
    "no heads": (
        lambda: mp.from_block_mask(torch.ones(0, 2, 2, dtype=torch.bool), 200, 200),
        mp.PlanError,
        ("mask", "[1, 0, 2, 2]", "at least one"),
    ),
    "float token mask": (
        lambda: mp.from_token_mask(torch.ones(5, 5)),
        mp.PlanTypeError,
        ("mask", "float32", "bool"),
    ),
    "5-d token mask": (
        lambda: mp.from_token_mask(torch.ones(1, 1, 1, 5, 5, dtype=torch.bool)),
        mp.PlanTypeError,
        ("mask", "5 axes", "[batch, heads, SQ, SK]"),
    ),
    "token mask elsewhere": (
        lambda: mp.from_token_mask(torch.ones(5, 5, dtype=torch.bool, device="meta")),
        mp.PlanTypeError,
        ("mask", "device meta", "mask.cpu()"),
    ),
    "score function": (
        lambda: mp.from_mask_fn(lambda _b, _h, q, k: q - k, 5, 5),
        mp.PlanTypeError,
        ("fn", "int64", "bool", "score_mod is not a mask"),
    ),
    "python result": (
        lambda: mp.from_mask_fn(lambda _b, _h, _q, _k: 1, 5, 5),
        mp.PlanTypeError,
        ("fn", "got int", "bool tensor"),
    ),
    "a tensor for a function": (
        lambda: mp.from_mask_fn(torch.ones(5, 5, dtype=torch.bool), 5, 5),
        mp.PlanTypeError,
        ("fn", "got Tensor", "a function of (b, h, q, k)", "from_token_mask"),
    ),
    "no batch": (
        lambda: mp.from_mask_fn(lambda _b, _h, q, k: q >= k, 5, 5, batch=0),
        mp.PlanError,
        ("batch", "got 0", "1 <= batch"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
