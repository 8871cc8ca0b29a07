"""Pooling and the scores made from it, against loops; padding takes no part."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan import select


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 20), st.integers(1, 9), st.sampled_from(["bshd", "bhsd"]))
def test_means_of_blocks(length, block, layout):
    x = randn(2, length, 3, 4)
    pooled = select.mean_pool(x if layout == "bshd" else x.transpose(1, 2), block, layout=layout)

    assert pooled.shape == (2, 3, -(-length // block), 4)
    for at in range(pooled.shape[2]):
        mean = x[:, at * block : (at + 1) * block].mean(dim=1)
        torch.testing.assert_close(pooled[:, :, at], mean)


def test_padding_inside_blocks_is_not_looked_at():
    x = randn(1, 12, 1, 2)
    x[:, 3], x[:, 8:] = float("nan"), float("inf")
    pooled = select.mean_pool(x, 4, sizes=[3, 4, 0])

    torch.testing.assert_close(pooled[0, 0, 0], x[0, :3, 0].mean(0))
    torch.testing.assert_close(pooled[0, 0, 1], x[0, 4:8, 0].mean(0))
    assert pooled[0, 0, 2].tolist() == [0, 0]


def test_half_precision_is_summed_in_float32():
    x = torch.full((1, 4096, 1, 1), 0.1, dtype=torch.bfloat16)
    assert select.mean_pool(x, 4096).item() == pytest.approx(float(x[0, 0, 0, 0]), rel=1e-6)


def test_scores_of_grouped_heads():
    q, k = randn(1, 10, 4, 8), randn(1, 13, 2, 8, seed=1)
    scores = select.pooled_scores(q, k, (4, 5))

    assert scores.shape == (1, 4, 3, 3)
    for h in range(4):
        for i in range(3):
            for j in range(3):
                mean_q = q[0, 4 * i : 4 * i + 4, h].mean(0)
                mean_k = k[0, 5 * j : 5 * j + 5, h // 2].mean(0)
                expected = float(mean_q @ mean_k) / math.sqrt(8)
                assert float(scores[0, h, i, j]) == pytest.approx(expected, abs=1e-5)


def test_key_blocks_of_padding_alone_are_never_selected():
    q, k = randn(1, 8, 1, 4), randn(1, 8, 1, 4, seed=1)
    scores = select.pooled_scores(q, k, (4, 4), k_sizes=[4, 0])

    assert scores[..., 1].isneginf().all()
    assert select.top_k(scores, 2, 8, 8, block_size=(4, 4)).col.tolist() == [0, 0]


def test_the_softmax_counts_keys():
    scores, sizes = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([3, 0, 1])
    weights = select.size_weighted_softmax(scores, sizes)
    expected = torch.tensor([0.0, 0, 0, 2.0]).softmax(0)

    torch.testing.assert_close(
        weights[0], torch.tensor([float(expected[:3].sum()), 0, float(expected[3])])
    )
    assert select.size_weighted_softmax(scores, torch.zeros(3)).tolist() == [[0, 0, 0]]


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 6))
def test_similar_blocks_are_those_of_near_tokens(length, block):
    x = randn(1, length, 2, 4, seed=length)
    similar = select.similar_blocks(x, block, torch.tensor([0.2, 0.4]))
    for h, bar in enumerate((0.2, 0.4)):
        for at in range(-(-length // block)):
            part = x[0, at * block : (at + 1) * block, h]
            unit = part / part.norm(dim=1, keepdim=True)
            mean = float((unit @ unit.T).mean())
            if abs(mean - bar) > 1e-5:
                assert bool(similar[0, h, at]) == (mean > bar)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: select.mean_pool(randn(2, 3), 4), "layout 'bshd', shape [2, 3]"),
        (lambda: select.mean_pool(randn(1, 2, 3, 4), 4, layout="sbhd"), "layout 'sbhd'"),
        (lambda: select.mean_pool(torch.ones(1, 2, 3, 4).long(), 4), "got int64"),
        (
            lambda: select.mean_pool(randn(1, 6, 1, 1), 4, sizes=[4, 3]),
            "sizes[1]: got 3, wanted 0 to 2",
        ),
        (lambda: select.mean_pool(randn(1, 6, 1, 1), 4, sizes=[4]), "shape [2]"),
        (
            lambda: select.pooled_scores(randn(1, 4, 3, 2), randn(1, 4, 2, 2), (2, 2)),
            "queries and keys do not go together",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
