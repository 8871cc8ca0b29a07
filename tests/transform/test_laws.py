"""The laws of plans made from plans, each stated through the dense mask."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from tests.oracle import plan_of_dense
from tests.strategies import block_sizes, geometries, head_shapes, plans

FIELDS = ("pattern_id", "row_ptr", "col", "tile_id", "tiles")


def plan_from(dense: torch.Tensor, block_size: tuple[int, int]) -> mp.Plan:
    """The plan of bool [B, H, SQ, SK], made by loops."""
    batch, heads = dense.shape[:2]
    ids = torch.arange(batch * heads, dtype=torch.int32).view(batch, heads)
    if not dense.shape[2]:
        return plan_of_dense(dense[0, :1], torch.zeros_like(ids), block_size).canonical()
    return plan_of_dense(dense.flatten(0, 1), ids, block_size).canonical()


def assert_same_arrays(one: mp.Plan, other: mp.Plan) -> None:
    """Equal bit for bit, dtype, shape and tail."""
    assert one.geometry == other.geometry
    for name in FIELDS:
        a, b = getattr(one, name), getattr(other, name)

        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, name
            assert a.shape == b.shape, name
            assert torch.equal(a, b), name


@st.composite
def plan_pairs(draw: st.DrawFn) -> tuple[mp.Plan, mp.Plan]:
    """Two plans of one geometry whose batch and heads broadcast."""
    geometry = draw(geometries(high=50))
    batch, heads = draw(head_shapes())
    own = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])))
    canonical = draw(st.booleans())
    first = draw(plans(geometry=geometry, heads=(batch, heads), canonical=canonical))
    second = draw(plans(geometry=geometry, heads=own))
    return (first, second) if draw(st.booleans()) else (second, first)


@given(plans(canonical=False))
def test_canonical_keeps_the_meaning_and_is_a_fixed_point(plan):
    normal = plan.canonical()

    assert torch.equal(normal.to_dense(), plan.to_dense())
    assert normal == plan
    assert normal.digest == plan.digest
    assert_same_arrays(normal.validate(), normal.canonical())


@given(plans(canonical=False))
def test_canonical_is_a_function_of_mask_and_block_size(plan):
    assert_same_arrays(plan.canonical(), plan_from(plan.to_dense(), plan.block_size))


@given(plan_pairs())
def test_algebra_is_that_of_dense_masks(pair):
    left, right = pair
    a, b = torch.broadcast_tensors(left.to_dense(), right.to_dense())
    for got, want in ((left & right, a & b), (left | right, a | b), (left - right, a & ~b)):
        assert_same_arrays(got.validate(), plan_from(want, left.block_size))


@given(plans(canonical=False))
def test_transpose_is_that_of_the_dense_mask_and_an_involution(plan):
    turned = plan.transpose()

    assert type(turned) is mp.TransposedPlan
    assert turned.block_size == plan.block_size
    assert torch.equal(turned.validate().to_dense(), plan.to_dense().transpose(2, 3))
    assert turned.transpose() == plan
    assert turned.transpose().transpose() == turned


@given(plans())
def test_transpose_of_a_canonical_plan_is_canonical(plan):
    turned = plan.transpose()

    assert_same_arrays(turned, turned.canonical())
    assert_same_arrays(turned.transpose(), plan)


@given(plans(canonical=False), block_sizes())
def test_reblock_is_exact_and_the_smallest_cover(plan, block_size):
    expected = plan_from(plan.to_dense(), block_size)

    assert_same_arrays(plan.reblock(block_size).validate(), expected)
    assert plan.transpose().reblock(block_size) == expected.transpose()


@given(plans(), st.integers(1, 4), st.integers(1, 4))
def test_reblock_to_multiples_composes(plan, s, t):
    bq, bk = plan.block_size
    once = plan.reblock((bq * s * 2, bk * t * 2))

    assert_same_arrays(once, plan.reblock((bq * s, bk * t)).reblock((bq * s * 2, bk * t * 2)))
    assert_same_arrays(plan.reblock((bq, bk)), plan)


@given(plans(), block_sizes())
def test_superset_lists_the_same_blocks_whole(plan, block_size):
    exact, whole = plan.reblock(block_size), plan.reblock(block_size, superset=True)
    counts = exact.row_ptr.diff().view(exact.num_patterns, -1)[exact.pattern_id.long()]
    whole_counts = whole.row_ptr.diff().view(whole.num_patterns, -1)[whole.pattern_id.long()]

    assert whole.tile_id is None
    assert not (plan.to_dense() & ~whole.to_dense()).any()
    assert torch.equal(counts, whole_counts)


@given(plans(), st.data())
def test_crop_slices_the_dense_mask(plan, data):
    q = tuple(sorted(data.draw(st.tuples(*[st.integers(0, plan.seqlen_q)] * 2))))
    k = tuple(sorted(data.draw(st.tuples(*[st.integers(0, plan.seqlen_k)] * 2))))
    dense = plan.to_dense()[:, :, q[0] : q[1], k[0] : k[1]]

    assert_same_arrays(plan.crop(q=q, k=k), plan_from(dense, plan.block_size))
    assert plan.crop() == plan


@given(plans(), st.integers(1, 5))
def test_q_shards_are_whole_blocks_and_join_to_the_plan(plan, count):
    parts = [plan.shard("q", i, count) for i in range(count)]

    assert torch.equal(torch.cat([p.to_dense() for p in parts], dim=2), plan.to_dense())
    blocks = [p.geometry.num_q_blocks for p in parts]
    assert max(blocks) - min(blocks) <= 1
    assert sum(blocks) == plan.geometry.num_q_blocks


@given(plans(heads=(2, 6)), st.sampled_from([1, 2, 3, 6]))
def test_head_shards_join_to_the_plan(plan, count):
    parts = [plan.shard("heads", i, count) for i in range(count)]

    assert torch.equal(torch.cat([p.to_dense() for p in parts], dim=1), plan.to_dense())
    for part in parts:
        assert_same_arrays(part, part.canonical())


@given(plans(), st.integers(1, 4))
def test_with_heads_repeats_each_head_for_its_group(plan, group):
    wide = plan.with_heads(plan.heads * group)

    assert torch.equal(wide.to_dense(), plan.to_dense().repeat_interleave(group, dim=1))
    assert wide.col.data_ptr() == plan.col.data_ptr(), "patterns are shared, not copied"


@given(plans(canonical=False))
def test_amplification_is_visited_over_kept(plan):
    bq, bk = plan.block_size
    dense = plan.canonical().to_dense()
    kept, visited = int(dense.sum()), 0
    for top in range(0, plan.seqlen_q, bq):
        for left in range(0, plan.seqlen_k, bk):
            block = dense[:, :, top : top + bq, left : left + bk]
            visited += int(block.flatten(2).any(-1).sum()) * block[0, 0].numel()

    assert mp.amplification(plan.canonical()) == pytest.approx(visited / kept if kept else 1.0)
