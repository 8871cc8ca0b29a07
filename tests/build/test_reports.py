"""Inputs of public reports that builders answer."""

import itertools

import numpy as np
import pytest
import torch

import maskplan as mp
from tests.build.memory import peak_growth_mib
from tests.oracle import assert_plan, dense_of_pairs


def kept_pairs(plan: mp.Plan) -> int:
    """Pairs of the first (batch, head), from the lists alone."""
    (bq, bk), sq, sk = plan.block_size, plan.seqlen_q, plan.seqlen_k
    rows = torch.repeat_interleave(torch.arange(len(plan.row_ptr) - 1), plan.row_ptr.diff())
    height = (sq - rows * bq).clamp(max=bq)
    width = (sk - plan.col.long() * bk).clamp(max=bk)
    if plan.tile_id is None:
        return int((height * width).sum())
    words = plan.tiles.numpy().view(np.uint32)
    bits = torch.from_numpy(np.bitwise_count(words).sum(axis=(1, 2), dtype=np.int64))
    full = plan.tile_id < 0
    return int((height * width)[full].sum() + bits[plan.tile_id[~full].long()].sum())


def full_and_mask(plan: mp.Plan) -> tuple[int, int]:
    masks = 0 if plan.tile_id is None else int((plan.tile_id >= 0).sum())
    return plan.num_blocks - masks, masks


def test_a1_causal_at_96000_tokens():
    """750 x 750 blocks where a dense mask ran out of memory."""
    mp.causal(256, 256)
    grown = peak_growth_mib(lambda: mp.causal(96_000, 96_000))
    plan = mp.causal(96_000, 96_000)
    assert full_and_mask(plan) == (280_875, 750)
    assert kept_pairs(plan) == 96_000 * 96_001 // 2
    assert grown < 100


def test_a1_a_mask_function_at_96000_keys_is_evaluated_in_pieces():
    def keep(_b, _h, q, k):
        return q + 95_488 >= k

    mp.from_mask_fn(keep, 8, 96_000)
    grown = peak_growth_mib(lambda: mp.from_mask_fn(keep, 512, 96_000))
    assert grown < 100
    plan = mp.from_mask_fn(keep, 512, 96_000)
    assert plan == mp.causal(512, 96_000, align="bottom_right")


