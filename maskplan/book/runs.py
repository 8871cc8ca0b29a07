"""Block lists as runs, the form in which a book's patterns are kept on disk.

A run is a stretch of a row in which KV blocks follow one another and are all full, or all share one
bit tile. Patterns of video models are made of such stretches, so a file of runs is far smaller than
one of blocks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of all rows, one row after another.

    Attributes:
        row_runs: int32 [rows]: runs of each row.
        start: int32 [runs]: the first KV block.
        length: int32 [runs]: blocks, at least 1.
        tile: int32 [runs]: -1 full, else the tile of every block of the run; None if all are full.
    """

    row_runs: Ints
    start: Ints
    length: Ints
    tile: Ints | None


def runs_of(row_ptr: Ints, col: Ints, tile_id: Ints | None) -> Runs:
    """The longest runs of these block lists."""
    breaks = np.ones(len(col), dtype=np.bool_)
    if len(col):
        breaks[1:] = col[1:] != col[:-1] + 1
        if tile_id is not None:
            breaks[1:] |= tile_id[1:] != tile_id[:-1]
        breaks[row_ptr[:-1][row_ptr[:-1] < row_ptr[1:]]] = True
    first = breaks.nonzero()[0]
    before = np.concatenate([[0], np.cumsum(breaks)])
    return Runs(
        row_runs=np.diff(before[row_ptr]).astype(np.int32),
        start=col[first].astype(np.int32),
        length=np.diff(first, append=len(col)).astype(np.int32),
        tile=None if tile_id is None else tile_id[first].astype(np.int32),
    )


def fault_of(runs: Runs, cols: int, max_blocks: int) -> tuple[str, object, str] | None:
    """Where runs cannot be expanded, as (array, value, what was wanted), or None.

    Nothing of the size of the expanded lists is made.
    """
    sizes = {"run_length": runs.length, "run_tile": runs.tile}
    for name, array in sizes.items():
        if array is not None and len(array) != len(runs.start):
            return name, f"{len(array)} runs", f"{len(runs.start)}, as run_start"
    limits: tuple[tuple[str, Ints, Ints, str], ...] = (
        ("row_runs", runs.row_runs, runs.row_runs < 0, "at least 0"),
        ("run_start", runs.start, (runs.start < 0) | (runs.start >= cols), f"a block of {cols}"),
        ("run_length", runs.length, runs.length < 1, "at least 1"),
    )
    for name, array, bad, wanted in limits:
        if bad.any():
            return name, int(array[bad.argmax()]), wanted
    over = runs.start.astype(np.int64) + runs.length > cols
    if over.any():
        return "run_length", int(runs.length[over.argmax()]), f"runs that end by block {cols}"
    if int(runs.row_runs.sum(dtype=np.int64)) != len(runs.start):
        return "row_runs", int(runs.row_runs.sum(dtype=np.int64)), f"{len(runs.start)} in all"
    blocks = int(runs.length.sum(dtype=np.int64))
    return (
        ("run_length", f"{blocks} blocks", f"at most {max_blocks}") if blocks > max_blocks else None
    )


def expanded(runs: Runs) -> tuple[Ints, Ints, Ints | None]:
    """(row_ptr int64, col int32, tile_id int32 or None) of runs without a fault."""
    length = runs.length.astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(length)])
    col = np.repeat(runs.start - ends[:-1], length) + np.arange(ends[-1])
    tile_id = None if runs.tile is None else np.repeat(runs.tile, length)
    run_ptr = np.concatenate([[0], np.cumsum(runs.row_runs, dtype=np.int64)])
    return ends[run_ptr], col.astype(np.int32), tile_id
