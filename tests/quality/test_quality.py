"""Recall and output error against the dense softmax in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.quality import quality, recall
from tests.strategies import plans


def dense_figures(q, k, v, mask):
    """(recall, output error) [B, HQ] by the definition, everything at once in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    kept = (weights * mask).sum(-1)
    sparse = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ v
    dense = weights @ v
    return kept.mean(-1), (sparse - dense).norm(dim=(2, 3)) / dense.norm(dim=(2, 3))


@settings(max_examples=25)
@given(
    plans(geometry=None, heads=(2, 2)).filter(lambda p: p.seqlen_q and p.seqlen_k), st.booleans()
)
def test_figures_are_those_of_the_dense_softmax(plan, swap):
    generator = torch.Generator().manual_seed(plan.num_blocks)
    q = torch.randn(2, plan.seqlen_q, 4, 8, generator=generator)
    k, v = torch.randn(2, 2, plan.seqlen_k, 2, 8, generator=generator)
    mask = plan.with_heads(4).to_dense()
    want_recall, want_error = dense_figures(q, k, v, mask)
    layout = "bhsd" if swap else "bshd"
    given_tensors = [x.transpose(1, 2) if swap else x for x in (q, k, v)]

    got = quality(*given_tensors, plan, layout=layout)
    torch.testing.assert_close(got.recall, want_recall, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.output_error, want_error, atol=1e-4, rtol=1e-4)
    assert got.queries == plan.seqlen_q
    torch.testing.assert_close(
        recall(*given_tensors[:2], plan, layout=layout), want_recall, atol=1e-5, rtol=1e-5
    )


def test_a_full_plan_keeps_all_and_errs_nowhere():
    q, k, v = torch.randn(3, 1, 50, 2, 16)
    got = quality(q, k, v, mp.full(50, 50, block_size=(16, 16)))

    assert got.output_error.tolist() == [[0.0, 0.0]]
    torch.testing.assert_close(got.recall, torch.ones(1, 2, dtype=torch.float64))
    assert "mean recall 1.0000" in str(got)


def test_some_q_blocks_cost_and_count_only_themselves():
    q, k, v = torch.randn(3, 1, 50, 1, 16)
    plan = mp.causal(50, 50, block_size=(16, 16))
    some = quality(q, k, v, plan, q_blocks=[0, 3])
    mask = plan.to_dense()
    rows = [*range(16), 48, 49]
    want, _ = dense_figures(q[:, rows], k, v, mask[:, :, rows])

    assert some.queries == 18
    torch.testing.assert_close(some.recall, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("queries", ["all", "video"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_slots_of_padding_are_no_queries_and_no_keys(layout, queries):
    """Poison in padding changes nothing; figures are those of the tokens alone."""
    grid = mp.video.Grid(3, 5, 7, text=3)
    plan = mp.video.sliding_tile(
        grid, tile=(2, 4, 4), window=(1, 1, 1), pad=True, queries=queries, block_size=(32, 32)
    )
    order = mp.video.TokenOrder.tiles(grid, (2, 4, 4), pad=True)
    keys = order.slots >= 0
    mine = keys[: plan.seqlen_q]  # text comes last
    q, (k, v) = torch.randn(1, plan.seqlen_q, 2, 8), torch.randn(2, 1, plan.seqlen_k, 2, 8)
    want_recall, want_error = dense_figures(
        q[:, mine], k[:, keys], v[:, keys], plan.to_dense()[:, :, mine][..., keys]
    )
    q[:, ~mine], k[:, ~keys], v[:, ~keys] = 9.0, 9.0, torch.nan
    given_tensors = [x.transpose(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
    got = quality(*given_tensors, plan, layout=layout)
    some = quality(*given_tensors, plan, layout=layout, q_blocks=[0, 3])

    assert got.queries == int(mine.sum()) < plan.seqlen_q
    torch.testing.assert_close(got.recall, want_recall, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.output_error, want_error, atol=1e-4, rtol=1e-4)
    kept = recall(*given_tensors[:2], plan, layout=layout)
    torch.testing.assert_close(kept, want_recall, atol=1e-5, rtol=1e-5)
    assert some.queries == int(mine[:32].sum() + mine[96:128].sum())


def test_queries_without_keys_keep_nothing_and_nothing_can_be_lost_of_nothing():
    q, k, v = torch.randn(3, 1, 8, 1, 4)
    nobody = mp.full(8, 8, block_size=(4, 4)) - mp.full(8, 8, block_size=(4, 4))

    assert quality(q, k, v, nobody).recall.tolist() == [[0.0]]
    assert quality(q, k, v, nobody).output_error.tolist() == [[1.0]]
    no_keys = mp.full(8, 0, block_size=(4, 4))
    assert recall(q, k[:, :0], no_keys).tolist() == [[1.0]]


@pytest.mark.parametrize(("blocks", "text"), [([], "no Q blocks"), ([4], "<= 3"), ([-1], "got -1")])
def test_q_blocks_that_do_not_exist_are_refused(blocks, text):
    q, k = torch.randn(2, 1, 50, 1, 16)
    with pytest.raises(mp.PlanError, match=text):
        recall(q, k, mp.causal(50, 50, block_size=(16, 16)), q_blocks=blocks)


@pytest.mark.parametrize("q_blocks", [None, [0], [2]])
@pytest.mark.parametrize("tokens", [20, 49, 100])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_queries_of_another_length_are_refused(tokens, q_blocks, layout):
    """Also by a sample of Q blocks, which a longer q has as well."""
    q, k = torch.randn(1, tokens, 1, 16), torch.randn(1, 50, 1, 16)
    if layout == "bhsd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    plan = mp.causal(50, 50, block_size=(16, 16))
    for call in (lambda **a: recall(q, k, plan, **a), lambda **a: quality(q, k, k, plan, **a)):
        with pytest.raises(mp.PlanError, match=f"got {tokens} tokens, wanted 50"):
            call(q_blocks=q_blocks, layout=layout)


def test_arguments_of_another_type_are_named():
    q, k = torch.randn(2, 1, 50, 1, 16)
    plan = mp.causal(50, 50, block_size=(16, 16))
    for wrong in ([1], q[0], q[0, 0], None):
        for arguments in ((wrong, k, k, plan), (q, wrong, k, plan), (q, k, wrong, plan)):
            with pytest.raises(mp.PlanTypeError, match="dense float tensor"):
                quality(*arguments)
        with pytest.raises(mp.PlanTypeError, match="dense float tensor"):
            recall(q, wrong, plan)
        with pytest.raises(mp.PlanTypeError, match="plan"):
            recall(q, k, wrong, q_blocks=[0])
    for blocks in (0, 1.5, [0.5], [True], "0"):
        with pytest.raises(mp.PlanTypeError, match="q_blocks"):
            recall(q, k, plan, q_blocks=blocks)
    assert torch.equal(
        recall(q, k, plan, q_blocks=torch.tensor([0, 2])), recall(q, k, plan, q_blocks=[0, 2])
    )
