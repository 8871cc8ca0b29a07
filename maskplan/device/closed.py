"""Plans given by a few numbers, made on a device: bands, and windows of tiles.

How many blocks there are follows from the numbers, so a band has exactly the room it needs, and a
window of tiles that fit the blocks too. Where they do not, the room is what its runs of tiles cover
at most.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.device.lists import (
    check_room,
    listing,
    on_device,
    power_of_two,
    row_pointers,
    words_of,
)
from maskplan.device.status import new_status
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_BLOCK = 256


def _plan_of(
    geometry: Geometry,
    lists: tuple[Tensor, Tensor, Tensor | None],
    tiles: Tensor,
    status: Tensor,
    provenance: Provenance,
) -> Plan:
    row_ptr, col, tile_id = lists
    return Plan(
        geometry=geometry,
        pattern_id=torch.zeros(1, 1, dtype=torch.int32, device=col.device),
        row_ptr=row_ptr,
        col=col,
        tile_id=tile_id,
        tiles=tiles,
        provenance=provenance,
        status=status,
    )


@lru_cache(maxsize=64)
def _band_room(geometry: Geometry, low: int, high: int) -> tuple[int, int]:
    """(blocks, partial blocks) of a band; what `band_of` in closed_triton counts, row by row."""
    (bq, bk), blocks = geometry.block_size, geometry.num_k_blocks
    top = np.arange(geometry.num_q_blocks, dtype=np.int64) * bq
    bottom = np.minimum(top + bq, geometry.seqlen_q)
    first = np.maximum((low + top) // bk, 0)
    stop = np.clip(-((-(high + bottom - 1)) // bk), first, np.maximum(blocks, first))
    stop = np.minimum(stop, np.maximum(blocks, first))
    stop = np.where((low + top > geometry.seqlen_k - 1) | (low >= high), first, stop)
    full = np.clip(-((-(low + bottom - 1)) // bk), first, stop)
    full_stop = np.where(geometry.seqlen_k - 1 < high + top, blocks, (high + top) // bk)
    full_stop = np.clip(full_stop, full, stop)
    listed = int((stop - first).sum())
    return listed, listed - int((full_stop - full).sum())


def band(
    geometry: Geometry, low: int, high: int, provenance: Provenance, device: torch.device
) -> Plan:
    """The device plan in which query q sees keys [q + low, q + high).

    Raises:
        PlanError: if it has more blocks than 32-bit numbers count.
    """
    from maskplan.device.closed_triton import band_kernel, count_band_kernel

    blocks, partial = _band_room(geometry, low, high)
    check_room(blocks, "sliding_window")
    (bq, bk), words, rows = geometry.block_size, geometry.axes.words, geometry.num_q_blocks
    status = new_status(device)
    with on_device(status):
        counts = torch.empty(2, rows, dtype=torch.int32, device=device)
        numbers = (geometry.seqlen_q, geometry.seqlen_k, low, high)
        sizes = {"BLOCK_Q": bq, "BLOCK_K": bk}
        count_band_kernel[(-(-rows // _BLOCK),)](
            counts[0], counts[1], rows, *numbers, **sizes, BLOCK=_BLOCK
        )
        row_ptr = row_pointers(counts[0], blocks, status)
        tile_ptr = row_pointers(counts[1], partial, status)
        col, tile_id = torch.empty(2, blocks, dtype=torch.int32, device=device)
        tiles = torch.empty(partial, bq, words, dtype=torch.int32, device=device)
        band_kernel[(rows,)](
            row_ptr, tile_ptr, col, tile_id, tiles, *numbers, **sizes, WORDS=words,
            BLOCK=_BLOCK, CHUNK=power_of_two(bq * words, 1, 512),
        )  # fmt: skip
        lists = (row_ptr, col, tile_id if partial else None)
        return _plan_of(geometry, lists, tiles, status, provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileWindows:
    """Windows of tiles over a video in tile order, with text before or after it.

    Attributes:
        geometry: SQ and SK in slots, and the block size.
        query_start: slot of the first query.
        video: (first slot, one past the last) of the video; slots outside are text.
        grid: tokens (T, H, W).
        tile: tokens of a tile.
        window: tiles seen on each axis.
        slots: slots a tile takes up, or 0 for as many as it has tokens.
    """

    geometry: Geometry
    query_start: int
    video: tuple[int, int]
    grid: tuple[int, int, int]
    tile: tuple[int, int, int]
    window: tuple[int, int, int]
    slots: int

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Tiles on each axis."""
        t, h, w = (-(-n // c) for n, c in zip(self.grid, self.tile, strict=True))
        return t, h, w

    @property
    def all_full(self) -> bool:
        """Whether tiles and text fill whole blocks, so that no block is partial."""
        (bq, bk), tokens = self.geometry.block_size, int(np.prod(self.tile))
        even = all(n % c == 0 for n, c in zip(self.grid, self.tile, strict=True))
        starts = (self.video[0] - self.query_start) % bq == 0 and self.video[0] % bk == 0
        return even and tokens % bq == 0 and tokens % bk == 0 and starts

    def plan(self, provenance: Provenance, device: torch.device) -> Plan:
        """The device plan."""
        from maskplan.device.closed_triton import count_windows_kernel, window_tiles_kernel

        geometry = self.geometry
        (bq, bk), words = geometry.block_size, geometry.axes.words
        rows, blocks = geometry.num_q_blocks, geometry.num_k_blocks
        capacity = check_room(_windows_room(self), "sliding_tile")
        status = new_status(device)
        with on_device(status):
            width = words_of(blocks)
            listed, full = torch.empty(2, rows, width, dtype=torch.int32, device=device)
            counts = torch.empty(rows, dtype=torch.int32, device=device)
            lengths = (self.query_start, geometry.seqlen_q, geometry.seqlen_k, *self.video)
            numbers = (*self.grid, *self.tile, *self.tiles, *self.window, self.slots)
            count_windows_kernel[(rows,)](
                listed, full, counts, *lengths, width, blocks, *numbers,
                BLOCK_Q=bq, BLOCK_K=bk, BLOCK_W=power_of_two(width, 1, 32),
            )  # fmt: skip
            kind = 0 if self.all_full else 2
            row_ptr, col, tile_id = listing(
                listed, full, counts, blocks, capacity, status, tiles=kind
            )
            room = capacity if kind else 0
            tiles = torch.empty(room, bq, words, dtype=torch.int32, device=device)
            if kind:
                window_tiles_kernel[(rows, 8)](
                    row_ptr, col, tile_id, tiles, *lengths, *numbers,
                    BLOCK_Q=bq, BLOCK_K=bk, WORDS=words, CHUNK=power_of_two(bq, 1, 128),
                )  # fmt: skip
            return _plan_of(geometry, (row_ptr, col, tile_id), tiles, status, provenance)


@lru_cache(maxsize=64)
def _windows_room(windows: TileWindows) -> int:
    """Blocks that a plan of windows has at most: those that the runs of tiles in view touch."""
    geometry = windows.geometry
    (bq, bk), blocks, rows = geometry.block_size, geometry.num_k_blocks, geometry.num_q_blocks
    if not rows or not blocks:
        return 0
    starts, stops = _tile_slots(windows)
    count, tiles, window = len(starts), windows.tiles, windows.window
    first = [np.clip(np.arange(n) - k // 2, 0, n - k) for n, k in zip(tiles, window, strict=True)]
    t, h = (first[axis][:, None] + np.arange(window[axis]) for axis in (0, 1))
    lines = t[:, None, None, :, None] * tiles[1] + h[None, :, None, None, :]
    lines = lines * tiles[2] + first[2][None, None, :, None, None]
    lines = lines.reshape(count, -1)  # the first tile of each run that a tile sees
    touched = (stops[lines + window[2] - 1] - 1) // bk - starts[lines] // bk + 1
    text = blocks - (windows.video[1] // bk) + -(-windows.video[0] // bk)
    cost = np.concatenate([[0], np.cumsum(touched.sum(axis=1))])
    top = windows.query_start + np.arange(rows, dtype=np.int64) * bq
    bottom = np.minimum(top + bq, windows.query_start + geometry.seqlen_q)
    from_tile = np.searchsorted(starts, top, side="right") - 1
    to_tile = np.searchsorted(starts, bottom - 1, side="right") - 1
    most = cost[np.maximum(to_tile, 0) + 1] - cost[np.maximum(from_tile, 0)] + text
    has_text = (top < windows.video[0]) | (bottom > windows.video[1])
    return int(np.where(has_text, blocks, np.minimum(most, blocks)).sum())


def _tile_slots(windows: TileWindows) -> tuple[IntArray, IntArray]:
    """(first slot, one past the last token's) of every tile, int64 [tiles] each."""
    sides = [
        np.minimum(c, n - np.arange(0, n, c))
        for n, c in zip(windows.grid, windows.tile, strict=True)
    ]
    tokens = (sides[0][:, None, None] * sides[1][:, None] * sides[2]).reshape(-1)
    slots = np.full_like(tokens, windows.slots) if windows.slots else tokens
    starts = windows.video[0] + np.cumsum(slots) - slots
    return starts, starts + tokens
