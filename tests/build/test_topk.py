"""Top-k lists against sets of pairs."""

import resource
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from tests.oracle import assert_plan, dense_of_pairs
from tests.strategies import bad_token_topk, block_sizes, head_shapes, lengths, token_topk


def plan_of(case, **options) -> mp.Plan:
    return mp.from_topk(
        case.indices,
        case.geometry.seqlen_k,
        block_size=case.geometry.block_size,
        lengths=case.lengths,
        **options,
    )


def expected_of(case) -> torch.Tensor:
    batch, heads, rows, _ = case.indices.shape
    return dense_of_pairs(case.pairs(), (batch, heads, rows, case.geometry.seqlen_k))


@settings(max_examples=200)
@given(token_topk())
def test_from_topk_keeps_the_pairs_listed(case):
    assert_plan(plan_of(case), expected_of(case))


@settings(max_examples=40)
@given(token_topk())
def test_threads_do_not_change_the_plan(case):
    with mock.patch("torch.get_num_threads", return_value=1):
        one = plan_of(case)
    with mock.patch("torch.get_num_threads", return_value=5):
        many = plan_of(case)
    assert_plan(many, one.to_dense())
    for name in ("pattern_id", "row_ptr", "col", "tiles"):
        assert torch.equal(getattr(one, name), getattr(many, name))


@settings(max_examples=40)
@given(token_topk())
def test_a_global_base_counts_over_batches(case):
    offset = torch.arange(len(case.indices))[:, None, None, None] * case.geometry.seqlen_k
    moved = torch.where(case.indices < 0, -1, case.indices.long() + offset)
    if case.lengths is not None:
        beyond = torch.arange(moved.shape[3]) >= case.lengths[..., None]
        moved = torch.where(beyond, -7, moved)
    assert plan_of(replace(case, indices=moved), base="global") == plan_of(case)


