"""A plan drawn in text, from its lists: O(blocks + cells), however long the sequences are."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np

from maskplan.geometry import integer
from maskplan.plan import BlockLists, Plan
from maskplan.stats import PlanStats, stats

WIDTH = 80  # columns of a plain terminal

# What a cell shows when it stands for one block or several, in the order of the legend.
GLYPHS = {
    "█": "full",
    "▚": "full and empty, half or more",
    "▘": "full and empty, less than half",
    "▒": "partial blocks",
    "░": "partial blocks, under half listed",
    "·": "empty",
}
_FULL, _MOSTLY, _PARTLY, _MASK, _FEW, _EMPTY = GLYPHS


def picture(plan: BlockLists, *, rows: int = 24, cols: int = 72, limit: int = 4) -> str:
    """Draw the first distinct patterns of `plan`.

    A cell stands for one block, or for several when the plan has more blocks than the picture has
    cells: full only if all of its blocks are, empty only if none is listed, partial if one of them
    keeps some pairs and not all. Lines are at most 80 columns wide.

    Args:
        plan: a Plan, drawn with Q blocks down and KV blocks across, or a TransposedPlan, drawn with
            KV blocks down.
        rows: most cells down, at least 1.
        cols: most cells across, 1 to 78.
        limit: most patterns drawn, at least 0.

    Returns:
        A header with the shape and the densities, each pattern under the (batch, head)s that use
        it, the legend of the glyphs that occur, and "... n more" where patterns were left out.

    Raises:
        PlanTypeError: if an argument is not an integer.
        PlanError: if one is out of range.
    """
    rows = integer(rows, "rows", low=1)
    cols = integer(cols, "cols", low=1, high=WIDTH - 2)
    limit = integer(limit, "limit")
    pattern_id = plan.pattern_id.cpu().numpy()
    numbers, first = np.unique(pattern_id, return_index=True)
    order = numbers[np.argsort(first)]
    lines = _header(plan, stats(plan), used=len(order))
    glyphs: set[str] = set()
    for pattern in order[:limit].tolist():
        grid = _grid(plan, pattern, rows, cols)
        glyphs.update(*grid)
        who = users(pattern_id == pattern, plan.batch)
        lines += ["", f"pattern {pattern}: {who}"[:WIDTH], *_framed(grid, cols)]
    if len(order) > limit:
        lines += ["", f"... {len(order) - limit} more"]
    lines += _legend(glyphs)
    return "\n".join(lines)


def _header(plan: BlockLists, figures: PlanStats, *, used: int) -> list[str]:
    down, across = ("Q", "KV") if isinstance(plan, Plan) else ("KV", "Q")
    axes = plan.axes
    patterns = "1 distinct pattern" if used == 1 else f"{used} distinct patterns"
    size = f"{axes.rows} {down} blocks down, {axes.cols} {across} blocks across"
    share = f"density {figures.density:.2%} (tokens), block density {figures.block_density:.2%}"
    sentences = [
        f"{type(plan).__name__}: {plan.geometry}",
        f"{size}; batch {plan.batch}, heads {plan.heads}, {patterns}",
        f"{share}; {figures.full_blocks} full, {figures.mask_blocks} partial",
    ]
    return [line for text in sentences for line in wrap(text, WIDTH)]


def _grid(plan: BlockLists, pattern: int, rows: int, cols: int) -> list[str]:
    """One glyph a cell; blocks are spread over at most rows x cols cells of nearly equal size."""
    axes = plan.axes
    rows, cols = min(rows, axes.rows), min(cols, axes.cols)
    if rows == 0 or cols == 0:
        return []
    row_ptr = plan.row_ptr[pattern * axes.rows : (pattern + 1) * axes.rows + 1].cpu().numpy()
    listed = slice(int(row_ptr[0]), int(row_ptr[-1]))
    down = np.repeat(np.arange(axes.rows, dtype=np.int64) * rows // axes.rows, np.diff(row_ptr))
    across = plan.col[listed].cpu().numpy().astype(np.int64) * cols // axes.cols
    cell = down * cols + across
    shown = np.bincount(cell, minlength=rows * cols).reshape(rows, cols)
    masked = np.zeros_like(shown)
    if plan.tile_id is not None:
        tile_id = plan.tile_id[listed].cpu().numpy()
        masked = np.bincount(cell[tile_id >= 0], minlength=rows * cols).reshape(rows, cols)
    blocks = np.outer(_cell_sizes(axes.rows, rows), _cell_sizes(axes.cols, cols))
    half = 2 * shown >= blocks
    glyph = np.select(
        [shown == 0, (masked > 0) & half, masked > 0, shown == blocks, half],
        [_EMPTY, _MASK, _FEW, _FULL, _MOSTLY],
        default=_PARTLY,
    )
    return ["".join(line) for line in glyph.tolist()]


def _cell_sizes(blocks: int, cells: int) -> np.ndarray:
    """Blocks that fall into each cell when block b goes to cell b * cells // blocks."""
    edges = -(-np.arange(cells + 1, dtype=np.int64) * blocks // cells)
    return np.diff(edges)


def _framed(grid: Sequence[str], cols: int) -> list[str]:
    """The grid with a border, its cells two columns wide where they fit: closer to square."""
    if not grid:
        return ["(no blocks)"]
    times = 2 if 2 * len(grid[0]) <= cols else 1
    edge = "─" * (times * len(grid[0]))
    body = ("│" + "".join(glyph * times for glyph in line) + "│" for line in grid)
    return [f"┌{edge}┐", *body, f"└{edge}┘"]


def _legend(glyphs: set[str]) -> list[str]:
    """The glyphs that occur and what they mean, in lines of at most 80 columns."""
    lines: list[str] = []
    for glyph, meaning in GLYPHS.items():
        if glyph in glyphs:
            entry = f"{glyph} {meaning}"
            if lines and len(lines[-1]) + 3 + len(entry) <= WIDTH:
                lines[-1] += f"   {entry}"
            else:
                lines.append(entry)
    return lines


def users(uses: np.ndarray, batch: int) -> str:
    """Which (batch, head)s are True in bool [batch, heads], as ranges of heads per batch."""
    parts = []
    for index in np.flatnonzero(uses.any(axis=1)).tolist():
        heads = np.flatnonzero(uses[index])
        starts = heads[np.diff(heads, prepend=-2) > 1].tolist()
        stops = heads[np.diff(heads, append=heads[-1] + 2) > 1].tolist()
        ranges = ", ".join(
            str(start) if start == stop else f"{start}-{stop}"
            for start, stop in zip(starts, stops, strict=True)
        )
        name = "heads" if len(heads) > 1 else "head"
        parts.append(f"{name} {ranges}" if batch == 1 else f"batch {index} {name} {ranges}")
    text = "; ".join(parts)
    room = WIDTH - len("pattern 2147483647: ") - len(" ...")
    return text if len(text) <= room else text[:room].rpartition(" ")[0].rstrip(",;") + " ..."
