"""top_k, top_p and threshold against loops over sorted rows; what is refused, in which words."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan import select
from tests.oracle import assert_plan

INF = float("inf")


@st.composite
def scored(draw):
    """(float32 scores [B, H, M, N] with ties and -inf, SQ, SK, block size)."""
    size = (draw(st.sampled_from([1, 4, 7])), draw(st.sampled_from([1, 8, 5])))
    seqlen_q, seqlen_k = draw(st.integers(0, 20)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        -(-seqlen_q // size[0]),
        -(-seqlen_k // size[1]),
    )
    scores = rng.integers(-3, 4, shape).astype(np.float32)
    scores[rng.random(shape) < draw(st.sampled_from([0, 0.3]))] = -INF
    return torch.from_numpy(scores), seqlen_q, seqlen_k, size


def expand(mask, seqlen_q, seqlen_k, size):
    return mask.repeat_interleave(size[0], 2).repeat_interleave(size[1], 3)[
        :, :, :seqlen_q, :seqlen_k
    ]


def by_row(scores, choose):
    """bool, as `scores`: choose(list of a row) gives the numbers of its blocks."""
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    for b, h, row in np.ndindex(*scores.shape[:3]):
        mask[b, h, row, choose(scores[b, h, row].tolist())] = True
    return mask


def ordered(row):
    """Numbers of a row's blocks, best first, equal ones ascending."""
    return sorted(range(len(row)), key=lambda at: (-row[at], at))


@given(scored(), st.integers(1, 6))
def test_top_k(case, k):
    scores, seqlen_q, seqlen_k, size = case
    plan = select.top_k(scores, k, seqlen_q, seqlen_k, block_size=size, empty="allow")
    mask = by_row(scores, lambda row: [at for at in ordered(row)[:k] if row[at] > -INF])

    assert_plan(plan, expand(mask, seqlen_q, seqlen_k, size))
    empty = (~mask.any(3)).nonzero().tolist()
    assert select.empty_rows(plan).tolist() == empty


def test_k_for_each_head_and_blocks_kept_besides():
    scores = torch.tensor([[[[3.0, 2, 1, 0]], [[0.0, 1, 2, 3]]]])
    always = torch.tensor([False, False, False, True])
    plan = select.top_k(scores, torch.tensor([[1], [2]]), 4, 16, block_size=(4, 4), always=always)

    assert plan.to_dense()[0, :, 0, ::4].int().tolist() == [[1, 0, 0, 1], [0, 0, 1, 1]]


@st.composite
def masses(draw):
    scores, seqlen_q, seqlen_k, size = draw(scored())
    mass = scores.exp() if draw(st.booleans()) else scores.softmax(-1).nan_to_num()
    # Quarters: sums are exact, so a share can meet one exactly.
    return (mass * 4).round() / 4, seqlen_q, seqlen_k, size


def kept_by_rule(row, p, rule, least, forced):
    """The definition: walk down the sorted row with a running sum."""
    others = [
        0.0 if rule == "xattention" and at in forced else value for at, value in enumerate(row)
    ]
    total, taken = sum(row), []
    below = sum(row[at] for at in forced) if rule == "xattention" else 0.0
    for rank, at in enumerate(ordered(others)):
        keep = {
            "sparge": below + others[at] <= p,
            "svg2": below <= p,
            "xattention": below < p * total,
        }[rule]
        if (keep or rank < least) and others[at] > 0:
            taken.append(at)
        below += others[at]
    return taken + list(forced)


@settings(max_examples=200)
@given(
    masses(),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]),
    st.sampled_from(["sparge", "xattention", "svg2"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_top_p(case, p, rule, least, force):
    mass, seqlen_q, seqlen_k, size = case
    forced = [0] if force else []
    always = torch.arange(mass.shape[3]) < len(forced)
    plan = select.top_p(
        mass,
        p,
        seqlen_q,
        seqlen_k,
        rule=rule,
        at_least=least,
        block_size=size,
        always=always,
        empty="allow",
    )
    mask = by_row(mass, lambda row: kept_by_rule(row, p, rule, least, forced))

    assert_plan(plan, expand(mask, seqlen_q, seqlen_k, size))


@pytest.mark.parametrize("rule", ["sparge", "xattention", "svg2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])  # all alike, near each other, many buckets
def test_top_p_of_long_rows(spread, dtype, rule):
    """NOTE [Buckets of mass]: rows that fill one bucket or hundreds, with ties, 0 and -0."""
    noise = torch.Generator().manual_seed(4)
    mass = (spread * torch.randn(1, 2, 9, 700, generator=noise)).softmax(-1).to(dtype)
    mass[..., ::3] = mass[..., 1:2]
    mass[..., 5:9], mass[..., 9:12] = 0.0, -0.0
    for p, least in ((0.0, 2), (0.3, 1), (0.9, 0), (0.999, 650), (1.0, 700)):
        plan = select.top_p(
            mass, p, 9, 700, rule=rule, at_least=least, block_size=(1, 1), empty="allow"
        )
        mask = by_row(mass, lambda row, p=p, least=least: kept_by_rule(row, p, rule, least, []))
        assert plan.to_dense().equal(mask)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("sparge", [1, 1, 0, 0]), ("xattention", [1, 1, 0, 0]), ("svg2", [1, 1, 1, 0])],
)
def test_where_the_sum_meets_the_share(rule, kept):
    """0.5 + 0.25 is p: sparge may reach p, xattention stops there, svg2 goes one further."""
    mass = torch.tensor([[[[0.5, 0.25, 0.125, 0.125]]]])
    plan = select.top_p(mass, 0.75, 1, 4, rule=rule, block_size=(1, 1))

    assert plan.to_dense().flatten().int().tolist() == kept


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("sparge", [1, 0, 0, 0]), ("xattention", [1, 1, 0, 0]), ("svg2", [1, 1, 0, 0])],
)
def test_the_block_that_crosses(rule, kept):
    mass = torch.tensor([[[[0.5, 0.25, 0.125, 0.125]]]])
    plan = select.top_p(mass, 0.6, 1, 4, rule=rule, block_size=(1, 1))

    assert plan.to_dense().flatten().int().tolist() == kept