@st.composite
def whole_topk(draw):
    """(ids of KV blocks [B, H, lists, topk], rows option, geometry)."""
    rows = draw(st.sampled_from(["token", "block"]))
    geometry = mp.Geometry(
        seqlen_q=draw(lengths()), seqlen_k=draw(lengths()), block_size=draw(block_sizes())
    )
    lists = geometry.seqlen_q if rows == "token" else geometry.num_q_blocks
    shape = (*draw(head_shapes()), lists, draw(st.integers(0, 4)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = torch.randint(-1, max(geometry.num_k_blocks, 1), shape, generator=generator)
    if not geometry.num_k_blocks:
        ids.fill_(-1)
    return ids, rows, geometry


@settings(max_examples=120)
@given(whole_topk())
def test_block_ids_keep_whole_blocks(case):
    ids, rows, geometry = case
    bq, bk = geometry.block_size
    plan = mp.from_topk(
        ids,
        geometry.seqlen_k,
        block_size=(bq, bk),
        rows=rows,
        unit="block",
        seqlen_q=geometry.seqlen_q,
    )
    pairs = set()
    for b, h, row, slot in (ids >= 0).nonzero().tolist():
        first = row * bq if rows == "block" else row
        last = min(first + (bq if rows == "block" else 1), geometry.seqlen_q)
        left = int(ids[b, h, row, slot]) * bk
        for q in range(first, last):
            pairs |= {(b, h, q, k) for k in range(left, min(left + bk, geometry.seqlen_k))}
    assert_plan(plan, dense_of_pairs(pairs, (*ids.shape[:2], geometry.seqlen_q, geometry.seqlen_k)))


@settings(max_examples=60)
@given(token_topk())
def test_a_list_per_block_serves_all_its_queries(case):
    """rows="block" with tokens: the same as repeating each list for the queries of its block."""
    bq = case.geometry.block_size[0]
    lists = case.indices[:, :, ::bq]
    counts = None if case.lengths is None else case.lengths[:, :, ::bq]
    per_block = plan_of(
        replace(case, indices=lists, lengths=counts),
        rows="block",
        seqlen_q=case.geometry.seqlen_q,
    )
    again = torch.arange(case.geometry.seqlen_q) // bq
    repeated = replace(
        case,
        indices=lists[:, :, again],
        lengths=None if counts is None else counts[:, :, again],
    )
    assert per_block == plan_of(repeated)


@settings(max_examples=80)
@given(bad_token_topk(), st.sampled_from([1, 4]))
def test_a_bad_index_is_named_with_its_place(case, threads):
    with (
        mock.patch("torch.get_num_threads", return_value=threads),
        pytest.raises(mp.PlanError) as caught,
    ):
        mp.from_topk(case.indices, case.geometry.seqlen_k, block_size=case.geometry.block_size)
    b, h, row, slot = case.place
    message = str(caught.value)
    assert f"indices[b={b}, h={h}, row={row}, slot={slot}]: got {case.value}" in message
    assert f"0 <= token < {case.geometry.seqlen_k}, or -1" in message
    assert "mark unused slots with -1" in message


def test_runs_of_whole_blocks_are_full_in_any_order_of_blocks():
    """Aligned runs, a ragged last block, an unaligned run and a broken one, at bq = 1."""
    keys = [list(range(64, 70)), list(range(32, 64)), list(range(1, 33)), [0, *range(2, 32), 1]]
    lists = torch.full((1, 1, 4, 33), -1, dtype=torch.int32)
    for row, chosen in enumerate(keys):
        lists[0, 0, row, : len(chosen)] = torch.tensor(chosen)
    plan = mp.from_topk(lists, 70, block_size=(1, 32))
    pairs = {(0, 0, row, key) for row, chosen in enumerate(keys) for key in chosen}
    assert_plan(plan, dense_of_pairs(pairs, (1, 1, 4, 70)))
    assert plan.row_ptr.tolist() == [0, 1, 2, 4, 5]
    assert plan.tile_id.tolist() == [-1, -1, 0, 1, -1]


def test_a_run_and_single_keys_of_one_block_meet_in_one_row():
    """A block seen whole and key by key in one list is full, and leaves nothing behind."""
    row = [*range(32, 64), 40, 33, -1, 5]
    lists = torch.tensor([row, [40] + [-1] * (len(row) - 1)])[None, None]
    plan = mp.from_topk(lists, 64, block_size=(1, 32))
    pairs = {(0, 0, 0, key) for key in row if key >= 0} | {(0, 0, 1, 40)}
    assert_plan(plan, dense_of_pairs(pairs, (1, 1, 2, 64)))


def test_int64_runs_are_compared_in_64_bits():
    """Keys that ascend by one modulo 2**32 only are not a run, and are refused."""
    row = torch.arange(32)
    row[7] += 2**32
    with pytest.raises(mp.PlanError, match=r"slot=7\]: got 4294967303"):
        mp.from_topk(row[None, None, None], 64, block_size=(1, 32))


def test_a_view_of_256_gb_is_planned_once():
    """[4, 64, 16384, 16384] int32 by `expand`: 256 GiB named, 1 MiB held."""
    own = (torch.arange(16384) * 32 % 524_288).to(torch.int32)
    lists = own.view(1, 1, 1, -1).expand(1, 1, 16, -1).contiguous()
    wide = lists.expand(64, 4096, 16, 16384)
    assert wide.numel() * 4 == 2**38
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = mp.from_topk(wide, 524_288, block_size=(16, 128))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (plan.batch, plan.heads, plan.num_patterns) == (64, 4096, 1)
    assert plan.num_blocks == 4096
    if sys.platform == "linux":
        assert grown < 200 * 1024, f"{grown} KiB"


def test_lengths_split_lists_that_memory_shares():
    """Heads share the indices, and not the lengths."""
    lists = torch.arange(6).view(1, 1, 1, 6).expand(1, 2, 3, 6)
    counts = torch.tensor([[[0, 1, 2], [3, 4, 5]]])
    plan = mp.from_topk(lists, 6, block_size=(2, 2), lengths=counts)
    expected = torch.arange(6) < counts[..., None]
    assert_plan(plan, expected)


def test_equal_heads_share_a_pattern():
    generator = torch.Generator().manual_seed(0)
    one = torch.randint(0, 100, (1, 1, 20, 7), generator=generator)
    plan = mp.from_topk(one.repeat(2, 3, 1, 1), 100, block_size=(8, 8))
    assert plan.num_patterns == 1
    assert plan.pattern_id.tolist() == [[0] * 3] * 2


def lists_of(*values: int) -> torch.Tensor:
    return torch.tensor([list(values)])[None, None]


BAD = {
    "3-d indices": (
        lambda: mp.from_topk(torch.zeros(2, 3, 4, dtype=torch.int32), 8),
        mp.PlanTypeError,
        ("indices", "3 axes [2, 3, 4]", "[batch, heads, rows, topk]", "indices[:, None]"),
    ),
    "float indices": (
        lambda: mp.from_topk(torch.zeros(1, 1, 3, 4), 8),
        mp.PlanTypeError,
        ("indices", "float32", "int32 or int64", "indices.to(torch.int32)"),
    ),
    "a list": (
        lambda: mp.from_topk([[[[1]]]], 8),
        mp.PlanTypeError,
        ("indices", "got list", "torch.Tensor"),
    ),
    "another device": (
        lambda: mp.from_topk(torch.zeros(1, 1, 3, 4, dtype=torch.int32, device="meta"), 8),
        mp.PlanTypeError,
        ("indices", "device meta", "device cpu", "indices.cpu()"),
    ),
    "sparse indices": (
        lambda: mp.from_topk(torch.zeros(1, 1, 3, 4, dtype=torch.int32).to_sparse(), 8),
        mp.PlanTypeError,
        ("indices", "sparse_coo", "all elements, with strides", "indices.to_dense()"),
    ),
    "nested indices": (
        lambda: mp.from_topk(torch.nested.nested_tensor([lists_of(1)[0]], layout=torch.jagged), 8),
        mp.PlanTypeError,
        ("indices", "nested", "a padded tensor"),
    ),
    "a flag in words": (
        lambda: mp.from_topk(lists_of(1), 8, whole="no"),
        mp.PlanTypeError,
        ("whole", "'no' of type str", "True or False"),
    ),
    "a length of several": (
        lambda: mp.from_topk(lists_of(1), torch.tensor([8, 9])),
        mp.PlanTypeError,
        ("seqlen_k", "tensor([8, 9]) of type Tensor", "an int"),
    ),
    "no heads": (
        lambda: mp.from_topk(torch.zeros(1, 0, 3, 4, dtype=torch.int32), 8),
        mp.PlanError,
        ("indices", "[1, 0, 3, 4]", "at least one batch and one head"),
    ),
    "unknown unit": (
        lambda: mp.from_topk(lists_of(1), 8, unit="page"),
        mp.PlanTypeError,
        ("unit", "'page'", "'token' or 'block'"),
    ),
    "other query length": (
        lambda: mp.from_topk(lists_of(1), 8, seqlen_q=5),
        mp.PlanError,
        ("axis 2 (rows)", "got 1", "wanted 5, one list per query", "5 x 8 tokens"),
    ),
    "block rows without length": (
        lambda: mp.from_topk(lists_of(1), 8, rows="block"),
        mp.PlanError,
        ("seqlen_q", "rows='block'", "1 Q blocks"),
    ),
    "other number of block rows": (
        lambda: mp.from_topk(lists_of(1), 8, rows="block", seqlen_q=300),
        mp.PlanError,
        ("axis 2 (rows)", "got 1", "wanted 3, one list per Q block"),
    ),
    "block id out of range": (
        lambda: mp.from_topk(lists_of(0, 2), 256, unit="block"),
        mp.PlanError,
        ("slot=1]", "got 2", "0 <= block < 2", "masked_fill(indices >= 2, -1)"),
    ),
    "length past topk": (
        lambda: mp.from_topk(lists_of(1, 2), 8, lengths=torch.tensor([[[3]]])),
        mp.PlanError,
        ("lengths[b=0, h=0, row=0]", "got 3", "0 <= length <= topk = 2"),
    ),
    "negative length": (
        lambda: mp.from_topk(lists_of(1, 2), 8, lengths=torch.tensor([[[-1]]])),
        mp.PlanError,
        ("lengths[b=0, h=0, row=0]", "got -1"),
    ),
    "other shape of lengths": (
        lambda: mp.from_topk(lists_of(1, 2), 8, lengths=torch.tensor([[[1, 1]]])),
        mp.PlanError,
        ("lengths", "[1, 1, 2]", "[1, 1, 1]"),
    ),
    "float lengths": (
        lambda: mp.from_topk(lists_of(1, 2), 8, lengths=torch.tensor([[[1.0]]])),
        mp.PlanTypeError,
        ("lengths", "float32", "int32 or int64"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
