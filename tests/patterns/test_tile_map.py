"""VSA, maps of tiles and draft attention against their definitions, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder, draft, draft_kept, tile_map, vsa, vsa_topk
from tests.oracle import assert_plan
from tests.patterns.on_grids import coordinates, grids, video_slots
from tests.patterns.test_token_order import tile_slots
from tests.strategies import block_sizes


def tiles_of(grid: Grid, tile) -> list[list[int]]:
    """Raster tokens of each tile, tiles in raster order."""
    slots = tile_slots(Grid(*grid.shape), tile, multiple=tile[0] * tile[1] * tile[2])
    start = grid.text if grid.text_first else 0
    whole = tile[0] * tile[1] * tile[2]
    return [
        [start + token for token in slots[at : at + whole] if token >= 0]
        for at in range(0, len(slots), whole)
    ]


def expected(grid, tile, kept, slots, *, pad, free_rows, text_tile, queries):
    """bool [batch, heads, SQ, SK] by loops over every pair of slots."""
    tile_at = {token: n for n, tokens in enumerate(tiles_of(grid, tile)) for token in tokens}
    key_at = dict(tile_at)
    text_start = 0 if grid.text_first else len(tile_at)
    if text_tile is not None:
        chunks = -(-grid.text // text_tile)
        for token in tile_at if grid.text_first else ():
            key_at[token] += chunks
        for i in range(grid.text):
            number = i // text_tile + (0 if grid.text_first else len(tiles_of(grid, tile)))
            key_at[text_start + i] = number
    whole = tile[0] * tile[1] * tile[2]
    rows = slots if queries == "all" else video_slots(grid, slots)
    start = grid.text if grid.text_first and queries == "all" else 0
    dense = torch.zeros(*kept.shape[:2], len(rows), len(slots), dtype=torch.bool)
    for b in range(kept.shape[0]):
        for h in range(kept.shape[1]):
            for i, q in enumerate(rows):
                row = tile_at.get(q)
                if q < 0 and pad and free_rows:
                    row = (i - start) // whole
                elif q < 0:
                    continue
                for j, k in enumerate(slots):
                    if k < 0:
                        continue
                    always = row is None or k not in key_at
                    dense[b, h, i, j] = always or bool(kept[b, h, row, key_at[k]])
    return dense


@st.composite
def choices(draw):
    """(grid, tile, kept map, options) of few tiles."""
    grid = draw(grids())
    tile = tuple(draw(st.integers(1, 4)) for _ in range(3))
    text_tile = draw(st.sampled_from([None, 1, 3]))
    tiles = len(tiles_of(grid, tile))
    keys = tiles + (0 if text_tile is None else -(-grid.text // text_tile))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), tiles, keys)
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kept = torch.rand(shape, generator=seed) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    pad = draw(st.booleans())
    options = {
        "pad": pad,
        "free_rows": draw(st.booleans()),
        "text_tile": text_tile,
        "queries": draw(st.sampled_from(["all", "video"])),
    }
    return grid, tile, kept, options


@settings(max_examples=60)
@given(choices(), block_sizes())
def test_tile_map_is_its_definition(choice, block_size):
    grid, tile, kept, options = choice
    plan = tile_map(grid, kept, tile=tile, block_size=block_size, **options)
    slots = tile_slots(grid, tile, tile[0] * tile[1] * tile[2] if options["pad"] else 1)
    assert_plan(plan, expected(grid, tile, kept, slots, **options))


@settings(max_examples=40)
@given(choices(), st.randoms(use_true_random=False))
def test_vsa_is_the_map_of_its_tiles(choice, random):
    """Ids in any order, repeated, with -1 anywhere."""
    grid, tile, kept, options = choice
    rows = [
        [[[*row.nonzero().flatten().tolist()] for row in head] for head in batch] for batch in kept
    ]
    width = 2 + max(len(row) for batch in rows for head in batch for row in head)
    for batch in rows:
        for head in batch:
            for row in head:
                row += [random.choice([*row, -1]) for _ in range(width - len(row))]
                random.shuffle(row)
    selected = torch.tensor(rows, dtype=torch.int32)
    plan = vsa(grid, selected, tile=tile, block_size=(16, 8), **options)
    assert plan == tile_map(grid, kept, tile=tile, block_size=(16, 8), **options)


def test_golden_tiles_of_wan_720p():
    """(21, 45, 80) by (4, 4, 4): 1440 tiles, 1100 whole and 340 not; topk at 0.9 is 144."""
    grid = Grid.preset("wan2.1-720p")
    assert vsa_topk(grid, 0.9) == 144
    own = torch.arange(1440, dtype=torch.int32).view(1, 1, 1440, 1)
    plan = vsa(grid, own, pad=True, free_rows=True)
    assert (plan.seqlen_q, plan.num_blocks) == (92_160, 1440)
    partial = plan.tile_id >= 0
    assert (int((~partial).sum()), int(partial.sum())) == (1100, 340)


def test_b9_topk_counts_ragged_tiles():
    """Of the padded count; from the unpadded length it would be 119 and 52."""
    assert vsa_topk(Grid(21, 45, 80), 0.9) == 144
    assert vsa_topk(Grid(21, 30, 52), 0.9) == 63
    assert vsa_topk(Grid(8, 32, 32), 0.75) == 32
    assert len(TokenOrder.tiles(Grid(21, 52, 30), (4, 8, 8)).tile_counts) == 168
    assert vsa_topk(Grid(2, 2, 2), 1.0) == 1


def test_b8_padding_is_never_a_key():
    grid = Grid(5, 5, 5)
    every = torch.arange(8).expand(1, 1, 8, 8)
    plan = vsa(grid, every, pad=True)
    holds = TokenOrder.tiles(grid, (4, 4, 4), pad=True).slots >= 0
    assert torch.equal(plan.to_dense()[0, 0], holds[:, None] & holds[None])
    compact = vsa(grid, every)
    assert compact == mp.full(125, 125, block_size=(64, 64))


def test_heads_expanded_from_one_are_planned_once():
    selected = torch.arange(8).view(1, 1, 8, 1).expand(2, 40, 8, 1)
    plan = vsa(Grid(8, 8, 8), selected)
    assert (plan.batch, plan.heads, plan.num_patterns) == (2, 40, 1)


@settings(max_examples=20)
@given(grids(high=(2, 9, 18)), st.integers(0, 2**31))
def test_b10_draft_takes_any_canvas(grid, seed):
    order = TokenOrder.strips(grid)
    regions = len(order.tile_counts)
    kept = torch.rand(1, 1, regions, regions, generator=torch.Generator().manual_seed(seed)) < 0.5
    plan = draft(grid, kept, block_size=(32, 32))
    tile_at = {t: n for n, tokens in enumerate(tiles_of(grid, (1, 8, 16))) for t in tokens}
    dense = order.undo(order.undo(plan.to_dense()[0, 0], 0), 1)
    wanted = torch.ones_like(dense)
    for q, i in tile_at.items():
        for k, j in tile_at.items():
            wanted[q, k] = kept[0, 0, i, j]
    assert torch.equal(dense, wanted)


def test_strips_are_those_of_draft_attention():
    """(frame, h / 8)(w / 16)(8)(16), token by token on a canvas it divides."""
    grid = Grid(2, 16, 32)
    wanted = [
        (t * 16 + strip * 8 + row) * 32 + at * 16 + column
        for t in range(2)
        for strip in range(2)
        for at in range(2)
        for row in range(8)
        for column in range(16)
    ]
    assert TokenOrder.strips(grid).slots.tolist() == wanted


def test_draft_keeps_ties_at_its_threshold():
    scores = torch.tensor([[[[0.1, 0.2], [0.2, 0.5]]]])
    assert draft_kept(scores, 0.5).tolist() == [[[[False, True], [True, True]]]]
    assert draft_kept(scores, 0.75).tolist() == [[[[False, True], [True, True]]]]
    assert bool(draft_kept(scores, 0.0).all())
    assert all(coordinates(Grid(2, 2, 2), n) is not None for n in range(8))


ROWS = torch.zeros(1, 1, 1440, 2, dtype=torch.int32)
BAD = {
    "rows of the unpadded count": (
        lambda: vsa(Grid(21, 45, 80), ROWS[:, :, :1182]),
        mp.PlanError,
        ("selected, axis 2", "got 1182", "1440 tiles", "ceil"),
    ),
    "tile beyond": (
        lambda: vsa(Grid(21, 45, 80), ROWS.index_fill(2, torch.tensor([3]), 1440)),
        mp.PlanError,
        ("selected[0, 0, 3, 0]", "got 1440", "0 <= tile < 1440"),
    ),
    "float ids": (
        lambda: vsa(Grid(21, 45, 80), ROWS.float()),
        mp.PlanTypeError,
        ("selected", "float32", "int32 or int64"),
    ),
    "columns": (
        lambda: draft(Grid(2, 8, 32), torch.ones(1, 1, 4, 3, dtype=torch.bool)),
        mp.PlanError,
        ("kept, axis 3", "got 3", "4 tiles"),
    ),
    "queries": (
        lambda: vsa(Grid(4, 4, 4), ROWS[:, :, :1], queries="text"),
        mp.PlanError,
        ("queries", "'text'", "'all' or 'video'"),
    ),
    "sparsity": (
        lambda: vsa_topk(Grid(4, 4, 4), 90),
        mp.PlanError,
        ("sparsity", "got 90", "0 <= sparsity <= 1"),
    ),
    "drop all": (
        lambda: draft_kept(torch.ones(1, 1, 2, 2), 1.0),
        mp.PlanError,
        ("sparsity", "got 1.0", "sparsity < 1"),
    ),
    "nan": (
        lambda: draft_kept(torch.tensor([[[[0.0, float("nan")]]]]), 0.5),
        mp.PlanError,
        ("scores[0, 0, 0, 1]", "nan"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
