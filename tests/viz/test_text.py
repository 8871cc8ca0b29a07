"""The text picture: what each glyph means, and that it costs blocks and not pairs."""

import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.viz.text import GLYPHS, picture
from tests.handmade import causal_mask, plan_of, transposed_of


def grid_of(text: str) -> list[str]:
    return [line.strip("│") for line in text.splitlines() if line.startswith("│")]


def test_one_cell_a_block_tells_full_from_partial_from_empty():
    text = picture(plan_of(causal_mask(6, 6), (2, 2), [[0, 0, 0]]))

    assert text.splitlines() == [
        "Plan: 6 x 6 tokens in blocks of 2 x 2",
        "3 Q blocks down, 3 KV blocks across; batch 1, heads 3, 1 distinct pattern",
        "density 58.33% (tokens), block density 66.67%; 9 full, 9 partial",
        "",
        "pattern 0: heads 0-2",
        "┌──────┐",
        "│▒▒····│",
        "│██▒▒··│",
        "│████▒▒│",
        "└──────┘",
        "█ full   ▒ partial blocks   · empty",
    ]
    assert str(plan_of(causal_mask(6, 6), (2, 2), [[0, 0, 0]])) == text


def test_cells_of_several_blocks_say_what_they_mix():
    mask = torch.zeros(1, 4, 8, dtype=torch.bool)
    mask[0, :2, :2] = True  # full
    mask[0, :2, 2:4] = True
    mask[0, 0, 2] = False  # full and empty, three of four
    mask[0, 0, 4] = True  # full and empty, one of four
    text = picture(plan_of(mask, (1, 1)), rows=2, cols=4)

    assert grid_of(text) == ["█▚▘·", "····"]
    legend = text.splitlines()[-2:]
    assert legend[0].startswith("█ full   ▚ full and empty, half or more")


def test_one_partial_block_marks_its_cell():
    mask = torch.ones(1, 8, 8, dtype=torch.bool)
    mask[0, 0, 0] = False
    mask[0, :, 4:] = False
    mask[0, 0, 4] = True
    text = picture(plan_of(mask, (2, 2)), rows=2, cols=2)

    assert grid_of(text) == ["▒░", "█·"]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(1, 7), st.data())
def test_cells_agree_with_their_blocks(rows, cols, most_rows, most_cols, data):
    """Each cell against the blocks that fall into it, by nested loops."""
    kinds = data.draw(st.lists(st.sampled_from("█▒·"), min_size=rows * cols, max_size=rows * cols))
    mask = torch.zeros(1, 2 * rows, 2 * cols, dtype=torch.bool)
    for i, kind in enumerate(kinds):
        top, left = 2 * (i // cols), 2 * (i % cols)
        mask[0, top : top + 2, left : left + 2] = kind == "█"
        mask[0, top, left] = kind != "·"
    height, width = min(rows, most_rows), min(cols, most_cols)
    cells = [["" for _ in range(width)] for _ in range(height)]
    for i, kind in enumerate(kinds):
        cells[i // cols * height // rows][i % cols * width // cols] += kind
    expected = []
    for line in cells:
        for blocks in line:
            listed = len(blocks) - blocks.count("·")
            half = 2 * listed >= len(blocks)
            if not listed:
                expected.append("·")
            elif "▒" in blocks:
                expected.append("▒" if half else "░")
            elif listed == len(blocks):
                expected.append("█")
            else:
                expected.append("▚" if half else "▘")
    plan = plan_of(mask, (2, 2))
    lines = grid_of(picture(plan, rows=most_rows, cols=most_cols))
    times = len(lines[0]) // width

    assert "".join(line[::times] for line in lines) == "".join(expected)


def test_patterns_are_drawn_in_order_of_use_up_to_the_limit():
    masks = torch.stack([torch.eye(2), torch.ones(2, 2), torch.zeros(2, 2)]).bool()
    text = picture(plan_of(masks, (1, 1), [[2, 1, 2, 2], [1, 1, 0, 2]]), limit=2)
    lines = text.splitlines()

    assert "pattern 2: batch 0 heads 0, 2-3; batch 1 head 3" in lines
    assert "pattern 1: batch 0 head 1; batch 1 heads 0-1" in lines
    assert "... 1 more" in lines
    assert len(grid_of(text)) == 4
    assert "3 distinct patterns" in text


def test_a_transposed_plan_says_so():
    lines = picture(transposed_of(causal_mask(4, 6), (2, 2))).splitlines()

    assert lines[0] == "TransposedPlan: 4 x 6 tokens in blocks of 2 x 2"
    assert lines[1].startswith("3 KV blocks down, 2 Q blocks across")
    assert grid_of("\n".join(lines)) == ["▒▒██", "··▒▒", "····"]


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0), (0, 0)])
def test_a_plan_without_blocks(lengths):
    assert "(no blocks)" in picture(plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2)))


def test_no_line_is_wider_than_a_terminal():
    heads = 400
    masks = torch.stack([torch.eye(100), torch.ones(100, 100)]).bool()
    plan = plan_of(masks, (1, 1), [[head % 2 for head in range(heads)]] * 2)

    for cols in (1, 30, 78):
        assert max(len(line) for line in picture(plan, cols=cols).splitlines()) <= 80
    assert " ..." in picture(plan)


def test_a_long_plan_is_drawn_without_its_matrix():
    """MInference and others had to make a dense mask to look at a sparse one."""
    blocks = 2**20
    plan = mp.Plan(
        geometry=mp.Geometry(seqlen_q=blocks, seqlen_k=blocks, block_size=(1, 1)),
        pattern_id=torch.zeros(1, 1, dtype=torch.int32),
        row_ptr=torch.arange(blocks + 1),
        col=torch.arange(blocks, dtype=torch.int32),
        tile_id=None,
        tiles=torch.empty(0, 1, 1, dtype=torch.int32),
    )
    tracemalloc.start()
    text = picture(plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert grid_of(text)[0].startswith("▘▘▘·")
    assert peak < 100 * blocks


def test_every_glyph_is_one_column():
    assert all(len(glyph) == 1 for glyph in GLYPHS)


@pytest.mark.parametrize("arguments", [{"rows": 0}, {"cols": 0}, {"cols": 79}, {"limit": -1}])
def test_sizes_are_checked(arguments):
    with pytest.raises(mp.PlanError, match=next(iter(arguments))):
        picture(plan_of(causal_mask(2, 2), (2, 2)), **arguments)
