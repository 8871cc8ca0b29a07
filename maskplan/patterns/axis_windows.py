"""Masks that are a product over the axes of a grid: a window of keys on each axis."""

from dataclasses import dataclass

import numpy as np
import torch

from maskplan.patterns.groups import ROWS_A_THREAD, Part, stacked
from maskplan.patterns.sequence import IntArray, Sequence
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.threads import run_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisWindow:
    """What a coordinate sees of its own axis: y with low[x] <= y < high[x], step by step from x.

    Attributes:
        low: int64 [length].
        high: int64 [length].
        step: y - x is a multiple of it.
    """

    low: IntArray
    high: IntArray
    step: int = 1


def plan_of_windows(
    windows: tuple[AxisWindow, AxisWindow, AxisWindow],
    sequence: Sequence,
    block_size: tuple[int, int],
    provenance: Provenance,
) -> Plan:
    """The plan in which a token sees the tokens that lie in its window on every axis, and text.

    Work grows with the blocks listed; the bits of equal blocks are made once.

    Args:
        windows: of t, h and w.
        sequence: the order of the tokens; text sees and is seen.
        block_size: (bq, bk), in tokens.
        provenance: how it was made.
    """
    from maskplan.patterns.axis_windows_kernel import plan_axis_windows

    order, geometry = sequence.order, sequence.geometry(block_size)
    keys = _runs(sequence, text=True)
    queries = _runs(sequence, text=sequence.text_queries)
    queries[:, :2] -= sequence.query_start
    shared = (
        queries,
        keys,
        tuple(np.stack([w.low, w.high]).astype(np.int64) for w in windows),
        tuple(w.step for w in windows),
        order.grid.shape,
        order.tile,
        order.tile_starts[:-1].numpy(),
        np.array([order.text_start, order.text_start + order.grid.text], dtype=np.int64),
        np.array([geometry.seqlen_q, geometry.seqlen_k, *geometry.block_size], dtype=np.int64),
    )
    parts: dict[int, Part] = {}

    def work(start: int, stop: int) -> None:
        parts[start] = plan_axis_windows(*shared, (start, stop))

    run_ranges(work, geometry.num_q_blocks, smallest=ROWS_A_THREAD)
    ordered = [parts[start] for start in sorted(parts)]
    return stacked(
        ordered, geometry, provenance, torch.zeros((1, 1), dtype=torch.int32, device="cpu")
    )


def _runs(sequence: Sequence, *, text: bool) -> IntArray:
    """Runs of slots of one (t, h) with w counting up: int64 [runs, 5], ascending."""
    order = sequence.order
    grid, (t_tile, h_tile, w_tile) = order.grid, order.tile
    t = np.arange(grid.t)[:, None, None]
    h = np.arange(grid.h)[:, None]
    w = np.arange(0, grid.w, w_tile)
    rows = np.minimum(h_tile, grid.h - h // h_tile * h_tile)  # of the tile that h lies in
    width = np.minimum(w_tile, grid.w - w)
    tile = (t // t_tile * order.tile_grid[1] + h // h_tile) * order.tile_grid[2] + w // w_tile
    start = order.tile_starts.numpy()[tile] + (t % t_tile * rows + h % h_tile) * width
    columns = np.broadcast_arrays(start, start + width, t, h, w)
    runs = np.stack([column.reshape(-1) for column in columns], axis=1)
    runs = runs[np.argsort(runs[:, 0])]
    if text and grid.text:
        own = np.array([[order.text_start, order.text_start + grid.text, -1, -1, 0]])
        runs = np.concatenate([own, runs] if grid.text_first else [runs, own])
    return np.ascontiguousarray(runs, dtype=np.int64)
