"""Block-causal video and MAGI-1 against their definitions, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder, block_causal, magi
from tests.oracle import assert_plan
from tests.patterns.on_grids import grids, video_slots
from tests.strategies import block_sizes


def ends_of(frames: int, chunk: int, first_chunk: int) -> list[int]:
    """Frame at which the chunk of each frame ends."""
    ends, at = [], 0
    while at < frames:
        stop = min(at + (first_chunk if at == 0 else chunk), frames)
        ends += [stop] * (stop - at)
        at = stop
    return ends


def causal_keeps(grid, slots, rule, i: int, j: int) -> bool:
    """Whether slot i sees slot j."""
    q, k = slots[i], slots[j]
    if q < 0 or k < 0:
        return i == j
    start, size = (grid.text if grid.text_first else 0), grid.h * grid.w
    row, column = q - start, k - start
    video = range(grid.t * size)
    if row not in video or column not in video:
        return True
    chunk, first, local, sink = rule
    end = ends_of(grid.t, chunk, first or chunk)[row // size] * size
    seen = column < end and (local is None or column >= end - local * size)
    return seen or row == column or (column < end and column < sink * size)


RULES = st.tuples(
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 4)),
    st.one_of(st.none(), st.integers(1, 5)),
    st.integers(0, 3),
)


@settings(max_examples=40)
@given(
    grids(high=(8, 2, 4)),
    RULES,
    st.sampled_from([1, 1, 8, 40]),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_block_causal_is_its_definition(grid, rule, pad_to, queries, block_size):
    chunk, first, local, sink = rule
    plan = block_causal(
        grid,
        chunk=chunk,
        first_chunk=first,
        local=local,
        sink=sink,
        pad_to=pad_to,
        block_size=block_size,
        queries=queries,
    )
    video = [grid.video_start + n for n in range(grid.video_tokens)]
    video += [-1] * (-len(video) % pad_to)
    text = [grid.text_start + n for n in range(grid.text)]
    slots = text + video if grid.text_first else video + text
    assert TokenOrder.from_provenance(plan.provenance).slots.tolist() == slots
    skipped = len(slots) - len(video_slots(grid, slots)) if grid.text_first else 0
    rows = range(len(slots))
    if queries == "video":
        rows = range(skipped, skipped + len(video))
    dense = [[causal_keeps(grid, slots, rule, i, j) for j in range(len(slots))] for i in rows]
    assert_plan(plan, torch.tensor(dense)[None, None])


def test_golden_blocks_of_self_forcing():
    """21 frames of 1560 by chunks of 3, padded to 32,768: 730 partial and 36,939 full blocks."""
    plan = block_causal(Grid(21, 30, 52), chunk=3, pad_to=128)
    partial = int((plan.tile_id >= 0).sum())
    assert (plan.geometry.num_q_blocks, partial, plan.num_blocks - partial) == (256, 730, 36_939)
    assert round(100 * (1 - plan.num_blocks / 256**2), 4) == 42.5217
    assert round(1 - plan.num_blocks / 256**2, 6) == 0.425217
    compact = block_causal(Grid(21, 30, 52), chunk=3)
    assert (compact.seqlen_q, round(compact.density, 6)) == (32_760, 0.571429)


@settings(max_examples=40)
@given(
    grids(high=(9, 2, 4)),
    st.integers(1, 4),
    st.data(),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_magi_is_its_definition(grid, chunk, data, queries, block_size):
    chunks = -(-grid.t // chunk)
    reach = data.draw(
        st.one_of(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=chunks, max_size=chunks))
    )
    plan = magi(grid, reach=reach, chunk=chunk, queries=queries, block_size=block_size)
    size, start = grid.h * grid.w, (grid.text if grid.text_first else 0)

    def keeps(q: int, k: int) -> bool:
        row, column = q - start, k - start
        video = range(grid.t * size)
        if row not in video or column not in video:
            return True
        mine, other = row // size // chunk, column // size // chunk
        return mine - (reach if isinstance(reach, int) else reach[mine]) < other <= mine

    slots = list(range(grid.seqlen))
    rows = slots if queries == "all" else video_slots(grid, slots)
    assert_plan(plan, torch.tensor([[keeps(q, k) for k in slots] for q in rows])[None, None])
    if not grid.text:
        first = data.draw(st.integers(0, chunks - 1))
        last = data.draw(st.integers(first + 1, chunks))
        part = magi(grid, reach=reach, chunk=chunk, active=(first, last), block_size=block_size)
        stop = min(last * chunk, grid.t) * size
        dense = [[keeps(q, k) for k in range(stop)] for q in range(first * chunk * size, stop)]
        assert_plan(part, torch.tensor(dense)[None, None])


def test_magi_ranges_are_those_of_its_chunks():
    """Four chunks in flight, of which the cleaner ones see less of the past."""
    grid = Grid(24, 4, 8)
    size = 6 * 32
    plan = magi(grid, reach=[1, 2, 3, 3], block_size=(64, 64))
    q_ranges = [(c * size, (c + 1) * size) for c in range(4)]
    k_ranges = [(0, size), (0, 2 * size), (0, 3 * size), (size, 4 * size)]
    assert plan == mp.from_ranges(q_ranges, k_ranges, "full", 768, 768, block_size=(64, 64))


BAD = {
    "chunk": (lambda: block_causal(Grid(4, 2, 2), chunk=0), mp.PlanError, ("chunk", "got 0")),
    "local": (
        lambda: block_causal(Grid(4, 2, 2), chunk=1, local=0),
        mp.PlanError,
        ("local", "got 0"),
    ),
    "reach": (
        lambda: magi(Grid(24, 2, 2), reach=[1, 2, 3]),
        mp.PlanError,
        ("reach", "[1, 2, 3]", "4 numbers"),
    ),
    "reach of 0": (lambda: magi(Grid(24, 2, 2), reach=0), mp.PlanError, ("reach", "got 0")),
    "active": (
        lambda: magi(Grid(24, 2, 2), reach=2, active=(3, 5)),
        mp.PlanError,
        ("active", "(3, 5)", "last <= 4"),
    ),
    "active with text": (
        lambda: magi(Grid(24, 2, 2, 7), reach=2, active=(3, 4)),
        mp.PlanError,
        ("active", "7 text tokens", "without text"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
