"""Sliding tile attention: each tile of queries sees a box of tiles around it."""

import numpy as np
import torch

from maskplan.build.slices import Slices, boxes, plan_of_slices
from maskplan.device.closed import TileWindows
from maskplan.device.move import gpu
from maskplan.geometry import Geometry
from maskplan.patterns.grid import Grid, window_on
from maskplan.patterns.sequence import IntArray, Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def sliding_tile(
    grid: Grid,
    *,
    tile: tuple[int, int, int] = (6, 8, 8),
    window: tuple[int, int, int] = (3, 3, 3),
    block_size: tuple[int, int] = (128, 128),
    pad: bool = False,
    clamp: bool = False,
    queries: str = "all",
    device: torch.device | str | None = None,
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
        queries: "all", or "video" to leave text out of the queries: SQ is then shorter than SK.
        device: where to make it: a GPU gives a device plan, without tiles of bits if tiles and text
            fill whole blocks; by default the CPU gives an exact one.

    Raises:
        PlanTypeError: if a size is not three integers.
        PlanError: if one is below 1, a window is larger than its axis and not clamped, or
            `queries` is neither.

    Source: arXiv 2502.04507; published code keeps k + 1 tiles for an even k < n.
    """
    order = TokenOrder.tiles(grid, tile, pad=pad)
    sides = window_on(window, order.tile_grid, clamp=clamp)
    sequence = Sequence(order, queries)
    provenance = sequence.provenance("sliding_tile", tile=order.tile, window=sides, pad=pad)
    place = gpu(device)
    if place is not None:
        geometry = sequence.geometry(block_size)
        return _windows(sequence, sides, geometry).plan(provenance, place)
    starts, stops = sequence.tiles()
    video = _tile_slices(starts, stops, order.tile_grid, sides)
    slices = sequence.taken(video, sequence.text())
    return plan_of_slices([slices], sequence.geometry(block_size), provenance)


def _windows(sequence: Sequence, window: tuple[int, int, int], geometry: Geometry) -> TileWindows:
    """The same pattern as a device makes it."""
    order = sequence.order
    grid = order.grid
    first = grid.text if grid.text_first else 0
    return TileWindows(
        geometry=geometry,
        query_start=sequence.query_start,
        video=(first, order.seqlen - (0 if grid.text_first else grid.text)),
        grid=grid.shape,
        tile=order.tile,
        window=window,
        slots=order.multiple if order.multiple > 1 else 0,
    )


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
