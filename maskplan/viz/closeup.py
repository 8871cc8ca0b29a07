"""Partial blocks token by token, for windows small enough to show every token."""

from typing import Any

import numpy as np

from maskplan.plan import BlockLists
from maskplan.viz.raster import Window

Bools = np.ndarray[Any, np.dtype[np.bool_]]


def kept_in_mask_blocks(plan: BlockLists, pattern: int, window: Window) -> Bools:
    """Pairs that partial blocks keep, bool [rows, columns] of the tokens in `window`.

    Pairs of full blocks are False here: they need no bits. Costs the partial blocks that the window
    touches.
    """
    axes = plan.axes
    (top, bottom), (left, right) = window
    first, stop = top // axes.row_block, min(-(-bottom // axes.row_block), axes.rows)
    west, east = left // axes.col_block, -(-right // axes.col_block)
    tall, wide = max(stop - first, 0), east - west
    kept = np.zeros((tall, axes.row_block, wide, axes.col_block), dtype=np.bool_)
    if plan.tile_id is not None and tall:
        ends = plan.row_ptr[pattern * axes.rows + first : pattern * axes.rows + stop + 1]
        row_ptr = ends.cpu().numpy()
        listed = slice(int(row_ptr[0]), int(row_ptr[-1]))
        row = np.repeat(np.arange(tall), np.diff(row_ptr))
        col, tile = plan.col[listed].cpu().numpy(), plan.tile_id[listed].cpu().numpy()
        shown = (tile >= 0) & (col >= west) & (col < east)
        words = plan.tiles.cpu().numpy()[tile[shown]].astype("<i4")
        bits = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little")
        kept[row[shown], :, col[shown] - west] = bits[:, :, : axes.col_block]
    flat = kept.reshape(tall * axes.row_block, wide * axes.col_block)
    inside = np.zeros((bottom - top, right - left), dtype=np.bool_)
    part = flat[top - first * axes.row_block :, left - west * axes.col_block :]
    part = part[: bottom - top, : right - left]
    inside[: part.shape[0], : part.shape[1]] = part
    return inside
