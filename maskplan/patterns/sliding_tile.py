"""Sliding tile attention: each tile of queries sees a box of tiles around it."""

from typing import Any

import numpy as np

from maskplan.build.slices import Slices, boxes, plan_of_slices
from maskplan.geometry import Geometry
from maskplan.patterns.grid import Grid, window_on
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.provenance import Provenance

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def sliding_tile(
    grid: Grid,
    *,
    tile: tuple[int, int, int] = (6, 8, 8),
    window: tuple[int, int, int] = (3, 3, 3),
    block_size: tuple[int, int] = (128, 128),
    pad: bool = False,
    clamp: bool = False,
) -> Plan:
    """The plan of sliding tile attention, over tokens in tile order.

    On each axis of n tiles, a window of k tiles around tile x is the k tiles from
    clamp(x - k // 2, 0, n - k): it is moved inwards at the edges, so that every query sees exactly
    k tiles, for even k too. Text sees everything, and everything sees text.

    Queries and keys are laid out by `TokenOrder.tiles(grid, tile, pad=pad)`; its `apply` and `undo`
    take tensors there and back, and the plan's provenance has what rebuilds it.

    Args:
        grid: the latent grid; tiles need not divide it.
        tile: tokens of a tile along (t, h, w).
        window: tiles seen along (t, h, w); n of them see the whole axis.
        block_size: (bq, bk), in tokens.
        pad: give every tile t * h * w slots, of which those that hold no token see nothing and are
            not seen; keeps tiles on block boundaries where they do not divide the grid.
        clamp: cut a window that is larger than its axis, rather than refuse it.

    Raises:
        PlanTypeError: if a size is not three integers.
        PlanError: if one is below 1, or a window is larger than its axis and not clamped.

    Source: arXiv 2502.04507; published code keeps k + 1 tiles for an even k < n.
    """
    order = TokenOrder.tiles(grid, tile, pad=pad)
    sides = window_on(window, order.tile_grid, clamp=clamp)
    geometry = Geometry(seqlen_q=order.seqlen, seqlen_k=order.seqlen, block_size=block_size)
    provenance = Provenance(
        builder="sliding_tile",
        parameters={"tile": order.tile, "window": sides, "pad": pad},
        grid=grid.to_json(),
        token_order=order.to_json(),
    )
    starts = order.tile_starts[:-1].numpy()
    stops = starts + order.tile_counts.numpy()
    video = _tile_slices(starts, stops, order.tile_grid, sides)
    slices = [video, *_text_slices(starts, stops, order)] if grid.text else [video]
    return plan_of_slices([np.concatenate(slices)], geometry, provenance)


def _tile_slices(
    starts: IntArray, stops: IntArray, tiles: tuple[int, int, int], window: tuple[int, int, int]
) -> Slices:
    """Each tile's queries by the runs of tiles it sees."""
    first = [np.clip(np.arange(n) - k // 2, 0, n - k) for n, k in zip(tiles, window, strict=True)]
    t, h, w = ((low[:, None] + np.arange(k)) for low, k in zip(first, window, strict=True))
    seen = (
        (t[:, None, None, :, None, None] * tiles[1] + h[None, :, None, None, :, None]) * tiles[2]
    ) + w[None, None, :, None, None, :]
    flat = seen.reshape(len(starts), -1)  # tiles seen by each tile, ascending
    key_start, key_stop = starts[flat], stops[flat]
    begins = np.ones(flat.shape, dtype=bool)
    begins[:, 1:] = key_start[:, 1:] != key_stop[:, :-1]
    ends = np.roll(begins, -1, axis=1)
    ends[:, -1] = True
    query = np.nonzero(begins)[0]
    return boxes(starts[query], stops[query], key_start[begins], key_stop[ends])


def _text_slices(starts: IntArray, stops: IntArray, order: TokenOrder) -> list[Slices]:
    """Text by everything, and the video's tokens by text."""
    text = np.array([order.text_start])
    text_stop = text + order.grid.text
    keys = _joined(np.append(starts, text), np.append(stops, text_stop))
    videos = _joined(starts, stops)
    count = np.ones(len(keys[0]), dtype=np.int64)
    rows = np.ones(len(videos[0]), dtype=np.int64)
    return [
        boxes(count * text, count * text_stop, *keys),
        boxes(*videos, rows * text, rows * text_stop),
    ]


def _joined(starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """Disjoint intervals with those that touch made one."""
    order = np.argsort(starts)
    starts, stops = starts[order], stops[order]
    begins = np.append(True, starts[1:] != stops[:-1])
    return starts[begins], stops[np.append(begins[1:], True)]
