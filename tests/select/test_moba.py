"""MoBA, VMoBA and NSA: each query's own choice, against loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan import select
from maskplan.interop import fla_nsa
from tests.oracle import assert_plan


@st.composite
def chunk_scores(draw):
    """(scores [B, H, S, chunks], chunk)."""
    seqlen, chunk = draw(st.integers(1, 24)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), seqlen, -(-seqlen // chunk))
    return torch.randint(-4, 5, shape, generator=generator).float(), chunk


def tokens_of(mask, chunk):
    return mask.repeat_interleave(chunk, 3)[..., : mask.shape[2]]


def best(row, k):
    return sorted(range(len(row)), key=lambda at: (-row[at], at))[:k]


@settings(max_examples=60)
@given(chunk_scores(), st.integers(1, 4))
def test_moba(case, k):
    scores, chunk = case
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    for place in torch.cartesian_prod(*map(torch.arange, scores.shape[:3])).view(-1, 3).tolist():
        own = place[2] // chunk
        row = [float("inf") if c == own else s for c, s in enumerate(scores[tuple(place)].tolist())]
        for c in best(row[: own + 1], k):
            mask[tuple(place)][c] = True
    plan = select.moba(scores, k, chunk=chunk, block_size=(4, 8))

    assert_plan(plan, tokens_of(mask, chunk).tril())


def own_chunks(shape, chunk):
    own = torch.arange(shape[2])[:, None] // chunk == torch.arange(shape[3])
    return own.expand(shape)


@settings(max_examples=60)
@given(chunk_scores(), st.integers(1, 3), st.sampled_from(["query_head", "head_global", "overall"]))
def test_vmoba_top_k(case, k, scope):
    scores, chunk = case
    batch, heads, seqlen, _ = scores.shape
    own = own_chunks(scores.shape, chunk)
    ranked = scores.masked_fill(own, float("inf"))
    groups = {
        "query_head": [
            (b, h, s) for b in range(batch) for h in range(heads) for s in range(seqlen)
        ],
        "head_global": [(slice(None), h) for h in range(heads)],
        "overall": [()],
    }[scope]
    mask = own.clone()
    for group in groups:
        part = ranked[group]
        count = k * (part.numel() // scores.shape[3])
        flat = torch.zeros(part.numel(), dtype=torch.bool)
        flat[best(part.flatten().tolist(), count)] = True
        mask[group] |= flat.view(part.shape)
    plan = select.vmoba(scores, chunk=chunk, k=k, scope=scope, block_size=(4, 8))

    assert_plan(plan, tokens_of(mask, chunk))


@settings(max_examples=80)
@given(
    chunk_scores(),
    st.sampled_from([0.0, 0.25, 0.6, 1.0]),
    st.sampled_from(["query_head", "block", "head_global", "overall"]),
)
def test_vmoba_threshold(case, share, scope):
    scores, chunk = case
    batch, heads, seqlen, chunks = scores.shape
    own = own_chunks(scores.shape, chunk)
    everything = slice(None)
    groups = {
        "query_head": [
            (b, h, s) for b in range(batch) for h in range(heads) for s in range(seqlen)
        ],
        "block": [(b, everything, everything, c) for b in range(batch) for c in range(chunks)],
        "head_global": [(everything, h) for h in range(heads)],
        "overall": [()],
    }[scope]
    mask = own.clone()
    for group in groups:
        part, mine = scores[group].double(), own[group]
        spread = float(part.max() - part.min())
        weight = (part - part.min()) / (spread if spread > 1e-6 else 1.0)
        total = float(weight.sum()) + 1e-6
        missing = max(share - float(weight[mine].sum()) / total, 0.0)
        flat = weight.flatten().tolist()
        others = [at for at in best(flat, len(flat)) if not bool(mine.flatten()[at])]
        taken, reached = torch.zeros(len(flat), dtype=torch.bool), 0.0
        for rank, at in enumerate(others):
            if rank and reached / total >= missing - 1e-12:
                break
            taken[at] = True
            reached += flat[at]
        mask[group] |= taken.view(part.shape)
    plan = select.vmoba(scores, chunk=chunk, threshold=share, scope=scope, block_size=(4, 8))

    assert_plan(plan, tokens_of(mask, chunk))


def test_scores_are_queries_by_mean_keys():
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(1, 7, 4, 3, generator=generator),
        torch.randn(1, 7, 2, 3, generator=generator),
    )
    scores = select.chunk_scores(q, k, 3)

    for h in range(4):
        for c in range(3):
            mean = k[0, 3 * c : 3 * c + 3, h // 2].mean(0)
            torch.testing.assert_close(scores[0, h, :, c], q[0, :, h] @ mean)


@settings(max_examples=60)
@given(chunk_scores(), st.integers(0, 1), st.integers(0, 2), st.integers(0, 2))
def test_nsa(case, initial, local, more):
    scores, block = case
    batch, heads, seqlen, _ = scores.shape
    k = max(initial + local + more, 1)
    listed = torch.full((batch, heads, seqlen, k), -1)
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, scores.shape[:3])).view(-1, 3).tolist():
        own = t // block
        row = [
            float("inf") if c < initial or own - local < c <= own else s
            for c, s in enumerate(scores[b, h, t].tolist())
        ]
        chosen = sorted(best(row[: own + 1], k))
        listed[b, h, t, : len(chosen)] = torch.tensor(chosen)
        mask[b, h, t, chosen] = True
    options = {"select_block": block, "initial": initial, "local": local}

    indices = select.block_indices(scores, k, **options)
    assert torch.equal(indices, listed)
    plan = select.nsa(scores, k, **options, block_size=(4, 8))
    assert_plan(plan, tokens_of(mask, block).tril())
    fla = indices.masked_fill(indices < 0, seqlen).transpose(1, 2)
    assert fla_nsa.from_block_indices(fla, select_block=block, block_size=(4, 8)) == plan


def test_selection_blocks_add_what_they_share():
    """Compressed blocks of 32 keys every 16, selection blocks of 64: shared strides of 16."""
    compressed = torch.rand(1, 1, 2, 7, generator=torch.Generator().manual_seed(0))
    scores = select.selection_scores(compressed, length=32, stride=16, select_block=64, blocks=2)
    expected = torch.zeros(1, 1, 2, 2)
    for i in range(7):
        for j in range(2):
            keys = set(range(16 * i, 16 * i + 32)) & set(range(64 * j, 64 * j + 64))
            expected[..., j] += compressed[..., i] * (len(keys) / 16)

    torch.testing.assert_close(scores, expected)


ONE = torch.zeros(1, 1, 4, 2)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: select.moba(ONE, 0, chunk=2), "got 0"),
        (lambda: select.moba(ONE, 1, chunk=3 + 2), "2 chunks, wanted 1"),
        (lambda: select.moba(ONE * torch.nan, 1, chunk=2), "scores are NaN"),
        (lambda: select.vmoba(ONE, chunk=2, scope="query_head"), "one rule is needed"),
        (lambda: select.vmoba(ONE, chunk=2, k=1, threshold=0.1, scope="overall"), "one of the two"),
        (lambda: select.vmoba(ONE, chunk=2, k=1, scope="block"), "threshold for scope='block'"),
        (lambda: select.vmoba(ONE, chunk=2, k=1, scope="x"), "unknown option in scope"),
        (lambda: select.vmoba(ONE, chunk=2, threshold=2, scope="overall"), "0 <= threshold <= 1"),
        (lambda: select.nsa(ONE, 2, select_block=2, initial=1, local=2), "at least 3"),
        (lambda: select.nsa(ONE, 0, select_block=2, initial=0, local=0), "at least 1"),
        (lambda: select.nsa(ONE, 1, select_block=4, initial=0, local=0), "2 blocks, wanted 1"),
        (
            lambda: select.selection_scores(ONE, length=3, stride=2, select_block=4, blocks=1),
            "a multiple of stride = 2",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
