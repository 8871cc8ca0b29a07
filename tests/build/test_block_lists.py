"""Block lists and BSR against sets of blocks."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from tests.build.test_masks import blown_up
from tests.oracle import assert_plan
from tests.strategies import NASTY, block_masks, plans


def padded(mask: torch.Tensor, fill, extra: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """(cnt, idx) of a block mask, row by row; slots past the count hold `fill()`."""
    batch, heads, rows, width = mask.shape
    cnt = torch.zeros((batch, heads, rows), dtype=torch.int32)
    idx = torch.zeros((batch, heads, rows, width + extra), dtype=torch.int32)
    for b in range(batch):
        for h in range(heads):
            for row in range(rows):
                blocks = [n for n in range(width) if mask[b, h, row, n]]
                cnt[b, h, row] = len(blocks)
                filled = blocks + [fill() for _ in range(width + extra - len(blocks))]
                idx[b, h, row] = torch.tensor(filled, dtype=torch.int32)
    return cnt, idx


@settings(max_examples=80)
@given(block_masks(), st.data())
def test_from_block_lists_keeps_whole_blocks(case, data):
    mask, geometry = case
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    cnt, idx = padded(mask, lambda: int(rng.choice([*NASTY, 0, -1])), data.draw(st.integers(0, 2)))
    lengths = (geometry.seqlen_q, geometry.seqlen_k)
    plan = mp.from_block_lists(cnt, idx, *lengths, block_size=geometry.block_size)
    assert_plan(plan, blown_up(mask, geometry))
    turned = idx.clone()
    for place in np.ndindex(*cnt.shape):
        turned[place][: cnt[place]] = turned[place][: cnt[place]].flip(0)
    again = mp.from_block_lists(cnt, turned, *lengths, block_size=geometry.block_size, sort=True)
    assert again == plan


@settings(max_examples=80)
@given(plans(), st.booleans())
def test_mask_blocks_bring_their_bits(plan, by_function):
    """A plan taken apart into FA4's two lists, with bits as tiles or as a function, comes back."""
    dense = plan.to_dense()
    geometry = plan.geometry
    lines = (plan.batch, plan.heads, geometry.num_q_blocks)
    width = geometry.num_k_blocks
    counts = {name: torch.zeros(lines, dtype=torch.int32) for name in ("full", "mask")}
    blocks = {name: torch.full((*lines, width), -1) for name in ("full", "mask")}
    numbers = torch.full((*lines, width), -1)
    ids = plan.tile_id if plan.tile_id is not None else torch.full_like(plan.col, -1)
    for b, h, row in np.ndindex(*lines):
        line = int(plan.pattern_id[b, h]) * lines[2] + row
        for entry in range(int(plan.row_ptr[line]), int(plan.row_ptr[line + 1])):
            name = "full" if ids[entry] < 0 else "mask"
            at = int(counts[name][b, h, row])
            blocks[name][b, h, row, at] = plan.col[entry]
            if name == "mask":
                numbers[b, h, row, at] = ids[entry]
            counts[name][b, h, row] += 1
    bits = {"tile_id": numbers, "tiles": plan.tiles}
    if by_function:
        bits = {"mask_fn": lambda b, h, q, k: dense[b, h, q, k]}
    if not dense.numel():
        return
    again = mp.from_block_lists(
        counts["full"],
        blocks["full"],
        geometry.seqlen_q,
        geometry.seqlen_k,
        block_size=geometry.block_size,
        mask_cnt=counts["mask"],
        mask_idx=blocks["mask"],
        **bits,
    )
    assert_plan(again, dense)
    assert again == plan


def test_lists_of_one_head_broadcast_to_the_others():
    cnt = torch.tensor([1, 1])
    idx = torch.tensor([[[[0], [1]], [[1], [0]]]])
    plan = mp.from_block_lists(cnt, idx, 8, 8, block_size=(4, 4))
    mask = torch.eye(2, dtype=torch.bool)
    expected = blown_up(torch.stack([mask, ~mask])[None], plan.geometry)
    assert_plan(plan, expected)


def test_broadcast_lists_are_read_once():
    cnt = torch.tensor([[[1, 0]]]).expand(500, 500, 2)
    idx = torch.tensor([[[[1], [7]]]]).expand(500, 500, 2, 1)
    plan = mp.from_block_lists(cnt, idx, 8, 8, block_size=(4, 4))
    assert (plan.batch, plan.heads, plan.num_patterns, plan.col.tolist()) == (500, 500, 1, [1])


def test_a_mask_function_tells_heads_apart_that_share_lists():
    cnt, idx = torch.zeros(1, 2, 1, dtype=torch.int32), torch.zeros(1, 2, 1, 1, dtype=torch.int32)
    plan = mp.from_block_lists(
        cnt,
        idx,
        4,
        4,
        block_size=(4, 4),
        mask_cnt=torch.ones(1, 1, 1, dtype=torch.int32).expand(1, 2, 1),
        mask_idx=idx[:, :1].expand(1, 2, 1, 1),
        mask_fn=lambda _b, h, q, k: (q >= k) ^ (h == 1),
    )
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    assert_plan(plan, torch.stack([causal, ~causal])[None])


