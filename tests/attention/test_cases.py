"""Public reports of wrong sparse attention, as named tests: what failed elsewhere holds here."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from maskplan.attention import attention
from tests.attention.problems import WAYS, assert_close, problem


def causal(seqlen_q: int, seqlen_k: int) -> torch.Tensor:
    return torch.ones(1, 1, seqlen_q, seqlen_k, dtype=torch.bool).tril(seqlen_k - seqlen_q)


@pytest.mark.parametrize("way", WAYS[:2])
def test_full_blocks_alone_are_not_taken_for_dense(way):
    """A kernel ignored its lists and gave dense attention: every row visits KV block 0 alone."""
    mask = torch.zeros(1, 1, 512, 512, dtype=torch.bool)
    mask[..., :64] = True
    made = problem(mask, (128, 64), heads=2, dims=(64, 64), dtype=torch.float16)
    assert made.plan.tile_id is None
    found = made.run(*way)

    assert_close(found, made.expected(), torch.float16)
    first = [x[:, :64].transpose(1, 2).float() for x in (made.k, made.v)]
    near = torch.nn.functional.scaled_dot_product_attention(made.q.transpose(1, 2).float(), *first)
    torch.testing.assert_close(found["out"].transpose(1, 2).float(), near, rtol=1e-2, atol=1e-3)
    assert (found["dk"][:, 64:] == 0).all()


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_causal_gradients_by_head_dim(head_dim, way):
    """The forward was exact and dQ, dK, dV were off by hundreds at one head dim."""
    made = problem(causal(200, 200), (128, 128), heads=2, dims=(head_dim, head_dim))

    assert_close(made.run(*way), made.expected(), torch.float32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("batch", "seqlen_q", "seqlen_k"), [(1, 0, 5), (1, 5, 0), (0, 5, 5), (1, 0, 0)]
)
def test_nothing_to_attend(batch, seqlen_q, seqlen_k, way):
    """Empty lengths and an empty batch: out 0, LSE -inf, gradients 0, no crash."""
    mask = torch.ones(1, 1, seqlen_q, seqlen_k, dtype=torch.bool)
    made = problem(mask, (4, 4), batch=batch, heads=2, kv_heads=1, dims=(8, 6))
    found = made.run(*way)

    assert found["out"].shape == (batch, seqlen_q, 2, 6)
    assert found["lse"].shape == (batch, 2, seqlen_q)
    assert (found["lse"] == -torch.inf).all()
    for name in ("out", "dq", "dk", "dv"):
        assert (found[name] == 0).all()
    assert found["dk"].shape == made.k.shape


@pytest.mark.parametrize("way", WAYS)
def test_a_random_block_mask_against_dense(way):
    """A context mask of random blocks differed from dense in a third of its elements."""
    blocks = torch.rand(1, 2, 7, 9, generator=torch.Generator().manual_seed(6)) < 0.4
    mask = blocks.repeat_interleave(32, 2).repeat_interleave(16, 3)[:, :, :210, :140]
    made = problem(mask, (32, 16), batch=2, heads=2)

    assert_close(made.run(*way), made.expected(), torch.float32)


@pytest.mark.parametrize("way", WAYS)
def test_full_blocks_as_masks_mean_the_same(way):
    """One mask as partial blocks alone and as full plus partial gave different outputs."""
    made = problem(causal(130, 130), (32, 32), heads=2)
    plan = made.plan
    complete = torch.full((1, 32, 1), -1, dtype=torch.int32)
    tiles = torch.cat([plan.tiles, complete, complete & 0])
    full = torch.where(plan.tile_id < 0, len(plan.tiles), plan.tile_id).to(torch.int32)
    edge = plan.col == 4  # the ragged block: 2 keys and 2 queries in range
    assert (plan.tile_id[edge] >= 0).all()
    rows = torch.repeat_interleave(torch.arange(5), plan.row_ptr.diff())
    ragged = torch.zeros(1, 32, 1, dtype=torch.int32)
    ragged[:, :2] = -1
    full[(rows == 4) & ~edge] = len(tiles)
    tiles = torch.cat([tiles, ragged])
    masked = replace(plan, tile_id=full, tiles=tiles).validate()
    assert masked == plan
    found, wanted = replace(made, plan=masked).run(*way), made.run(*way)

    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", [(1, 128), (16, 16), (1, 1)])
def test_queries_without_keys_in_a_top_k(block_size, way):
    """Top-k lists with empty rows: O = 0, LSE = -inf, no gradient, and no NaN."""
    noise = torch.Generator().manual_seed(7)
    mask = torch.zeros(1, 1, 40, 130, dtype=torch.bool)
    for row in range(0, 40, 2):
        mask[0, 0, row, torch.randperm(130, generator=noise)[:8]] = True
    made = problem(mask, block_size, heads=2, kv_heads=1)
    found = made.run(*way)

    assert_close(found, made.expected(), torch.float32)
    assert (found["out"][:, 1::2] == 0).all()
    assert (found["lse"][:, :, 1::2] == -torch.inf).all()
    assert (found["dq"][:, 1::2] == 0).all()


@pytest.mark.parametrize("way", WAYS)
def test_padded_keys_do_not_dilute_the_softmax(way):
    """Padding with zero keys adds e^0 each to the sum unless it is masked: 7 blocks and a tail."""
    seqlen = 7 * 16 + 11
    made = problem(torch.ones(1, 1, seqlen, seqlen, dtype=torch.bool), (16, 16))
    found = made.run(*way)
    heads_first = [x.transpose(1, 2) for x in (made.q, made.k, made.v)]
    dense = torch.nn.functional.scaled_dot_product_attention(*heads_first)

    torch.testing.assert_close(found["out"], dense.transpose(1, 2))


@pytest.mark.parametrize("way", WAYS)
def test_document_cross_attention_with_two_tails(way):
    """Q and KV of other lengths, neither a multiple of the block size 8, crashed elsewhere."""
    queries = torch.tensor([0] * 13 + [1] * 9 + [2] * 5)
    keys = torch.tensor([0] * 6 + [1] * 20 + [2] * 3 + [3] * 4)
    mask = (queries[:, None] == keys)[None, None]
    made = problem(mask, (8, 8), heads=2)

    assert_close(made.run(*way), made.expected(), torch.float32)


@pytest.mark.parametrize("way", WAYS)
def test_each_head_has_its_own_mask(way):
    """Masks per head, over grouped KV heads and per batch."""
    mask = torch.rand(2, 6, 50, 60, generator=torch.Generator().manual_seed(8)) < 0.3
    made = problem(mask, (16, 32), batch=2, heads=6, kv_heads=2)

    assert_close(made.run(*way), made.expected(), torch.float32)


def test_a_plan_for_8192_tokens_is_refused_for_1024():
    """A mask of 8192 tokens used with 1024 gave wrong numbers elsewhere."""
    made = problem(torch.ones(1, 1, 64, 64, dtype=torch.bool), (16, 16))
    q = made.q[:, :32]

    with pytest.raises(mp.PlanError, match=r"got 32 tokens, wanted 64 tokens"):
        attention(q, made.k, made.v, made.plan)
    cropped = made.plan.crop(q=(0, 32))
    torch.testing.assert_close(
        attention(q, made.k, made.v, cropped), made.run()["out"][:, :32], rtol=1e-6, atol=1e-6
    )


def test_one_token():
    made = problem(torch.ones(1, 1, 1, 1, dtype=torch.bool), (128, 128), dims=(5, 3))
    found = made.run()

    torch.testing.assert_close(found["out"], made.v)
    torch.testing.assert_close(found["dv"], made.dout)