def test_shares_for_each_head():
    mass = torch.tensor([0.5, 0.25, 0.25]).expand(1, 2, 1, 3)
    plan = select.top_p(mass, torch.tensor([0.4, 0.7]), 1, 3, rule="xattention", block_size=(1, 1))

    assert plan.to_dense()[0, :, 0].int().tolist() == [[1, 0, 0], [1, 1, 0]]


@given(scored(), st.booleans())
def test_threshold(case, strict):
    scores, seqlen_q, seqlen_k, size = case
    plan = select.threshold(
        scores, 1.0, seqlen_q, seqlen_k, strict=strict, block_size=size, empty="allow"
    )
    mask = scores > 1 if strict else scores >= 1

    assert_plan(plan, expand(mask, seqlen_q, seqlen_k, size))


ROW = torch.tensor([[[[1.0, 0.0]]]])
NAN = torch.tensor([[[[1.0, float("nan")]]]])
TINY = {"block_size": (1, 1)}


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (
            lambda: select.top_k(NAN, 1, 1, 2, **TINY),
            ["scores are NaN in scores[0, 0, 0, 1]", "1 NaN of 2", "nan='drop'"],
        ),
        (
            lambda: select.top_k(ROW, 0, 1, 2, **TINY),
            ["top-k of 0 selects nothing in k", "at_least=1", "empty='allow'"],
        ),
        (lambda: select.top_k(ROW, -1, 1, 2, **TINY), ["got -1"]),
        (
            lambda: select.top_k(ROW, torch.tensor([0]), 1, 2, **TINY),
            ["top-k of 0 selects nothing in k[0, 0, 0]"],
        ),
        (
            lambda: select.top_k(torch.full((1, 2, 3, 2), -INF), 1, 3, 2, **TINY),
            ["rows are empty", "6 rows", "(0, 0, 0), (0, 0, 1)", "(0, 1, 0), ...", "empty_rows"],
        ),
        (lambda: select.top_k(ROW.long(), 1, 1, 2, **TINY), ["not floats", "got int64"]),
        (lambda: select.top_k(ROW[0], 1, 1, 2, **TINY), ["[batch, heads, M, N]"]),
        (lambda: select.top_k(ROW, 1, 1, 9, **TINY), ["1 x 2 blocks", "1 x 9"]),
        (lambda: select.top_k(ROW, 1, 1, 2, nan="keep", **TINY), ["'error' or 'drop'"]),
        (lambda: select.top_k(ROW, 1, 1, 2, empty="keep", **TINY), ["'error' or 'allow'"]),
        (
            lambda: select.top_k(ROW, 1, 1, 2, always=torch.ones(3).bool(), **TINY),
            ["argument does not fit the scores in always", "[1, 1, 1, 2]"],
        ),
        (
            lambda: select.top_p(ROW, 0.5, 1, 2, rule="nucleus", **TINY),
            ["'sparge' or 'xattention'"],
        ),
        (lambda: select.top_p(ROW, 1.5, 1, 2, rule="svg2", **TINY), ["share is out of range in p"]),
        (
            lambda: select.top_p(ROW, torch.tensor([0.1, 0.2]), 1, 2, rule="svg2", **TINY),
            ["one for each of 1 heads"],
        ),
        (
            lambda: select.top_p(-ROW, 0.5, 1, 2, rule="svg2", **TINY),
            ["mass is negative or infinite in mass[0, 0, 0, 0]", "scores.softmax(-1)"],
        ),
        (
            lambda: select.top_p(ROW.log(), 0.5, 1, 2, rule="svg2", **TINY),
            ["mass is negative or infinite in mass[0, 0, 0, 1]", "got -inf"],
        ),
        (lambda: select.top_p(ROW * INF, 0.5, 1, 2, rule="svg2", **TINY), ["NaN"]),
        (
            lambda: select.top_p(ROW * 0, 0.5, 1, 2, rule="xattention", **TINY),
            ["rows are empty", "(0, 0, 0)"],
        ),
        (
            lambda: select.top_p(ROW, "most", 1, 2, rule="svg2", **TINY),
            ["argument is not a number in p", "'most' of type str"],
        ),
        (
            lambda: select.top_p(ROW, torch.tensor([True]), 1, 2, rule="svg2", **TINY),
            ["tensor has the wrong dtype in p", "got bool"],
        ),
        (
            lambda: select.threshold(ROW, [0.5, None], 1, 2, strict=True, **TINY),
            ["argument is not a number in bar[1]"],
        ),
        (lambda: select.threshold(ROW, float("nan"), 1, 2, strict=True, **TINY), ["bar is NaN"]),
        (lambda: select.threshold(ROW, 2.0, 1, 2, strict=True, **TINY), ["rows are empty"]),
    ],
)
def test_what_is_refused(call, parts):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_what_is_allowed_by_name():
    assert select.top_k(NAN, 2, 1, 2, nan="drop", **TINY).col.tolist() == [0]
    assert select.top_k(ROW, 0, 1, 2, empty="allow", **TINY).num_blocks == 0
    plan = select.top_p(NAN, 1.0, 1, 2, rule="svg2", nan="drop", **TINY)
    assert plan.col.tolist() == [0]
