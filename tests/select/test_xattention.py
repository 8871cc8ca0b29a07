"""XAttention's antidiagonal mass, against a loop over pairs of tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan import select


def mass_of(q, k, block, stride, *, causal):
    """One head by loops: q, k [S, D] -> [M, N]."""
    (rows, depth), cols = q.shape, k.shape[0]
    groups_q, groups_k = -(-rows // stride), -(-cols // stride)
    scores = torch.full((groups_q, groups_k), -torch.inf, dtype=torch.float64)
    for i in range(groups_q):
        for j in range(groups_k):
            if causal and j > i:
                continue
            total = 0.0
            for t in range(stride):
                a, b = i * stride + stride - 1 - t, j * stride + t
                if a < rows and b < cols:
                    total += float(q[a].double() @ k[b].double())
            scores[i, j] = total / math.sqrt(depth) / stride
    weights = scores.softmax(1)
    mass = torch.zeros(-(-rows // block), -(-cols // block), dtype=torch.float64)
    for i in range(groups_q):
        for j in range(groups_k):
            mass[i * stride // block, j * stride // block] += weights[i, j]
    return mass


@settings(max_examples=40)
@given(
    st.integers(1, 30), st.integers(1, 30), st.sampled_from([(4, 2), (8, 4), (4, 4)]), st.booleans()
)
def test_mass_against_loops(rows, cols, sizes, causal):
    cols = rows if causal else cols
    generator = torch.Generator().manual_seed(rows * 31 + cols)
    q = torch.randn(1, rows, 2, 4, generator=generator)
    k = torch.randn(1, cols, 1, 4, generator=generator)
    mass = select.antidiagonal_mass(q, k, block=sizes[0], stride=sizes[1], causal=causal)

    for h in range(2):
        expected = mass_of(q[0, :, h], k[0, :, 0], *sizes, causal=causal)
        torch.testing.assert_close(mass[0, h].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_whole_way_keeps_sink_and_diagonal():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1000, 2, 16, generator=generator) for _ in range(2))
    mass = select.antidiagonal_mass(q, k, block=128, stride=8, causal=True)
    always = select.sink_and_diagonal(8)
    plan = select.top_p(mass, 0.5, 1000, 1000, rule="xattention", always=always)
    plan = plan & mp.causal(1000, 1000)

    listed = torch.zeros(2, 8, 8, dtype=torch.bool)
    dense = plan.to_dense()[0]
    for i in range(8):
        for j in range(8):
            listed[:, i, j] = (
                dense[:, i * 128 : i * 128 + 128, j * 128 : j * 128 + 128].any(2).any(1)
            )
    assert bool((listed | ~always).all())
    assert not bool(listed.triu(1).any())
    share = (mass[0] * listed).sum(2) / mass[0].sum(2)
    assert bool((share >= 0.5).all())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"stride": 3}, "stride does not divide the block"),
        ({"k": torch.ones(1, 5, 1, 4)}, "4 queries and 5 keys"),
        ({"q": torch.ones(4, 4)}, "in q"),
    ],
)
def test_what_is_refused(arguments, part):
    given_ = {"q": torch.ones(1, 4, 1, 4), "k": torch.ones(1, 4, 1, 4), "block": 4, "stride": 2}
    with pytest.raises(mp.MaskplanError) as caught:
        select.antidiagonal_mass(**(given_ | arguments), causal=True)
    assert part in str(caught.value)
