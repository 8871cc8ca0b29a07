"""Grids and tokens by nested loops, for tests that judge patterns token by token."""

from hypothesis import strategies as st

from maskplan.video import Grid


def coordinates(grid: Grid, token: int):
    """(t, h, w) of a token in raster order, or None for text."""
    video = token - (grid.text if grid.text_first else 0)
    if not 0 <= video < grid.t * grid.h * grid.w:
        return None
    return video // (grid.h * grid.w), video // grid.w % grid.h, video % grid.w


def video_slots(grid: Grid, slots: list[int]) -> list[int]:
    """The slots from the video's first to its last, padding included."""
    text = grid.text
    if grid.text_first:
        return slots[text:]
    return slots[: len(slots) - text]


@st.composite
def grids(draw, *, high=(4, 5, 6), text: int = 4):
    """Grids of few tokens, text before, after or not at all."""
    shape = [draw(st.integers(1, side)) for side in high]
    return Grid(*shape, text=draw(st.integers(0, text)), text_first=draw(st.booleans()))
