"""Gathered attention in all that surrounds a call: gradients, bits, caches, layouts, refusals."""

import pytest
import torch
from torch import Tensor

import maskplan as mp
from tests.attention.token_calls import BACKENDS, Call, assert_gate, random_lists


@pytest.mark.parametrize("policy", ["uniform", "union"])
@pytest.mark.parametrize("topk", [2, 12])
def test_gradients_by_finite_differences(policy, topk):
    indices = random_lists((1, 1, 1 if policy == "uniform" else 5), topk, 20).expand(1, 1, 5, topk)
    tiles = mp.TokenTiles.from_topk(indices, 20, policy=policy, group=2, max_coverage=1.0).lower()
    noise = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, tokens, heads, 3, generator=noise, dtype=torch.float64).requires_grad_()
        for tokens, heads in ((5, 2), (20, 1), (20, 1))
    )
    packed = tiles.packed
    for backend in BACKENDS:
        rest = (list(packed.tensors), packed.spec, backend, 0.5, "bshd", "auto", False)
        assert torch.autograd.gradcheck(
            lambda q, k, v, rest=rest: torch.ops.maskplan.attention(q, k, v, *rest), (q, k, v)
        )


def test_equal_calls_give_equal_bits_through_the_operator_too():
    indices = random_lists((1, 2, 150), 30, 400)
    call = Call(indices, 400, heads=8, kv_heads=2, dims=(32, 32))
    lowered = mp.TokenTiles.from_topk(
        indices, 400, policy="union", group=4, max_coverage=1.0
    ).lower()
    first, again = call.run(lowered), call.run(lowered, deterministic=True)
    for name, tensor in first.items():
        assert tensor.equal(again[name]), name
    packed = lowered.packed
    out, lse = torch.ops.maskplan.attention(
        call.q, call.k, call.v, list(packed.tensors), packed.spec, "cpu", 32**-0.5, "bshd", "auto",
        False,
    )  # fmt: skip
    assert out.equal(first["out"])
    assert lse.equal(first["lse"])


def test_a_cache_keeps_tiles_by_the_object_and_lowers_overwritten_ones_again():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", max_coverage=1.0)
    for cache in (mp.PlanCache(), mp.PlanCache(by="digest")):
        call.run(tiles, cache=cache)
        assert_gate(call.run(tiles, cache=cache), call.expected(), torch.float32)
        assert (cache.stats.misses, cache.stats.hits) == (1, 1)
        tiles.valid_counts.mul_(1)
        call.run(tiles, cache=cache)
        assert cache.stats.misses == 2


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_layouts_and_one_and_several_threads(layout):
    indices = random_lists((1, 1, 100), 50, 300)
    call = Call(indices, 300, heads=4, kv_heads=1, dims=(64, 64))
    tiles = mp.TokenTiles.from_topk(indices, 300, policy="union", group=4, max_coverage=1.0)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            q, k, v = call.q, call.k, call.v
            if layout == "bhsd":
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = mp.attention(q, k, v, tiles, layout=layout)
            out = out.transpose(1, 2) if layout == "bhsd" else out
            assert_gate({"out": out}, call.expected(), torch.float32)
    finally:
        torch.set_num_threads(before)


def test_verify_takes_tiles():
    indices = random_lists((1, 2, 150), 30, 400)
    for policy in ("union", "representative"):
        tiles = mp.TokenTiles.from_topk(indices, 400, policy=policy, group=4, max_coverage=1.0)
        for ran in BACKENDS:
            report = mp.verify(tiles, ran, head_dim=16)
            assert report.ok, report
            assert "8 heads over 2" in str(report)


def test_what_does_not_fit_tiles_is_refused():
    indices = random_lists((1, 2, 40), 9, 90)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", group=4, max_coverage=1.0)
    q, k = torch.randn(1, 40, 4, 8), torch.randn(1, 90, 2, 8)
    with pytest.raises(mp.UnsupportedError, match="packed groups of 4 heads, not 2"):
        mp.attention(q, k, k, tiles)
    with pytest.raises(mp.PlanError, match=r"got 41 tokens, wanted 40 tokens"):
        mp.attention(torch.randn(1, 41, 8, 8), k, k, tiles)
    with pytest.raises(mp.PlanError, match="plan has another number of heads"):
        mp.attention(torch.randn(1, 40, 4, 8), k[:, :, :1], k[:, :, :1], tiles)
    with pytest.raises(mp.PlanError, match="lowered token tiles are no plan"):
        mp.verify(tiles.lower())
    with pytest.raises(mp.UnsupportedError, match='no plan that is lowered for "tokens"'):
        mp.attention(torch.randn(1, 40, 8, 8), k, k, tiles, backend="flex")


def test_a_table_of_tokens_has_one_backward():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", form="tokens", max_coverage=1.0)
    for plan in (tiles, tiles.lower()):
        with pytest.raises(mp.UnsupportedError, match="by loop_k, and loop_q is wanted"):
            call.run(plan, backward="loop_q")
        assert_gate(call.run(plan, backward="loop_k"), call.expected(), call.dtype)
        with torch.no_grad():  # where no gradient is wanted, it says nothing about the call
            mp.attention(call.q, call.k, call.v, plan, backward="loop_q")


def test_tiles_in_a_compiled_region_are_lowered_outside():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", max_coverage=1.0)
    lowered = tiles.lower()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(q: Tensor, k: Tensor, v: Tensor, plan: mp.LoweredPlan) -> Tensor:
        return mp.attention(q, k, v, plan)

    found = attend(call.q, call.k, call.v, lowered)
    assert found.equal(mp.attention(call.q, call.k, call.v, tiles))
