"""Ranges, packed documents and closed forms against loops over every pair."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from tests.oracle import assert_plan
from tests.strategies import block_sizes, geometries, lengths

KINDS = ("full", "causal", "inverse_causal", "bi_causal")


def dense_of(seqlen_q: int, seqlen_k: int, keeps) -> torch.Tensor:
    """bool [1, 1, SQ, SK] of a predicate of (q, k), pair by pair."""
    rows = [[bool(keeps(q, k)) for k in range(seqlen_k)] for q in range(seqlen_q)]
    return torch.tensor(rows, dtype=torch.bool).reshape(1, 1, seqlen_q, seqlen_k)


def slice_keeps(q: int, k: int, queries, keys, kind: str) -> bool:
    """MagiAttention's four kinds, as its documentation words them."""
    (q0, q1), (k0, k1) = queries, keys
    if not (q0 <= q < q1 and k0 <= k < k1):
        return False
    under_diagonal = k1 - 1 - k >= q1 - 1 - q  # causal: ends in the bottom right corner
    over_diagonal = k - k0 >= q - q0  # inverse causal: starts in the top left corner
    return {
        "full": True,
        "causal": under_diagonal,
        "inverse_causal": over_diagonal,
        "bi_causal": under_diagonal and over_diagonal,
    }[kind]


@st.composite
def slice_lists(draw):
    geometry = draw(geometries())
    count = draw(st.integers(0, 6))

    def ranges(length):
        side = st.integers(0, length)
        return [sorted(draw(st.tuples(side, side))) for _ in range(count)]

    kinds = [draw(st.sampled_from(KINDS)) for _ in range(count)]
    return geometry, ranges(geometry.seqlen_q), ranges(geometry.seqlen_k), kinds


@settings(max_examples=150)
@given(slice_lists())
def test_from_ranges_keeps_the_union_of_its_slices(case):
    geometry, queries, keys, kinds = case
    plan = mp.from_ranges(
        queries,
        keys,
        kinds,
        geometry.seqlen_q,
        geometry.seqlen_k,
        block_size=geometry.block_size,
    )
    parts = list(zip(queries, keys, kinds, strict=True))
    expected = dense_of(
        geometry.seqlen_q,
        geometry.seqlen_k,
        lambda q, k: any(slice_keeps(q, k, *part) for part in parts),
    )
    assert_plan(plan, expected)


def test_many_slices_that_touch_few_rows_each():
    """Every Q block meets slices in every order of first key, and the phase cache is emptied."""
    rng = np.random.default_rng(0)
    q = np.sort(rng.integers(0, 300, (150, 2)), axis=1)
    k = np.sort(rng.integers(0, 200, (150, 2)), axis=1)
    kinds = [KINDS[n] for n in rng.integers(0, 4, 150)]
    q[:, 1] = np.minimum(q[:, 1], q[:, 0] + 9)
    k[:, 1] = np.minimum(k[:, 1], k[:, 0] + 20)
    plan = mp.from_ranges(q, k, kinds, 300, 200, block_size=(7, 5))
    parts = list(zip(q.tolist(), k.tolist(), kinds, strict=True))
    assert_plan(
        plan, dense_of(300, 200, lambda i, j: any(slice_keeps(i, j, *part) for part in parts))
    )


def test_phases_are_forgotten_and_made_again():
    """More distinct phases than the cache holds: 5,000 one-query documents of growing keys."""
    keys = np.arange(5001) * 7 % 97
    sums = np.concatenate([[0], np.cumsum(keys[:-1] + 1)])
    plan = mp.from_cu_seqlens(np.arange(5001), sums, block_size=(64, 64))
    pairs = sum(
        (word & 0xFFFFFFFF).bit_count() * int(count)
        for number, count in enumerate(torch.bincount(plan.tile_id[plan.tile_id >= 0]))
        for word in plan.tiles[number].flatten().tolist()
    )
    assert plan == plan.canonical()
    assert pairs + 64 * 64 * int((plan.tile_id < 0).sum()) == int(sums[-1])


def test_kinds_are_names_or_numbers_one_or_many():
    made = [
        mp.from_ranges([[0, 9], [3, 20]], [[2, 12], [0, 20]], kinds, 20, 20, block_size=(8, 8))
        for kinds in ("bi_causal", "bi-causal", 3, [3, 3], ["bi-causal", 3], torch.tensor([3, 3]))
    ]
    assert all(plan == made[0] for plan in made)


def test_ranges_are_tensors_arrays_or_lists():
    q, k = [[0, 9]], [[2, 12]]
    made = [
        mp.from_ranges(kind(q), kind(k), "causal", 20, 20, block_size=(8, 8))
        for kind in (list, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32))
    ]
    assert all(plan == made[0] for plan in made)


