"""A-shape and vertical-slash: exact, and as the kernel's blocks and loose columns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan import select
from tests.oracle import assert_plan


@given(st.integers(0, 40), st.integers(0, 50), st.integers(0, 50))
def test_a_shape(seqlen, n_init, n_local):
    plan = select.a_shape(seqlen, n_init=n_init, n_local=n_local, block_size=(8, 16))
    q, k = torch.arange(seqlen)[:, None], torch.arange(seqlen)[None]
    expected = (k <= q) & ((k < n_init) | (q - k <= n_local))

    assert_plan(plan, expected[None, None])


@st.composite
def lines(draw):
    """(vertical, slash, seqlen)."""
    seqlen = draw(st.integers(1, 300))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    sizes = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    return *(torch.randint(0, seqlen, (*shape, n), generator=generator) for n in sizes), seqlen


@settings(max_examples=60)
@given(lines())
def test_exact_lines(case):
    vertical, slash, seqlen = case
    plan = select.vertical_slash(vertical, slash, seqlen, lines="exact")
    q, k = torch.arange(seqlen)[:, None], torch.arange(seqlen)[None]
    expected = torch.zeros(*vertical.shape[:2], seqlen, seqlen, dtype=torch.bool)
    for b, h in torch.cartesian_prod(*map(torch.arange, vertical.shape[:2])).view(-1, 2).tolist():
        seen = torch.isin(k, vertical[b, h]) | torch.isin(q - k, slash[b, h])
        expected[b, h] = seen & (k <= q)

    assert_plan(plan, expected)


def kernel_row(vertical, slash, top, seqlen):
    """Keys that one 64-row of MInference's kernel reads: its walk over both sorted lists."""
    end, size, keys = top + 64, 64, set()
    ends = [max(end - s, size) for s in sorted(set(slash), reverse=True) if s < end]
    start = stop = None
    for at in ends:
        if stop is None or at > stop + size:
            if stop is not None:
                keys |= set(range(start, stop))
            start, stop = at - size, at
        elif at > stop:
            stop += size
    if stop is not None:
        keys |= set(range(start, stop))
    return (keys | set(vertical)) & set(range(seqlen))


@settings(max_examples=60)
@given(lines())
def test_blocks_and_loose_columns(case):
    vertical, slash, seqlen = case
    plan = select.vertical_slash(vertical, slash, seqlen, lines="blocks", block_size=(32, 64))
    expected = torch.zeros(*vertical.shape[:2], seqlen, seqlen, dtype=torch.bool)
    for b, h in torch.cartesian_prod(*map(torch.arange, vertical.shape[:2])).view(-1, 2).tolist():
        for top in range(0, seqlen, 64):
            keys = sorted(kernel_row(vertical[b, h].tolist(), slash[b, h].tolist(), top, seqlen))
            expected[b, h, top : top + 64, keys] = True

    assert_plan(plan, expected.tril())
    exact = select.vertical_slash(vertical, slash, seqlen, lines="exact", block_size=(32, 64))
    assert (exact - plan).num_blocks == 0  # blocks cover the exact lines


def test_lines_are_those_with_the_most_attention():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 90, 2, 8, generator=generator) for _ in range(2))
    k = k[:, :, :1]
    vertical, slash = select.vertical_slash_lines(
        q, k, vertical_size=6, slash_size=9, last=20, first_columns=2, near_diagonals=3
    )
    for h in range(2):
        scores = (q[0, :, h] @ k[0, :, 0].T / 8**0.5).masked_fill(
            torch.ones(90, 90, dtype=torch.bool).triu(1), -torch.inf
        )
        weights = scores.softmax(1)[70:]
        columns = weights.sum(0)
        diagonals = torch.tensor(
            [
                sum(float(weights[r, 70 + r - d]) for r in range(20) if 70 + r >= d)
                for d in range(90)
            ]
        )
        columns[:2], diagonals[:3] = 99, 99
        assert vertical[0, h].tolist() == sorted(columns.topk(6).indices.tolist())
        assert slash[0, h].tolist() == sorted(diagonals.topk(9).indices.tolist())


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: select.a_shape(4, n_init=-1, n_local=1), "n_init"),
        (lambda: vs([[[4]]], [[[0]]]), "vertical[0, 0, 0]: got 4, wanted 0 <= index < 4"),
        (lambda: vs([[[0]]], [[[-1]]]), "slash[0, 0, 0]: got -1"),
        (lambda: vs([[[0]]], [[[0]], [[0]]]), "[1, 1] and [2, 1]"),
        (lambda: vs([[[0]]], [[[0]]], lines="all"), "'exact' or 'blocks'"),
        (lambda: vl(torch.ones(1, 4, 1, 2), torch.ones(1, 5, 1, 2)), "4 queries, 5 keys"),
        (lambda: vl(torch.full((1, 4, 1, 2), torch.nan), torch.ones(1, 4, 1, 2)), "scores are NaN"),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)


def vs(vertical, slash, lines="exact"):
    return select.vertical_slash(torch.tensor(vertical), torch.tensor(slash), 4, lines=lines)


def vl(q, k):
    return select.vertical_slash_lines(q, k, vertical_size=1, slash_size=1)
