"""Radial attention against its token rule, and against published code's rule for blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, radial, radial_shrunk
from tests.oracle import assert_plan
from tests.patterns.on_grids import grids, video_slots
from tests.strategies import block_sizes


def pair_keeps(i, j, r, c, size, *, decay, least, split, adjacent, sink) -> bool:
    """Token r of frame i sees token c of frame j."""
    if sink and j == 0:
        return True
    d = abs(i - j)
    group, power = len(bin(d)) - 2 if d else 0, 2 ** (len(bin(size)) - 2)
    reach = power / 2**group
    if reach < split and d % int(split / reach) != 0:
        return False
    if d == 0:
        width = size
    elif d == 1:
        width = int(size * adjacent)
    else:
        width = max(reach * decay, least)
    return abs(r - c) <= width


def tokens_keep(grid, rule, q: int, k: int) -> bool:
    start, size = (grid.text if grid.text_first else 0), grid.h * grid.w
    inside = [0 <= token - start < grid.t * size for token in (q, k)]
    if not all(inside):
        return True
    i, r = divmod(q - start, size)
    j, c = divmod(k - start, size)
    return pair_keeps(i, j, r, c, size, **rule)


RULES = st.fixed_dictionaries(
    {
        "decay": st.sampled_from([0.05, 0.2, 0.95, 2.0]),
        "split": st.integers(1, 40),
        "adjacent": st.sampled_from([0.5, 1.0]),
        "sink": st.booleans(),
    }
)


@settings(max_examples=60)
@given(
    grids(high=(9, 4, 6)),
    RULES,
    st.integers(1, 9),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_radial_is_its_definition(grid, rule, least, queries, block_size):
    rule = {**rule, "least": least}
    plan = radial(grid, **rule, block_size=block_size, queries=queries)
    slots = list(range(grid.seqlen))
    rows = slots if queries == "all" else video_slots(grid, slots)
    dense = [[tokens_keep(grid, rule, q, k) for k in slots] for q in rows]
    assert_plan(plan, torch.tensor(dense)[None, None])


def shrunk_blocks(grid: Grid, block: int, rule) -> torch.Tensor:
    """bool [N, N] as published code makes it, with its slices cut where it would stop."""
    rows, size = -(-grid.seqlen // block), grid.h * grid.w
    start = grid.text if grid.text_first else 0
    final = torch.zeros(rows, rows, dtype=torch.bool)
    text = list(range(-(-grid.text // block))) if grid.text_first else []
    text += range((start + grid.t * size) // block, rows)
    final[text] = True
    final[:, text] = True
    for i in range(grid.t):
        for j in range(grid.t):
            kept = [
                [pair_keeps(i, j, r, c, size, **rule) for c in range(size)] for r in range(size)
            ]
            top, left = (start + i * size) % block, (start + j * size) % block
            count = -(-size // block)
            padded = torch.zeros(count * block + block + size, count * block + block + size)
            padded[top : top + size, left : left + size] = torch.tensor(kept)
            for a in range(count):
                for b in range(count):
                    here = padded[a * block : (a + 1) * block, b * block : (b + 1) * block].sum(0)
                    dense_columns = int((here > block / 3).sum())
                    columns = int((here > 0).sum())
                    at = ((start + i * size) // block + a, (start + j * size) // block + b)
                    if columns and dense_columns / columns > 0.6 and max(at) < rows:
                        final[at] = True
    return final


@settings(max_examples=30)
@given(grids(high=(6, 3, 6)), RULES, st.integers(1, 9))
def test_radial_shrunk_is_published_code(grid, rule, block):
    plan = radial_shrunk(grid, block=block, **rule)
    wanted = shrunk_blocks(grid, block, {**rule, "least": block})
    assert plan == mp.from_block_mask(wanted, grid.seqlen, grid.seqlen, block_size=(block, block))
    video = radial_shrunk(grid, block=block, **rule, queries="video")
    start = grid.text if grid.text_first else 0
    assert video == plan.crop(q=(start, start + grid.t * grid.h * grid.w))


def test_b3_golden_densities_of_384_x_640():
    """21 frames of 960 tokens: 315 x 315 blocks of 64, 158 x 158 of 128 with a tail of 64."""
    grid = Grid(21, 24, 40)
    small = radial_shrunk(grid, decay=0.2, block=64)
    assert (small.geometry.num_q_blocks, round(small.num_blocks / 315**2, 4)) == (315, 0.3019)
    padded = radial_shrunk(grid, decay=0.2, block=128)
    assert (padded.geometry.num_q_blocks, round(padded.num_blocks / 158**2, 4)) == (158, 0.4117)


def test_b5_b2_lengths_that_are_no_multiple_of_anything():
    wan = Grid(21, 45, 80)  # 28.125 blocks a frame
    assert radial(wan, decay=0.2).seqlen_q == 75_600
    assert radial_shrunk(wan, decay=0.2).geometry.num_q_blocks == 591
    odd = Grid(22, 45, 80)  # 79,200 = 618 * 128 + 96
    assert radial(odd, decay=0.2).geometry.num_k_blocks == 619


def test_later_code_of_wan_narrows_adjacent_frames():
    grid = Grid(3, 4, 8)
    plan = radial(grid, decay=0.2, least=1, adjacent=0.5, sink=False, split=1)
    assert int(plan.to_dense()[0, 0, 32 + 0].sum()) == 17 + 32 + 17


BAD = {
    "decay": (lambda: radial(Grid(2, 4, 4), decay=0.0), mp.PlanError, ("decay", "got 0.0", "0.95")),
    "block": (
        lambda: radial_shrunk(Grid(2, 4, 4), decay=1.0, block=0),
        mp.PlanError,
        ("block", "got 0"),
    ),
    "least": (
        lambda: radial(Grid(2, 4, 4), decay=1.0, least=1.5),
        mp.PlanTypeError,
        ("least", "1.5 of type float"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
