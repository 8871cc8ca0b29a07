"""Token tiles, against loops over the lists: tables, counts, bits, pairs, and what is refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.lower.token_lists import whole_blocks
from tests.lower.tile_rows import random_lists, read_rows, wanted_rows
from tests.oracle import dense_of_pairs
from tests.strategies import token_topk

GROUPS = (1, 2, 8)


@given(token_topk(), st.sampled_from(GROUPS), st.sampled_from([128, 256]))
def test_a_union_is_exact(topk, group, tile_rows):
    """-1 anywhere, duplicates, any lengths, strides and batches, from lists and from a plan."""
    given = indices = topk.indices
    if topk.lengths is not None:
        beyond = torch.arange(indices.shape[3]) >= topk.lengths[..., None]
        indices = indices.masked_fill(beyond, -1)
    seqlen_k = topk.geometry.seqlen_k
    plan = mp.from_topk(indices, seqlen_k, block_size=topk.geometry.block_size)
    target = mp.target("cpu", group=group, pack_gqa=True)
    options = {"policy": "union", "tile_rows": tile_rows, "max_coverage": 1.0}
    listed = mp.TokenTiles.from_topk(given, seqlen_k, group=group, lengths=topk.lengths, **options)
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


def test_keys_may_count_over_all_batches():
    local = random_lists((3, 2, 40), 9, 70, seed=1)
    local[..., 4] = -1
    indices = torch.where(local < 0, -1, local + torch.arange(3).view(3, 1, 1, 1) * 70)
    options = {"policy": "union", "max_coverage": 1.0}
    tiles = mp.TokenTiles.from_topk(indices, 70, base="global", **options)
    want = wanted_rows(local)
    for b in range(3):
        for h in range(2):
            assert read_rows(tiles, b, h) == want[b][h]
    for bad, low in ((69, 70), (140, 70), (-2, 70)):
        wrong = indices.clone()
        wrong[1, 1, 20, 3] = bad
        place = rf"indices\[b=1, h=1, row=20, slot=3\]: got {bad}, wanted {low} <= token < 140"
        with pytest.raises(mp.PlanError, match=place):
            mp.TokenTiles.from_topk(wrong, 70, base="global", **options)


def test_lengths_out_of_range_are_refused():
    with pytest.raises(mp.PlanError, match=r"length out of range in lengths\[b=0, h=0, row=1\]"):
        mp.TokenTiles.from_topk(
            torch.zeros(1, 1, 2, 3, dtype=torch.int32), 4, lengths=torch.tensor([[[3, 4]]])
        )


def test_a_form_by_name():
    """A table of whole blocks, and blocks of a union that are not: the same pairs."""
    whole = torch.cat([torch.arange(256, 300), torch.arange(128)]).expand(1, 1, 200, 172)
    table = mp.TokenTiles.from_topk(whole, 300, form="tokens")
    assert (table.form, table.valid_counts.unique().tolist()) == ("tokens", [172])
    assert read_rows(table, 0, 0) == wanted_rows(whole)[0][0]
    lists = random_lists((1, 1, 200), 9, 300, seed=2)
    blocks = mp.TokenTiles.from_topk(lists, 300, form="blocks", policy="union")
    assert blocks.form == "blocks"
    assert blocks.to_plan() == mp.from_topk(lists, 300)
    with pytest.raises(mp.PlanError, match="select different keys in tile 0 of batch 0, head 0"):
        mp.TokenTiles.from_topk(lists, 300, form="blocks")
    with pytest.raises(mp.PlanError, match="queries of a tile select different blocks"):
        mp.TokenTiles.from_topk(lists, 300, form="blocks", policy="representative")
    by_head = random_lists((1, 2, 5), 9, 300, seed=3)
    with pytest.raises(mp.PlanError, match="heads of a tile have lists of their own"):
        mp.TokenTiles.from_topk(by_head, 300, form="blocks", group=2, kv_heads=1)
    with pytest.raises(mp.PlanTypeError, match="unknown option in form: got 'table'"):
        mp.TokenTiles.from_topk(lists, 300, form="table")


def test_exact_tiles_are_on_the_cpu_and_without_faults():
    tiles = mp.TokenTiles.from_topk(random_lists((1, 2, 5), 9, 90), 90, policy="union")
    assert tiles.device.type == "cpu"
    assert tiles.status is None
    assert tiles.cpu().tile_token_indices.equal(tiles.tile_token_indices)
    assert tiles.to("cpu") is tiles
    assert tiles.validate() is tiles


def test_a_pytree_of_its_tensors():
    tiles = mp.TokenTiles.from_topk(random_lists((1, 2, 5), 9, 90), 90, policy="union")
    leaves, spec = pytree.tree_flatten(tiles)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = pytree.tree_unflatten(leaves, spec)
    assert again.tile_token_indices is tiles.tile_token_indices
    assert replace(again, policy="uniform").policy == "uniform"
