"""Token tiles, against loops over the lists: tables, counts, bits, pairs, and what is refused."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.lower.token_lists import whole_blocks
from tests.oracle import dense_of_pairs
from tests.strategies import token_topk

GROUPS = (1, 2, 8)


def wanted_rows(indices: torch.Tensor) -> list:
    """[b][h][q] -> set of keys, by loops."""
    return [[[{k for k in row if k != -1} for row in h] for h in b] for b in indices.tolist()]


def read_rows(tiles: mp.TokenTiles, b: int, h: int) -> list[set[int]]:
    """The keys each packed row of a head attends, by loops over the tables; checks the tables."""
    rows = []
    total = tiles.seqlen_q * tiles.rows_per_token
    for m in range(ceil(total / tiles.tile_rows)):
        table = tiles.tile_token_indices[b, h, m].tolist()
        count = int(tiles.valid_counts[b, h, m])
        keys = table[:count]
        assert keys == sorted(set(keys))
        assert all(0 <= key < tiles.seqlen_k for key in keys)
        assert table[count:] == [-1] * (len(table) - count)
        for row in range(min(tiles.tile_rows, total - m * tiles.tile_rows)):
            if tiles.row_bits is None:
                rows.append(set(keys))
                continue
            words = tiles.row_bits[b, h, m, row].tolist()
            seen = {i for i in range(len(table)) if words[i // 32] >> (i % 32) & 1}
            assert all(i < count for i in seen)
            rows.append({keys[i] for i in seen})
        check_blocks(tiles, (b, h, m), count, rows[m * tiles.tile_rows :])
    return rows


def check_blocks(tiles, place, count, rows):
    """Each block of the list once, ascending, and full exactly where no row needs a mask."""
    lists = tiles.blocks
    full = [n for n in lists.full_block_idx[place].tolist() if n >= 0]
    mask = [n for n in lists.mask_block_idx[place].tolist() if n >= 0]
    keys = tiles.tile_token_indices[place].tolist()[:count]
    want = [
        n
        for n in range(count // 128)
        if all(set(keys[128 * n : 128 * n + 128]) <= row for row in rows)
    ]
    assert full == want
    assert mask == sorted(set(range(ceil(count / 128))) - set(want))
    assert lists.full_block_cnt[place] == len(full)
    assert lists.mask_block_cnt[place] == len(mask)


@given(token_topk(), st.sampled_from(GROUPS), st.sampled_from([128, 256]))
def test_a_union_is_exact(topk, group, tile_rows):
    """-1 anywhere, duplicates, any lengths, strides and batches, from lists and from a plan."""
    indices = topk.indices
    if topk.lengths is not None:
        beyond = torch.arange(indices.shape[3]) >= topk.lengths[..., None]
        indices = indices.masked_fill(beyond, -1)
    seqlen_k = topk.geometry.seqlen_k
    plan = mp.from_topk(indices, seqlen_k, block_size=topk.geometry.block_size)
    target = mp.target("cpu", group=group, pack_gqa=True)
    options = {"policy": "union", "tile_rows": tile_rows, "max_coverage": 1.0}
    listed = mp.TokenTiles.from_topk(indices, seqlen_k, group=group, **options)
    want = wanted_rows(indices)
    for tiles in (listed, plan.token_tiles(target, **options)):
        assert tiles.to_plan().to_dense().equal(plan.to_dense())
        kept = group * sum(len(row) for batch in want for head in batch for row in head)
        assert tiles.wanted_pairs == tiles.kept_pairs == kept
        assert tiles.spurious_pairs >= 0
        assert tiles.form == ("blocks" if whole_blocks(indices, seqlen_k) else "tokens")
        if tiles.form == "tokens":
            for b, batch in enumerate(want):
                for h, rows in enumerate(batch):
                    packed = [row for row in rows for _ in range(group)]
                    assert read_rows(tiles, b, h) == packed


def random_lists(shape, topk, seqlen_k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, seqlen_k, generator=generator).argsort(-1)[..., :topk].int()


def test_heads_of_a_group_may_have_lists_of_their_own():
    indices = random_lists((2, 4, 70), 20, 200)
    tiles = mp.TokenTiles.from_topk(
        indices, 200, policy="union", group=2, kv_heads=2, max_coverage=1.0
    )
    want = wanted_rows(indices)
    assert (tiles.heads, tiles.lists_per_token) == (2, 2)
    for b in range(2):
        for h in range(2):
            packed = [want[b][2 * h + row % 2][row // 2] for row in range(140)]
            assert read_rows(tiles, b, h) == packed
    plan = mp.from_topk(indices, 200)
    assert tiles.to_plan().to_dense().equal(plan.to_dense())
    target = mp.target("sm100", group=2, pack_gqa=True)
    other = plan.token_tiles(target, policy="union", tile_rows=128, kv_heads=2, max_coverage=1.0)
    assert other.tile_token_indices.equal(tiles.tile_token_indices)
    assert other.row_bits.equal(tiles.row_bits)
    with pytest.raises(mp.PlanError, match=r"got 4, wanted one of \[1, 3, 6\]"):
        mp.TokenTiles.from_topk(indices, 200, group=2, kv_heads=3)


def test_uniform_tiles_need_no_bits_and_are_expanded_not_copied():
    own = random_lists((1, 1, 1), 130, 1000)
    indices = own.expand(3, 4, 300, 130)
    tiles = mp.TokenTiles.from_topk(indices, 1000, group=8)
    assert tiles.row_bits is None
    assert tiles.tile_token_indices.shape == (3, 4, 19, 256)
    assert tiles.tile_token_indices.stride()[:2] == (0, 0)
    assert tiles.nbytes < 2 * 19 * 256 * 4
    assert tiles.wanted_pairs == tiles.visited_pairs == 3 * 4 * 300 * 8 * 130
    assert tiles.valid_counts.unique().tolist() == [130]
    assert tiles.blocks.full_block_idx.unique().tolist() == [0]
    assert tiles.blocks.mask_block_idx.unique().tolist() == [1]


def test_the_first_tile_whose_queries_differ_is_named():
    indices = torch.arange(5).expand(2, 2, 300, 5).clone()
    indices[1, 0, 290, 2] = 77
    where = (
        r"queries of a tile select different keys in tile 2 of batch 1, head 0 \(queries 256 to "
        r"299\): got 6 keys in their union, 5\.0 a query, wanted one list for all of them, with "
        r"policy='uniform'; pass policy='union' to keep each query exact by bits\."
    )
    with pytest.raises(mp.PlanError, match=where):
        mp.TokenTiles.from_topk(indices, 100)


def test_whole_blocks_that_differ_are_named_too():
    indices = torch.arange(128).expand(1, 1, 256, 128).clone()
    indices[0, 0, 200:] += 128
    with pytest.raises(mp.PlanError, match=r"tile 1 of batch 0, head 0 \(queries 128 to 255\)"):
        mp.TokenTiles.from_topk(indices, 512)
    tiles = mp.TokenTiles.from_topk(indices, 512, policy="union")
    assert (tiles.form, tiles.to_plan()) == ("blocks", mp.from_topk(indices, 512))


def test_a_union_that_covers_most_keys_is_refused():
    indices = random_lists((1, 1, 128), 128, 4096)
    wanted = (
        r"union of a tile covers most keys in tile 0 of batch 0, head 0 \(queries 0 to 127\): got "
        r"\d+ keys in their union, 128\.0 a query: 98% of 4096, 31\.\d pairs visited"
    )
    with pytest.raises(mp.PlanError, match=wanted):
        mp.TokenTiles.from_topk(indices, 4096, policy="union")


def test_representative_is_the_first_rows_list_and_says_what_it_loses():
    indices = torch.tensor([[0, 1, 2], [1, 2, 5], [7, -1, 7]])[None, None]
    tiles = mp.TokenTiles.from_topk(indices, 100, policy="representative")
    assert tiles.tile_token_indices[0, 0, 0, :4].tolist() == [0, 1, 2, -1]
    got = (tiles.wanted_pairs, tiles.kept_pairs, tiles.lost_pairs, tiles.spurious_pairs)
    assert got == (7, 5, 2, 4)
    pairs = {(0, 0, q, k) for q in range(3) for k in range(3)}
    assert tiles.to_plan().to_dense().equal(dense_of_pairs(pairs, (1, 1, 3, 100)))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"policy": "first"}, "got 'first', wanted 'uniform' or 'union' or 'representative'"),
        ({"tile_rows": 64}, "got 64, wanted tile_rows of 128 or 256"),
        ({"group": 12}, "got group=12, wanted a divisor of 128 packed rows"),
        ({"max_coverage": 2}, "got 2, wanted 0 <= max_coverage <= 1"),
    ],
)
def test_options_that_are_none_are_refused(options, wanted):
    with pytest.raises(mp.PlanError, match=wanted):
        mp.TokenTiles.from_topk(torch.zeros(1, 1, 1, 1, dtype=torch.int32), 4, **options)


@pytest.mark.parametrize(
    ("fault", "whole"),
    [
        (None, True), ("two swapped", True), ("repeated key", True), ("-1 between", True),
        ("shifted", False), ("one missing", False), ("one replaced", False), ("beyond", False),
    ],
)  # fmt: skip
def test_contiguity_is_measured(fault, whole):
    """Blocks 3 and, ragged, 7 of 1,000 keys."""
    keys = torch.cat([torch.arange(896, 1000), torch.arange(384, 512)])
    if fault == "two swapped":
        keys[[3, 190]] = keys[[190, 3]]
    elif fault == "repeated key":
        keys = torch.cat([keys, keys[50:60]])
    elif fault == "-1 between":
        keys = torch.cat([keys[:5], torch.full((3,), -1), keys[5:]])
    elif fault == "shifted":
        keys = keys - 1
    elif fault == "one missing":
        keys[7] = -1
    elif fault == "one replaced":
        keys[7] = 0
    elif fault == "beyond":
        keys[0] = 1000
    lists = torch.full((2, 2, 3, len(keys)), -1)
    lists[1, 0, 2] = keys
    assert whole_blocks(lists, 1000) is whole
    assert whole_blocks(lists.transpose(1, 2).contiguous().transpose(1, 2), 1000) is whole


def test_a_pytree_of_its_tensors():
    tiles = mp.TokenTiles.from_topk(random_lists((1, 2, 5), 9, 90), 90, policy="union")
    leaves, spec = pytree.tree_flatten(tiles)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten(leaves, spec)
    assert again.tile_token_indices is tiles.tile_token_indices
    assert replace(again, policy="uniform").policy == "uniform"


# Defects of an earlier planner of a public pull request, as far as tiles go.


def test_d3_an_index_out_of_range_is_an_error_not_its_neighbour():
    lists = torch.zeros(2, 2, 200, 3, dtype=torch.int32)
    lists[1, 1, 150, 2] = 16
    wanted = r"in indices\[b=1, h=1, row=150, slot=2\]: got 16, wanted 0 <= token < 16"
    with pytest.raises(mp.PlanError, match=wanted):
        mp.TokenTiles.from_topk(lists, 16)


def test_d4_a_tile_is_not_its_first_query():
    """256 packed rows of groups of 8 are 32 queries, and none of their pairs is lost or added."""
    lists = random_lists((1, 1, 32), 16, 2048)
    with pytest.raises(mp.PlanError, match="select different keys"):
        mp.TokenTiles.from_topk(lists, 2048, group=8, tile_rows=256)
    tiles = mp.TokenTiles.from_topk(lists, 2048, group=8, tile_rows=256, policy="union")
    assert (tiles.kept_pairs, tiles.lost_pairs) == (32 * 8 * 16, 0)
    assert tiles.to_plan() == mp.from_topk(lists, 2048, block_size=(32, 128))


def test_d5_padding_inside_a_list_selects_nothing():
    row = torch.full((128,), -1)
    row[5:105] = torch.arange(100, 200)
    tiles = mp.TokenTiles.from_topk(row[None, None, None], 256)
    assert tiles.valid_counts.tolist() == [[[100]]]
    assert tiles.tile_token_indices[0, 0, 0].tolist() == [*range(100, 200), *[-1] * 28]


def test_d6_a_key_listed_twice_counts_once():
    tiles = mp.TokenTiles.from_topk(torch.tensor([[3, 3, 9, 3, 9]])[None, None], 16)
    assert (tiles.valid_counts.tolist(), tiles.wanted_pairs) == ([[[2]]], 2)


def test_d7_forward_and_backward_tiles_mean_the_same_pairs():
    """Tiles of 256 and of 128 rows, and the plan, keep the tokens and not their blocks."""
    lists = random_lists((1, 2, 300), 8, 4096)
    plans = [
        mp.TokenTiles.from_topk(lists, 4096, policy="union", tile_rows=rows).to_plan()
        for rows in (128, 256)
    ]
    assert plans[0].reblock((256, 128)) == plans[1]
    assert plans[0] == mp.from_topk(lists, 4096)
    assert plans[0].stats().pairs == 2 * 300 * 8


@pytest.mark.parametrize("shift", [0, 1])
def test_d8_blocks_are_measured_not_claimed(shift):
    lists = (torch.arange(128, 384) + shift).expand(1, 1, 200, 256)
    tiles = mp.TokenTiles.from_topk(lists, 512)
    assert tiles.form == ("tokens" if shift else "blocks")
    assert tiles.to_plan() == mp.from_topk(lists, 512)


def test_d9_the_ragged_last_block_is_kept():
    lists = torch.arange(256, 300).expand(1, 1, 64, 44)
    tiles = mp.TokenTiles.from_topk(lists, 300)
    assert (tiles.form, tiles.valid_counts.tolist()) == ("blocks", [[[44]]])
    assert tiles.blocks.full_block_idx.tolist() == [[[[2]]]]
    assert tiles.to_plan() == mp.from_topk(lists, 300)


def test_d16_whole_blocks_make_no_token_table():
    """65,536 of 524,288 keys: 4 bytes a block."""
    starts = random_lists((1, 1, 8), 512, 4096).sort(-1).values[..., None] * 128
    lists = (starts + torch.arange(128)).flatten(3).int()
    tiles = mp.TokenTiles.from_topk(lists, 524_288, group=128)
    assert (tiles.form, tiles.tile_token_indices, tiles.row_bits) == ("blocks", None, None)
    assert tiles.nbytes < 2 * 8 * 512 * 4
    assert tiles.valid_counts.unique().tolist() == [65_536]