def test_no_ranges_is_the_empty_plan():
    plan = mp.from_ranges([], [], [], 5, 7, block_size=(2, 2))
    assert_plan(plan, torch.zeros(1, 1, 5, 7, dtype=torch.bool))


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5),
    st.sampled_from(KINDS),
    block_sizes(),
)
def test_from_cu_seqlens_keeps_documents_apart(parts, kind, block_size):
    q = np.concatenate([[0], np.cumsum([a for a, _ in parts])]).astype(int)
    k = np.concatenate([[0], np.cumsum([b for _, b in parts])]).astype(int)
    plan = mp.from_cu_seqlens(q, k, kind, block_size=block_size)
    spans = [((q[i], q[i + 1]), (k[i], k[i + 1])) for i in range(len(parts))]
    expected = dense_of(
        int(q[-1]),
        int(k[-1]),
        lambda i, j: any(slice_keeps(i, j, *span, kind) for span in spans),
    )
    assert_plan(plan, expected)


def test_from_cu_seqlens_takes_the_queries_lengths_for_the_keys():
    assert mp.from_cu_seqlens([0, 3, 10], kinds="causal") == mp.documents([3, 7], causal=True)


@settings(max_examples=60)
@given(geometries())
def test_full_keeps_every_pair(geometry):
    plan = mp.full(geometry.seqlen_q, geometry.seqlen_k, block_size=geometry.block_size)
    assert_plan(plan, torch.ones(1, 1, geometry.seqlen_q, geometry.seqlen_k, dtype=torch.bool))
    assert plan.tile_id is None


@settings(max_examples=80)
@given(geometries(), st.sampled_from(["top_left", "bottom_right"]))
def test_causal_is_aligned_as_asked(geometry, align):
    sq, sk = geometry.seqlen_q, geometry.seqlen_k
    plan = mp.causal(sq, sk, align=align, block_size=geometry.block_size)
    offset = 0 if align == "top_left" else sk - sq
    assert_plan(plan, dense_of(sq, sk, lambda q, k: k <= q + offset))


@settings(max_examples=120)
@given(
    geometries(),
    st.one_of(st.none(), lengths()),
    st.one_of(st.none(), lengths()),
    st.sampled_from(["top_left", "bottom_right"]),
)
def test_sliding_window_sees_both_sides(geometry, left, right, align):
    sq, sk = geometry.seqlen_q, geometry.seqlen_k
    plan = mp.sliding_window(
        sq, sk, left=left, right=right, align=align, block_size=geometry.block_size
    )
    offset = 0 if align == "top_left" else sk - sq
    expected = dense_of(
        sq,
        sk,
        lambda q, k: (
            (left is None or k >= q + offset - left) and (right is None or k <= q + offset + right)
        ),
    )
    assert_plan(plan, expected)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 20), max_size=6), st.booleans(), block_sizes())
def test_documents_see_themselves_only(runs, causal, block_size):
    owner = [number for number, run in enumerate(runs) for _ in range(run)]
    plan = mp.documents(runs, causal=causal, block_size=block_size)
    expected = dense_of(
        len(owner), len(owner), lambda q, k: owner[q] == owner[k] and (not causal or k <= q)
    )
    assert_plan(plan, expected)


def test_equal_lengths_need_no_alignment():
    assert mp.causal(20, 20) == mp.causal(20, 20, align="bottom_right")


def test_extreme_windows_do_not_overflow():
    far = 2**31
    assert mp.sliding_window(50, 50, left=far, right=2**40) == mp.full(50, 50)


