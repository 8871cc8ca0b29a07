"""What is kept and made ready of plans, without a model."""

import pytest
import torch

import maskplan as mp
from maskplan.attention import flex, sm100, sm100_kernels
from maskplan.diffusers import source
from maskplan.diffusers.models import query_like
from maskplan.video import Grid, TokenOrder

ORDER = TokenOrder.tiles(Grid(2, 3, 5, text=4), (2, 2, 2), pad=True)


def test_held_keys_are_tokens_and_unpadded_text():
    held = source.held_keys(ORDER, (4, 1, 4))

    assert held.shape == (3, ORDER.seqlen)
    for sample, length in enumerate((4, 1, 4)):
        for slot, token in enumerate(ORDER.slots.tolist()):
            assert bool(held[sample, slot]) == (0 <= token < 30 + length)
    assert torch.equal(source.held_keys(ORDER, ()), held[:1])
    assert torch.equal(source.held_keys(ORDER, (1, 1)), held[1:2])


def test_the_plan_of_held_keys_is_their_columns():
    held = source.held_keys(ORDER, (4, 1))
    plan = source.keys_plan(mp.full(ORDER.seqlen, ORDER.seqlen, block_size=(8, 8)), held)

    dense = plan.validate().to_dense()
    assert dense.shape == (2, 1, ORDER.seqlen, ORDER.seqlen)
    assert torch.equal(dense, held[:, None, None, :].expand_as(dense))


def test_nothing_held_is_an_empty_plan():
    held = torch.zeros(1, 16, dtype=torch.bool)

    assert not source.keys_plan(mp.full(16, 16, block_size=(8, 8)), held).to_dense().any()


@pytest.mark.parametrize("grad", [True, False])
def test_plans_for_engines_of_others_are_lowered_ahead(monkeypatch, grad):
    """On a machine whose flex backend works: here it is said to."""
    monkeypatch.setattr(flex, "supports", lambda _: None)
    plan = mp.causal(256, 256, block_size=(128, 128))
    like = torch.empty(1, 1, 6, 32, requires_grad=grad)

    ready = source.ready(plan, like, {"backend": "auto", "deterministic": False})

    lists = ready.lists
    assert (ready.engine, lists.heads, lists.kv_heads, lists.head_dim) == ("flex", 6, 6, 32)
    assert (lists.backward is not None) == grad


@pytest.mark.parametrize("block_size", [(128, 128), (384, 384)])
def test_auto_s_choice_of_our_own_kernels_is_lowered_ahead(monkeypatch, block_size):
    """As on a B200 without flash-attn-4; blocks that are cut too, which on the GPU they are not."""
    monkeypatch.setattr(sm100, "supports", sm100_kernels.refused)
    monkeypatch.setattr(sm100_kernels, "missing", lambda: None)
    plan = mp.causal(768, 768, block_size=block_size)
    like = torch.empty(1, 1, 6, 64, dtype=torch.bfloat16)

    ready = source.ready(plan, like, {"backend": "auto", "deterministic": False})

    assert (ready.engine, ready.target.head_dim) == ("sm100", 64)
    assert ready.forward.row_ptr.numel() == 768 // 256 + 1
    q = like.new_zeros(1, 768, 6, 64)
    said = {one.name: one.reason for one in mp.backends(q, q, q, ready)}
    assert said["sm100"] is None


def test_what_runs_plans_as_they_are_gets_the_plan():
    plan = mp.causal(256, 256, block_size=(128, 128))
    like = torch.empty(1, 1, 6, 32)

    for backend in ("auto", "cpu", "reference"):
        assert source.ready(plan, like, {"backend": backend, "deterministic": False}) is plan


def test_engines_that_cannot_are_left_to_attention_to_refuse():
    plan = mp.causal(256, 256, block_size=(128, 128))
    ready = source.ready(plan, torch.empty(1, 1, 2, 32), {"backend": "fa4", "deterministic": False})
    q = torch.zeros(1, 256, 2, 32)

    with pytest.raises(mp.UnsupportedError, match="fa4"):
        mp.attention(q, q, q, ready, backend="fa4")


def test_what_q_is_like_follows_autocast():
    """Plans are made ready for the dtype in which attention will see q."""
    layer = torch.nn.Module()
    layer.inner_dim, layer.heads = 48, 3
    latent = torch.zeros(1, 4, 1, 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        inside = query_like([layer], latent)
        with torch.autocast("cpu", enabled=False):
            off = query_like([layer], latent)

    assert inside.shape == (1, 1, 3, 16)
    assert (inside.dtype, off.dtype) == (torch.bfloat16, torch.float32)