@settings(max_examples=60)
@given(block_masks())
def test_from_bsr_reads_scipy(case):
    mask, geometry = case
    one = mask[0, 0].numpy()
    matrix = scipy.sparse.csr_matrix(one)
    plan = mp.from_bsr(
        matrix.indptr,
        matrix.indices,
        geometry.seqlen_q,
        geometry.seqlen_k,
        block_size=geometry.block_size,
    )
    assert_plan(plan, blown_up(mask[:1, :1], geometry))


def test_from_bsr_sorts_when_asked():
    plan = mp.from_bsr([0, 3, 3, 4], [2, 0, 1, 2], 12, 12, block_size=(4, 4), sort=True)
    assert plan.col.tolist() == [0, 1, 2, 2]
    assert plan.row_ptr.tolist() == [0, 3, 3, 4]


def lists(cnt, idx, **options):
    return mp.from_block_lists(
        torch.tensor(cnt), torch.tensor(idx), 8, 12, block_size=(4, 4), **options
    )


MASKS = {"mask_cnt": torch.tensor([1, 0]), "mask_idx": torch.tensor([[1], [0]])}
TILES = torch.ones(1, 4, 1, dtype=torch.int32)

BAD = {
    "count past the width": (
        lambda: lists([1, 3], [[0, 1], [0, 1]]),
        mp.PlanError,
        ("cnt[b=0, h=0, row=1]", "got 3", "0 <= count <= width = 2", "make idx as wide"),
    ),
    "negative count": (
        lambda: lists([-1, 0], [[0, 1], [0, 1]]),
        mp.PlanError,
        ("cnt[b=0, h=0, row=0]", "got -1"),
    ),
    "block out of range": (
        lambda: lists([1, 2], [[0, 9], [0, 3]]),
        mp.PlanError,
        ("idx[b=0, h=0, row=1, slot=1]", "got 3", "0 <= block < 3"),
    ),
    "-1 before the count": (
        lambda: lists([2, 0], [[-1, 1], [0, 0]]),
        mp.PlanError,
        ("idx[b=0, h=0, row=0, slot=0]", "got -1"),
    ),
    "unsorted": (
        lambda: lists([2, 0], [[2, 1], [0, 0]]),
        mp.PlanError,
        ("not sorted", "idx[b=0, h=0, row=0, slot=1]", "got 1", "more than 2", "sort=True"),
    ),
    "twice": (
        lambda: lists([2, 0], [[2, 2], [0, 0]]),
        mp.PlanError,
        ("listed twice", "slot=1", "got 2"),
    ),
    "twice, unsorted": (
        lambda: lists([3, 0], [[2, 1, 2], [0, 0, 0]], sort=True),
        mp.PlanError,
        ("listed twice", "slot=2", "got 2"),
    ),
    "in another head": (
        lambda: lists([[[0, 0], [0, 1]]], [[[[0], [0]], [[0], [5]]]]),
        mp.PlanError,
        ("idx[b=0, h=1, row=1, slot=0]", "got 5"),
    ),
    "in both lists": (
        lambda: lists([2, 0], [[0, 1], [0, 0]], **MASKS, mask_fn=lambda _b, _h, q, k: q >= k),
        mp.PlanError,
        ("in both lists", "mask_idx[b=0, h=0, row=0, slot=0]", "got 1"),
    ),
    "rows of another length": (
        lambda: lists([1, 1, 1], [[0], [0], [0]]),
        mp.PlanError,
        ("cnt", "3 rows", "M = 2", "8 x 12 tokens"),
    ),
    "float counts": (
        lambda: lists([1.0, 1.0], [[0], [0]]),
        mp.PlanTypeError,
        ("cnt", "float32", "int32 or int64"),
    ),
    "flat lists": (
        lambda: lists([1, 1], [0, 0]),
        mp.PlanTypeError,
        ("idx", "1 axes [2]", "[M, width]"),
    ),
    "other heads": (
        lambda: lists([[1, 1], [1, 1]], [[[0], [0]]] * 3),
        mp.PlanError,
        ("cnt, idx", "cnt [1, 2, 2], idx [1, 3, 2, 1]", "equal leading sizes"),
    ),
    "no bits": (
        lambda: lists([1, 1], [[0], [0]], **MASKS),
        mp.PlanTypeError,
        ("mask_cnt, mask_idx", "mask_fn, or tile_id and tiles", "a list alone does not tell"),
    ),
    "two kinds of bits": (
        lambda: lists(
            [0, 0],
            [[0], [0]],
            **MASKS,
            mask_fn=lambda _b, _h, q, k: q >= k,
            tile_id=torch.zeros(2, 1, dtype=torch.int32),
            tiles=TILES,
        ),
        mp.PlanTypeError,
        ("got mask_cnt, mask_idx, mask_fn, tile_id, tiles",),
    ),
    "unknown tile": (
        lambda: lists([0, 0], [[0], [0]], **MASKS, tile_id=torch.tensor([[1], [0]]), tiles=TILES),
        mp.PlanError,
        ("tile_id[b=0, h=0, row=0, slot=0]", "got 1", "0 <= tile < 1"),
    ),
    "tiles of other width": (
        lambda: lists([0, 0], [[0], [0]], **MASKS, tile_id=torch.tensor([[0, 0]] * 2), tiles=TILES),
        mp.PlanError,
        ("tile_id", "got 2", "1, as mask_idx"),
    ),
    "tiles of other blocks": (
        lambda: lists(
            [0, 0], [[0], [0]], **MASKS, tile_id=torch.tensor([[0]] * 2), tiles=TILES[:, :3]
        ),
        mp.PlanTypeError,
        ("tiles", "[1, 3, 1]", "int32 [tiles, 4, 1]"),
    ),
    "bits out of range": (
        lambda: lists(
            [0, 0], [[0], [0]], **MASKS, tile_id=torch.tensor([[0]] * 2), tiles=TILES * 16
        ),
        mp.PlanError,
        ("invariant 6", "tiles[0]"),
    ),
    "bsr of other rows": (
        lambda: mp.from_bsr([0, 1], [0], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("indptr", "1 rows", "M = 2"),
    ),
    "bsr that starts late": (
        lambda: mp.from_bsr([1, 1, 1], [0], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("indptr[0]", "got 1", "wanted 0"),
    ),
    "bsr that goes back": (
        lambda: mp.from_bsr([0, 2, 1], [0], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("indptr[2]", "got 1", "at least 2"),
    ),
    "bsr that ends early": (
        lambda: mp.from_bsr([0, 1, 1], [0, 1], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("indptr[2]", "got 1", "wanted 2"),
    ),
    "bsr out of order": (
        lambda: mp.from_bsr([0, 1, 3], [0, 1, 0], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("not sorted", "indices[b=0, h=0, row=1, slot=1]", "got 0", "more than 1"),
    ),
    "bsr out of range": (
        lambda: mp.from_bsr([0, 1, 2], [0, 2], 8, 8, block_size=(4, 4)),
        mp.PlanError,
        ("indices[b=0, h=0, row=1, slot=0]", "got 2", "0 <= block < 2"),
    ),
    "bsr of floats": (
        lambda: mp.from_bsr([0, 1, 2], [0.0, 1.0], 8, 8, block_size=(4, 4)),
        mp.PlanTypeError,
        ("indices", "float64 [2]", "integers of shape [any]"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_unsorted_mask_lists_keep_each_block_with_its_tile():
    tiles = torch.tensor([[[1]] * 4, [[6]] * 4], dtype=torch.int32)
    made = [
        lists(
            [0, 0],
            [[0], [0]],
            mask_cnt=torch.tensor([2, 0]),
            mask_idx=torch.tensor([blocks, [7, 7]]),
            tile_id=torch.tensor([numbers, [9, 9]]),
            tiles=tiles,
            sort=True,
        )
        for blocks, numbers in (([0, 2], [1, 0]), ([2, 0], [0, 1]))
    ]
    assert made[0] == made[1]
    expected = torch.zeros(1, 1, 8, 12, dtype=torch.bool)
    expected[..., :4, [1, 2, 8]] = True
    assert_plan(made[0], expected)


def test_row_pointers_whose_differences_overflow_are_refused():
    indptr = [0, 2**63 - 1, -(2**63), -1, 2]

    with pytest.raises(
        mp.PlanError, match=r"indptr\[2\]: got -9223372036854775808, wanted at least"
    ):
        mp.from_bsr(indptr, [0, 1], 16, 16, block_size=(4, 8))


def mask_lists(tiles) -> mp.Plan:
    """8 x 6 tokens in blocks of 4 x 4, of which the ragged one of row 0 has tile 0."""
    return mp.from_block_lists(
        torch.tensor([0, 0]),
        torch.zeros(2, 1, dtype=torch.int32),
        8,
        6,
        block_size=(4, 4),
        mask_cnt=torch.tensor([1, 0]),
        mask_idx=torch.tensor([[1], [0]]),
        tile_id=torch.tensor([[0], [0]]),
        tiles=tiles,
    )


def test_bits_out_of_range_do_not_make_a_block_full():
    # As many bits as the block has pairs, every one of them past the end of the sequence.
    past_the_end = torch.full((1, 4, 1), 0b1100, dtype=torch.int32)

    with pytest.raises(mp.PlanError, match=r"tile bits out of range .* wanted none past 4 x 2"):
        mask_lists(past_the_end)


@pytest.mark.parametrize(
    "tiles",
    [[1], torch.zeros(1, 4, 1), torch.zeros(1, 5, 1, dtype=torch.int32)],
    ids=["list", "float", "height"],
)
def test_tiles_of_another_type_or_shape_are_named(tiles):
    with pytest.raises(mp.PlanTypeError, match="in tiles: got"):
        mask_lists(tiles)