BAD = {
    "backwards": (
        lambda: mp.from_ranges([[0, 4], [9, 3]], [[0, 4], [0, 4]], "full", 10, 10),
        mp.PlanError,
        ("q_ranges[1]", "[9, 3)", "0 <= start <= stop <= seqlen_q = 10", "clip"),
    ),
    "past the end": (
        lambda: mp.from_ranges([[0, 4]], [[0, 14]], "full", 10, 12),
        mp.PlanError,
        ("k_ranges[0]", "[0, 14)", "seqlen_k = 12"),
    ),
    "other counts": (
        lambda: mp.from_ranges([[0, 4]], [[0, 4], [1, 2]], "full", 10, 10),
        mp.PlanError,
        ("k_ranges", "2 entries", "1, as q_ranges"),
    ),
    "other number of kinds": (
        lambda: mp.from_ranges([[0, 4]], [[0, 4]], [0, 1], 10, 10),
        mp.PlanError,
        ("kinds", "2 entries", "1, as q_ranges"),
    ),
    "unknown kind": (
        lambda: mp.from_ranges([[0, 4]], [[0, 4]], ["casual"], 10, 10),
        mp.PlanTypeError,
        ("kinds[0]", "'casual'", "'inverse_causal' or 2"),
    ),
    "kind out of range": (
        lambda: mp.from_ranges([[0, 4]], [[0, 4]], 4, 10, 10),
        mp.PlanTypeError,
        ("kinds", "got 4", "'bi_causal' or 3"),
    ),
    "float ranges": (
        lambda: mp.from_ranges([[0.0, 4.0]], [[0, 4]], 0, 10, 10),
        mp.PlanTypeError,
        ("q_ranges", "float64 [1, 2]", "integers of shape [any, 2]"),
    ),
    "three columns": (
        lambda: mp.from_ranges([[0, 4, 5]], [[0, 4]], 0, 10, 10),
        mp.PlanTypeError,
        ("q_ranges", "[1, 3]", "[any, 2]"),
    ),
    "sums that decrease": (
        lambda: mp.from_cu_seqlens([0, 5, 3]),
        mp.PlanError,
        ("cu_seqlens_q[2]", "got 3", "at least 5", "running sums"),
    ),
    "sums that do not start at 0": (
        lambda: mp.from_cu_seqlens([0, 3], [1, 3]),
        mp.PlanError,
        ("cu_seqlens_k[0]", "got 1", "wanted 0"),
    ),
    "no sums": (
        lambda: mp.from_cu_seqlens([]),
        mp.PlanError,
        ("cu_seqlens_q[0]", "no entries", "wanted 0"),
    ),
    "other numbers of documents": (
        lambda: mp.from_cu_seqlens([0, 3], [0, 3, 4]),
        mp.PlanError,
        ("cu_seqlens_k", "3 entries", "2, as cu_seqlens_q"),
    ),
    "no alignment": (
        lambda: mp.causal(5, 7),
        mp.PlanError,
        ("align", "seqlen_q = 5 and seqlen_k = 7", "'top_left' or 'bottom_right'", "diagonal"),
    ),
    "unknown alignment": (
        lambda: mp.causal(5, 5, align="middle"),
        mp.PlanError,
        ("align", "'middle'", "'bottom_right'"),
    ),
    "negative window": (
        lambda: mp.sliding_window(5, 5, left=-1, right=0),
        mp.PlanError,
        ("left", "got -1", "or None", "left=None"),
    ),
    "negative document": (
        lambda: mp.documents([4, -1]),
        mp.PlanError,
        ("lengths[1]", "got -1", "from 0 up"),
    ),
    "negative length": (
        lambda: mp.full(-1, 5),
        mp.PlanError,
        ("seqlen_q", "got -1", "0 <= seqlen_q"),
    ),
    "block of 0": (
        lambda: mp.full(5, 5, block_size=(0, 1)),
        mp.PlanError,
        ("block_size[0]", "got 0", "1 <= block_size[0]"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_cumulative_lengths_whose_differences_overflow_are_refused():
    with pytest.raises(mp.PlanError, match=r"cu_seqlens_q\[2\]: got -9223372036854775808"):
        mp.from_cu_seqlens([0, 2**63 - 1, -(2**63), -1, 16])


def test_document_lengths_whose_sum_overflows_are_refused():
    with pytest.raises(mp.PlanError, match=f"seqlen_q: got {2**64}"):
        mp.documents([2**62] * 4)


@pytest.mark.parametrize("number", [np.int32(2), np.int64(2), torch.tensor(2)])
def test_numbers_of_numpy_and_torch_are_numbers(number):
    window = mp.sliding_window(8, 8, left=number, right=0)

    assert window == mp.sliding_window(8, 8, left=2, right=0)
    assert window.provenance == mp.sliding_window(8, 8, left=2, right=0).provenance
    assert window.crop(q=(number, 8)) == window.crop(q=(2, 8))
    assert mp.documents([number, 3], causal=np.bool_(True)) == mp.documents([2, 3], causal=True)


def test_one_kind_may_be_a_number_of_numpy():
    kinds = [
        mp.from_ranges([[0, 4]], [[0, 4]], kind, 4, 4, block_size=(2, 2))
        for kind in (1, np.int64(1))
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("lengths", [[[1], [2, 3]], torch.tensor([1.0, 2.0], requires_grad=True)])
def test_lengths_that_are_no_list_of_integers_are_named(lengths):
    with pytest.raises(mp.PlanTypeError, match=r"in lengths: got .* wanted integers of shape"):
        mp.documents(lengths)
