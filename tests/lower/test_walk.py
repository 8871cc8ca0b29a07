"""Walks read back into dense masks, and their orders, against loops."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.lower.schedule import longest_first
from maskplan.lower.walk import Walk, forward_walk, loop_k_walk, loop_q_walk
from tests.oracle import plan_of_dense
from tests.strategies import plans


def bit_of(walk: Walk, tile: int, row: int, column: int) -> bool:
    """Whether a part keeps the pair: -1 is all, -2 is none."""
    if tile < 0:
        return tile == -1
    return bool((int(walk.tiles[tile, row, column // 32]) >> (column % 32)) & 1)


def dense_of_forward(walk: Walk, pattern: int, shape: tuple[int, int]) -> torch.Tensor:
    dense = torch.zeros(shape, dtype=torch.bool)
    for row in range(walk.rows):
        start, stop = walk.row_ptr[pattern * walk.rows + row :][:2].tolist()
        listed = walk.col[start:stop].tolist()
        assert listed == sorted(set(listed)), "one ascending list a row"
        for entry in range(start, stop):
            assert (walk.tile_id[entry] != -2).any(), "an entry that every part skips"
            for part in range(walk.parts):
                top = (row * walk.parts + part) * walk.part_tokens
                left = int(walk.col[entry]) * walk.col_tokens
                for i in range(min(walk.part_tokens, shape[0] - top)):
                    for j in range(min(walk.col_tokens, shape[1] - left)):
                        keep = bit_of(walk, int(walk.tile_id[entry, part]), i, j)
                        dense[top + i, left + j] |= keep
    return dense


def dense_of_loop_k(walk: Walk, pattern: int, shape: tuple[int, int]) -> torch.Tensor:
    """[SQ, SK] of rows of queries whose bits are those of the transposed scores."""
    dense = torch.zeros(shape, dtype=torch.bool)
    for row in range(walk.rows):
        start, stop = walk.row_ptr[pattern * walk.rows + row :][:2].tolist()
        for entry in range(start, stop):
            top, left = row * walk.part_tokens, int(walk.col[entry]) * walk.col_tokens
            for i in range(min(walk.part_tokens, shape[0] - top)):
                for j in range(min(walk.col_tokens, shape[1] - left)):
                    dense[top + i, left + j] |= bit_of(walk, int(walk.tile_id[entry, 0]), j, i)
    return dense


def dense_of_loop_q(walk: Walk, pattern: int, shape: tuple[int, int]) -> torch.Tensor:
    """[SK, SQ]: rows are keys, and the bits are those of the transposed scores."""
    dense = torch.zeros(shape, dtype=torch.bool)
    for row in range(walk.rows):
        start, stop = walk.row_ptr[pattern * walk.rows + row :][:2].tolist()
        for entry in range(start, stop):
            for part in range(walk.parts):
                top = row * walk.col_tokens
                left = (int(walk.col[entry]) * walk.parts + part) * walk.part_tokens
                for i in range(min(walk.col_tokens, shape[0] - top)):
                    for j in range(min(walk.part_tokens, shape[1] - left)):
                        keep = bit_of(walk, int(walk.tile_id[entry, part]), i, j)
                        dense[top + i, left + j] |= keep
    return dense


@settings(max_examples=40)
@given(plans(), st.sampled_from([1, 2, 4]))
def test_walks_mean_the_plan(plan, parts):
    dense = plan.to_dense()
    forward, loop_q = forward_walk(plan, parts=parts), loop_q_walk(plan, parts=parts)
    loop_k = loop_k_walk(plan)
    for b in range(plan.batch):
        for h in range(plan.heads):
            pattern = int(plan.pattern_id[b, h])
            mask = dense[b, h]
            assert torch.equal(dense_of_forward(forward, pattern, tuple(mask.shape)), mask)
            assert torch.equal(dense_of_loop_q(loop_q, pattern, tuple(mask.T.shape)), mask.T)
            assert torch.equal(dense_of_loop_k(loop_k, pattern, tuple(mask.shape)), mask)


@settings(max_examples=60)
@given(plans(), st.sampled_from([1, 2, 4]), st.booleans())
def test_write_order_ranks_the_kv_blocks_of_each_q_tile(plan, parts, spt):
    walk = loop_q_walk(plan, parts=parts, spt=spt)
    assert walk.spt == spt
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for line in range(len(walk.row_ptr) - 1):
        pattern, column = divmod(line, max(walk.rows, 1))
        for entry in range(int(walk.row_ptr[line]), int(walk.row_ptr[line + 1])):
            for part in range(parts):
                rank = int(walk.write_order[entry, part])
                assert (rank == -1) == (int(walk.tile_id[entry, part]) == -2)
                if rank >= 0:
                    tile = (pattern, int(walk.col[entry]) * parts + part)
                    seen.setdefault(tile, []).append((column, rank))
    for ranks in seen.values():
        ordered = [rank for _, rank in sorted(ranks, reverse=spt)]
        assert ordered == list(range(len(ordered)))


@given(plans(), st.sampled_from([1, 2]))
def test_schedule_starts_the_longest_rows_first(plan, parts):
    walk = forward_walk(plan, parts=parts)
    lengths = walk.row_ptr.diff().view(-1, walk.rows) if walk.rows else torch.zeros(1, 0).long()
    work = lengths[plan.pattern_id.long()].flatten().tolist()
    order = walk.order.tolist()

    assert sorted(order) == list(range(len(work)))
    assert order == sorted(range(len(work)), key=lambda item: (-work[item], item))


def test_ties_keep_their_order():
    assert longest_first(torch.tensor([1, 3, 3, 0, 3])).tolist() == [1, 2, 4, 0, 3]


def causal(n: int, block_size: tuple[int, int], heads: int = 1) -> mp.Plan:
    ids = torch.zeros(1, heads, dtype=torch.int32)
    return plan_of_dense(torch.ones(1, n, n).tril().bool(), ids, block_size).canonical()


def test_lower_reblocks_to_the_tiles_of_sm100():
    lowered = causal(700, (64, 64)).lower(mp.target("sm100"), backward=("loop_q", "loop_k"))

    assert lowered.forward.parts == 2
    assert lowered.forward.part_tokens == lowered.forward.col_tokens == 128
    assert lowered.forward.rows == 3
    assert lowered.loop_k.parts == 1
    assert lowered.loop_q.rows == 6
    # The last Q tile of a pair sees one KV block more than the first, which skips it.
    assert lowered.forward.tile_id[: int(lowered.forward.row_ptr[1])].tolist() == [[0, -1], [-2, 0]]


def test_lower_of_few_rows_uses_one_tile():
    assert causal(128, (128, 128)).lower(mp.target("sm100")).forward.parts == 1


def test_lower_for_the_cpu_keeps_the_blocks_of_the_plan():
    plan = causal(50, (7, 9))
    lowered = plan.lower("cpu", backward=())

    assert lowered.forward.part_tokens, lowered.forward.col_tokens == (7, 9)
    assert lowered.loop_q is None
    assert torch.equal(lowered.forward.col, plan.col)


@pytest.mark.parametrize(("tokens", "parts", "rows"), [(16, 2, 8), (32, 2, 8), (64, 1, 4)])
def test_packed_rows_share_lists_inside_a_block(tokens, parts, rows):
    """Group 8: a tile of 128 packed rows is 16 tokens, a pair 32; larger blocks keep one list."""
    target = mp.target("sm100", group=8, pack_gqa=True)
    lowered = causal(256, (tokens, 128)).lower(target)

    assert (lowered.forward.parts, lowered.forward.rows) == (parts, rows)


def test_backward_walks_are_in_single_tiles_where_the_forward_shares_rows():
    target = mp.target("sm100", group=8, pack_gqa=True)
    plan = causal(256, (64, 128))
    lowered = plan.lower(target, backward=("loop_q", "loop_k"))

    assert lowered.forward.part_tokens == 64
    assert lowered.loop_q.part_tokens == lowered.loop_k.part_tokens == 16
    assert lowered.loop_k.rows == 16
    assert lowered.loop_q.tiles is lowered.loop_k.tiles
    dense = plan.to_dense()[0, 0]
    assert torch.equal(dense_of_loop_q(lowered.loop_q, 0, (256, 256)), dense.T)
    assert torch.equal(dense_of_loop_k(lowered.loop_k, 0, (256, 256)), dense)


def test_lowered_plans_are_pytrees_and_pickle():
    lowered = causal(300, (128, 128)).lower("sm100")
    leaves, spec = pytree.tree_flatten(lowered)
    again = pytree.tree_unflatten(leaves, spec)

    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves if leaf is not None)
    assert again.forward.parts == lowered.forward.parts
    assert torch.equal(again.loop_q.write_order, lowered.loop_q.write_order)
    assert torch.equal(pickle.loads(pickle.dumps(lowered)).forward.col, lowered.forward.col)


@pytest.mark.parametrize(
    ("act", "error", "parts"),
    [
        (lambda p: p.lower("sm100", subtile=3), mp.PlanError, ["subtile", "3", "(1, 2, 4)"]),
        (lambda p: p.lower("sm100", backward=("loop_z",)), mp.PlanError, ["'loop_z'"]),
        (lambda p: p.lower("sm90", backward=("loop_k",)), mp.UnsupportedError, ["sm100 alone"]),
        (lambda p: p.lower("sm70"), mp.PlanError, ["'sm70'", "sm90"]),
        (lambda p: mp.Plan.lower(p.transpose(), "cpu"), mp.PlanTypeError, ["TransposedPlan"]),
    ],
)
def test_lower_refuses(act, error, parts):
    with pytest.raises(error) as caught:
        act(causal(128, (128, 128)))

    for part in parts:
        assert part in str(caught.value)


def test_each_direction_of_sm90_has_its_own_tiles():
    """Head dimension 192: 64 keys forward, 96 backward, of one plan and in one numbering."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(3, 140, 230, generator=generator) < 0.02
    plan = plan_of_dense(dense, torch.tensor([[2, 0, 2, 1]], dtype=torch.int32), (128, 128))
    lowered = plan.lower(mp.target("sm90", head_dim=192))

    assert (lowered.forward.col_tokens, lowered.loop_q.col_tokens) == (64, 96)
    for head, pattern in enumerate([2, 0, 2, 1]):
        number = int(lowered.pattern_id[0, head])
        assert torch.equal(dense_of_forward(lowered.forward, number, (140, 230)), dense[pattern])
        assert torch.equal(dense_of_loop_q(lowered.loop_q, number, (230, 140)), dense[pattern].T)
