"""Block lists as an image: how much of each pixel is full, partial, empty or padding.

NOTE [Exact pixels]: a pixel is a rectangle of tokens whose edges need not fall on tokens. Lengths
are counted in token / pixels, in which both edges are whole, so fractions are quotients of
integers: a pixel is empty only if nothing is listed in it, however small.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from maskplan.book.runs import runs_of
from maskplan.geometry import Axes, integer
from maskplan.plan import BlockLists

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Window = tuple[tuple[int, int], tuple[int, int]]
MAX_PIXELS = 8192  # along an axis


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Raster:
    """Fractions of each pixel, which add up to 1.

    Attributes:
        full: float64 [height, width]: in full blocks.
        mask: in blocks of which some pairs are kept.
        empty: in blocks that are not listed.
        padding: past the last row or column of the plan.
    """

    full: Floats
    mask: Floats
    empty: Floats
    padding: Floats

    @property
    def listed(self) -> Floats:
        """In blocks that are listed, full or partial: float64 [height, width]."""
        return self.full + self.mask


def whole_window(axes: Axes) -> Window:
    """Every block, its padding included, as ((first row, stop), (first column, stop)) in tokens."""
    return (0, axes.rows * axes.row_block), (0, axes.cols * axes.col_block)


def rasterise(
    plan: BlockLists, pattern: int, *, shape: tuple[int, int], window: Window | None = None
) -> Raster:
    """Draw one distinct pattern of `plan` into pixels; O(blocks + pixels) and never dense.

    Blocks count by the lists: one with a bit tile is partial, whatever its bits.

    Args:
        plan: a Plan, or a TransposedPlan, whose rows are KV blocks.
        pattern: number of the pattern.
        shape: (height, width) in pixels, each at least 1.
        window: tokens to draw, rows and columns; by default `whole_window`.

    Raises:
        PlanTypeError: if a number is not an integer.
        PlanError: if one is out of range.
    """
    axes = plan.axes
    pattern = integer(pattern, "pattern", high=plan.num_patterns - 1)
    height = integer(shape[0], "shape[0]", low=1, high=MAX_PIXELS)
    width = integer(shape[1], "shape[1]", low=1, high=MAX_PIXELS)
    down, across = whole_window(axes) if window is None else window
    if down[0] >= down[1] or across[0] >= across[1]:
        nothing = np.zeros((height, width))
        return Raster(full=nothing, mask=nothing, empty=nothing, padding=nothing + 1)
    rows = _Spans.of(axes.rows, axes.row_block, axes.row_len, down, height)
    row_ptr = plan.row_ptr[pattern * axes.rows : (pattern + 1) * axes.rows + 1].cpu().numpy()
    listed = slice(int(row_ptr[0]), int(row_ptr[-1]))
    col = plan.col[listed].cpu().numpy()
    masked = None
    if plan.tile_id is not None:
        masked = (plan.tile_id[listed].cpu().numpy() >= 0).astype(np.int32)
    runs = runs_of(row_ptr - row_ptr[0], col, masked)
    line = np.repeat(np.arange(axes.rows), runs.row_runs)
    start = runs.start.astype(np.int64) * axes.col_block
    stop = np.minimum(start + runs.length.astype(np.int64) * axes.col_block, axes.col_len)
    kind = np.zeros(len(start), dtype=np.int64) if runs.tile is None else runs.tile.astype(np.int64)
    full, mask = _covered(rows, (line, kind, start, stop), across, (height, width))
    inside = np.outer(_inside(axes.row_len, down, height), _inside(axes.col_len, across, width))
    pixel = (down[1] - down[0]) * (across[1] - across[0])
    return Raster(
        full=full / pixel,
        mask=mask / pixel,
        empty=(inside - full - mask) / pixel,
        padding=(pixel - inside) / pixel,
    )


def _scaled(tokens: Ints, window: tuple[int, int], pixels: int) -> Ints:
    """Places in the window in units of token / pixels, cut to the window."""
    return (tokens.clip(*window) - window[0]) * pixels


def _inside(length: int, window: tuple[int, int], pixels: int) -> Ints:
    """How much of each pixel lies before `length`, in units of token / pixels."""
    size = window[1] - window[0]
    end = int(_scaled(np.array([length]), window, pixels)[0])
    inside: Ints = (end - np.arange(pixels) * size).clip(0, size)
    return inside


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Which pixels each block of an axis overlaps: first pixel, how many, and where it lies."""

    first: Ints
    count: Ints
    start: Ints
    stop: Ints
    pixel: int

    @classmethod
    def of(
        cls, blocks: int, block: int, length: int, window: tuple[int, int], pixels: int
    ) -> "_Spans":
        edges = np.minimum(np.arange(blocks + 1, dtype=np.int64) * block, length)
        start, stop = (_scaled(part, window, pixels) for part in (edges[:-1], edges[1:]))
        size = window[1] - window[0]
        first = start // size
        count = np.where(stop > start, (stop - 1) // size - first + 1, 0)
        return cls(first, count, start, stop, size)

    def overlap(self, block: Ints, nth: Ints) -> tuple[Ints, Ints]:
        """(the nth pixel that a block overlaps, by how much)."""
        pixel = self.first[block] + nth
        low = np.maximum(self.start[block], pixel * self.pixel)
        high = np.minimum(self.stop[block], (pixel + 1) * self.pixel)
        return pixel, high - low


def _covered(
    rows: _Spans,
    runs: tuple[Ints, Ints, Ints, Ints],
    across: tuple[int, int],
    shape: tuple[int, int],
) -> Ints:
    """Area of each pixel under runs (line, kind, start, stop), for kinds 0 and 1.

    A run adds to the differences of a pixel row where it begins and takes away where it ends, two
    pixels each since edges fall inside pixels; a sum along the row then gives what is covered.
    """
    line, kind, start, stop = runs
    height, width = shape
    size = across[1] - across[0]
    span = rows.count[line]
    run = np.repeat(np.arange(len(line)), span)
    nth = np.arange(len(run)) - np.repeat(span.cumsum() - span, span)
    y, weight = rows.overlap(line[run], nth)
    base = (kind[run] * height + y) * (width + 2)
    differences = np.zeros(2 * height * (width + 2), dtype=np.int64)
    for edge, sign in ((start, 1), (stop, -1)):
        pixel, within = np.divmod(_scaled(edge, across, width)[run], size)
        np.add.at(differences, base + pixel, sign * weight * (size - within))
        np.add.at(differences, base + pixel + 1, sign * weight * within)
    area: Ints = differences.reshape(2, height, width + 2).cumsum(axis=2)[:, :, :width]
    return area