def test_a2_93600_tokens_leave_a_tail_of_32():
    plan = mp.causal(93_600, 93_600)
    assert plan.geometry.num_q_blocks == 732
    assert full_and_mask(plan) == (732 * 731 // 2, 732)
    assert kept_pairs(plan) == 93_600 * 93_601 // 2
    plan.validate()


def test_a5_documents_of_262144_tokens():
    """Document ids looked up token by token are run lengths."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(200), rng.integers(0, 3000, 200))[: 512 * 512]
    owner = np.concatenate([owner, np.full(512 * 512 - len(owner), 200)])
    runs = np.bincount(owner)
    plan = mp.documents(runs, causal=True)
    assert plan.seqlen_q == 262_144
    assert kept_pairs(plan) == int((runs * (runs + 1) // 2).sum())
    plan.validate()


def test_b2_padding_keys_of_the_tail_are_never_kept():
    """79,200 tokens, 618 blocks of 128 and 96 tokens: the tail is full in range."""
    plan = mp.full(79_200, 79_200)
    assert full_and_mask(plan) == (619**2, 0)
    assert kept_pairs(plan) == 79_200**2
    window = mp.sliding_window(79_200, 79_200, left=1000, right=1000)
    assert kept_pairs(window) == 79_200 * 2001 - 1000 * 1001
    window.validate()


def test_b12_document_cross_attention_with_two_ragged_tails():
    """Q and K of unequal lengths, blocks of 8 that divide neither."""
    q_runs, k_runs = [3, 10, 0, 8], [5, 2, 4, 16]
    q_owner = [n for n, run in enumerate(q_runs) for _ in range(run)]
    k_owner = [n for n, run in enumerate(k_runs) for _ in range(run)]
    made = mp.from_cu_seqlens(
        np.cumsum([0, *q_runs]), np.cumsum([0, *k_runs]), "full", block_size=(8, 8)
    )
    q_ids, k_ids = torch.tensor(q_owner), torch.tensor(k_owner)
    by_function = mp.from_mask_fn(
        lambda _b, _h, q, k: q_ids[q] == k_ids[k], 21, 27, block_size=(8, 8)
    )
    pairs = {
        (0, 0, q, k) for q, k in itertools.product(range(21), range(27)) if q_owner[q] == k_owner[k]
    }
    assert_plan(made, dense_of_pairs(pairs, (1, 1, 21, 27)))
    assert made == by_function


def test_b13_a_mask_for_other_lengths_is_refused_with_both_numbers():
    mask = torch.ones(12, 12, dtype=torch.bool)  # of 1500 tokens
    with pytest.raises(mp.PlanError, match=r"got 12 x 12 blocks, wanted 4 x 4, for 500 x 500"):
        mp.from_block_mask(mask, 500, 500)
    lists = torch.zeros(1, 1, 1500, 4, dtype=torch.int32)
    with pytest.raises(mp.PlanError, match=r"got 1500, wanted 500"):
        mp.from_topk(lists, 1500, seqlen_q=500)


@pytest.mark.parametrize("side", [4, 16, 96, 200])
def test_b16_any_block_size_says_the_same(side):
    plan = mp.causal(70, 70, block_size=(side, side))
    assert_plan(plan, torch.ones(70, 70, dtype=torch.bool).tril()[None, None])


def test_c2_every_q_block_lists_block_0_alone():
    """512 queries, blocks of (128, 64): four full entries, and no other."""
    cnt = torch.ones(1, 1, 4, dtype=torch.int32)
    plan = mp.from_block_lists(cnt, torch.zeros(1, 1, 4, 8).int(), 512, 512, block_size=(128, 64))
    assert (plan.col.tolist(), plan.tile_id, plan.row_ptr.tolist()) == (
        [0] * 4,
        None,
        [0, 1, 2, 3, 4],
    )
    expected = torch.zeros(1, 1, 512, 512, dtype=torch.bool)
    expected[..., :64] = True
    assert_plan(plan, expected)


def test_c10_lanes_past_the_length_are_ignored_with_valid_ids_in_them():
    lists = torch.arange(64).expand(1, 1, 100, 64)
    lengths = (torch.arange(100) % 65)[None, None]
    plan = mp.from_topk(lists, 64, block_size=(16, 16), lengths=lengths)
    assert_plan(plan, (torch.arange(64) < lengths[..., None]))


@pytest.mark.parametrize("filler", [64, 2_147_480_000, 2**31 - 1])
def test_c11_ids_past_the_keys_are_refused_and_the_error_says_how_to_bring_them_in(filler):
    lists = torch.tensor([[7, 63, filler, 2]], dtype=torch.int32)[None, None]
    with pytest.raises(mp.PlanError) as caught:
        mp.from_topk(lists, 64, block_size=(1, 8))
    remedy = "from_topk(indices.masked_fill(indices >= 64, -1), ...)"
    assert remedy in str(caught.value)
    plan = mp.from_topk(lists.masked_fill(lists >= 64, -1), 64, block_size=(1, 8))
    assert_plan(plan, dense_of_pairs({(0, 0, 0, k) for k in (7, 63, 2)}, (1, 1, 1, 64)))


def test_c12_layouts_and_bases_are_said_not_guessed():
    """[tokens, topk] and [tokens, 1, topk] are refused; said as [1, 1, tokens, topk] they plan."""
    tokens = torch.tensor([[3, 1], [0, 2]])
    for shape in ((2, 2), (2, 1, 2)):
        with pytest.raises(mp.PlanTypeError, match=r"\[batch, heads, rows, topk\]"):
            mp.from_topk(tokens.view(shape), 4)
    plan = mp.from_topk(tokens[None, None], 4, block_size=(1, 1))
    assert plan.col.tolist() == [1, 3, 0, 2]
    second = torch.stack([tokens, tokens + 4])[:, None]
    both = mp.from_topk(second, 4, block_size=(1, 1), base="global")
    assert (both.num_patterns, both.pattern_id.tolist()) == (1, [[0], [0]])


def test_i1_windows_of_any_parity_reach_as_far_as_they_say():
    """A window of 8 keys, even, over 32 x 32 + 1 tokens."""
    plan = mp.sliding_window(1025, 1025, left=4, right=3)
    assert kept_pairs(plan) == 1025 * 8 - (4 + 3 + 2 + 1) - (3 + 2 + 1)


@pytest.mark.parametrize(("sq", "sk"), [(0, 0), (0, 5), (5, 0), (1, 1), (1, 300), (300, 1)])
def test_c6_no_tokens_one_token_one_block(sq, sk):
    """Every builder answers for lengths of 0, a single token and N = 1."""
    m, n = -(-sq // 128), -(-sk // 128)
    dense = torch.ones(1, 1, sq, sk, dtype=torch.bool)
    every = torch.arange(sk).expand(1, 1, sq, sk)
    blocks = torch.arange(n).expand(m, n)
    made = [
        mp.full(sq, sk),
        mp.sliding_window(sq, sk, left=None, right=None, align="top_left"),
        mp.from_ranges([[0, sq]], [[0, sk]], "full", sq, sk),
        mp.from_cu_seqlens([0, sq], [0, sk]),
        mp.from_topk(every, sk),
        mp.from_topk(blocks[None, None], sk, rows="block", unit="block", seqlen_q=sq),
        mp.from_block_mask(torch.ones(m, n, dtype=torch.bool), sq, sk),
        mp.from_token_mask(dense),
        mp.from_mask_fn(lambda _b, _h, q, k: (q >= 0) & (k >= 0), sq, sk),
        mp.from_block_lists(torch.full((m,), n), blocks, sq, sk),
        mp.from_bsr(np.arange(m + 1) * n, blocks.flatten(), sq, sk),
    ]
    for plan in made:
        assert_plan(plan, dense)
        assert plan == made[0]
