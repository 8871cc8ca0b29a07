"""`Walk`: what one warp of our kernels reads, row by row, in one merged ascending loop.

NOTE [Several tiles a walk]: a CTA works on `parts` Q tiles at once (two on sm100's forward), or a
LoopQ entry names a coarse Q block of `parts` tiles. One list then serves all parts, and an entry
has a tile number for each: -1 the part sees the whole block, -2 the part skips it, else bits.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from maskplan.lower.schedule import longest_first
from maskplan.plan import BlockLists, Plan
from maskplan.transform.transpose import transpose_lists, transpose_tiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """Merged CSR rows of one direction, for one target.

    A row is (pattern, group of Q tiles), or (pattern, KV block) for LoopQ. Of a device plan there
    is room for more entries than row_ptr[-1], and what lies beyond is never read.

    Attributes:
        row_ptr: int64 [P * rows + 1].
        col: int32 [entries]: KV blocks; for LoopQ, coarse Q blocks. Ascending in a row.
        tile_id: int32 [entries, parts]: -1 full, -2 skip, else a row of `tiles`.
        tiles: int32 [T, rows of a part, words]: forward bits, or those of S^T for a backward.
        write_order: int32 [entries, parts] of LoopQ, the rank of this KV block among those that add
            to that Q tile's dQ, or -1 where the part skips; None for the other directions.
        spt: whether that order descends in KV blocks.
        order: int32 [batch * heads * rows]: work items, (batch, head, row) with row fastest,
            longest first.
        rows: rows of a pattern.
        parts: Q tiles that an entry serves.
        part_tokens: query tokens of a part.
        col_tokens: tokens of a KV block.
    """

    row_ptr: Tensor
    col: Tensor
    tile_id: Tensor
    tiles: Tensor
    write_order: Tensor | None
    order: Tensor
    rows: int
    parts: int
    part_tokens: int
    col_tokens: int
    spt: bool = False


def device_walk(plan: Plan, *, parts: int) -> Walk:
    """`forward_walk` of a device plan, on its device."""
    from maskplan.device.walks import grouped

    row_ptr, col, tile_id = grouped(plan, parts)
    return _walk(plan, parts, row_ptr, col, tile_id, -(-plan.axes.rows // parts))


def device_loop_q_walk(plan: Plan, *, parts: int, spt: bool) -> Walk:
    """`loop_q_walk` of a device plan, on its device."""
    from maskplan.device.lists import turned_tiles
    from maskplan.device.walks import turned

    row_ptr, col, tile_id, order = turned(plan, parts, spt=spt)
    walk = _walk(plan, parts, row_ptr, col, tile_id, plan.axes.cols)
    return replace(walk, tiles=turned_tiles(plan), write_order=order, spt=spt)


def _walk(plan: Plan, parts: int, row_ptr: Tensor, col: Tensor, tile_id: Tensor, rows: int) -> Walk:
    return Walk(
        row_ptr=row_ptr,
        col=col,
        tile_id=tile_id,
        tiles=plan.tiles,
        write_order=None,
        order=_order(plan, row_ptr, rows),
        rows=rows,
        parts=parts,
        part_tokens=plan.block_size[0],
        col_tokens=plan.block_size[1],
    )


def _grouped(plan: Plan, parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """(row_ptr, col, tile_id, rank, rows) of forward rows taken `parts` at a time."""
    from maskplan.lower import walk_kernel as kernels

    rows = plan.axes.rows
    groups = -(-rows // parts)
    row_ptr, col = plan.row_ptr.numpy(), plan.col.numpy()
    tile_id = np.empty(0, np.int32) if plan.tile_id is None else plan.tile_id.numpy()
    new_ptr = np.zeros((plan.num_patterns if groups else 0) * groups + 1, dtype=np.int64)
    pair = np.empty((0, parts), dtype=np.int32)
    count = 0
    if groups:
        none = np.empty(0, dtype=np.int32)
        count = kernels.group_rows(
            row_ptr, col, tile_id, rows, parts, new_ptr, none, pair, pair.copy()
        )
    new_col = np.empty(count, dtype=np.int32)
    ids, rank = np.empty((count, parts), np.int32), np.empty((count, parts), np.int32)
    if count:
        kernels.group_rows(row_ptr, col, tile_id, rows, parts, new_ptr, new_col, ids, rank)
    arrays = (torch.from_numpy(array) for array in (new_ptr, new_col, ids, rank))
    return (*arrays, groups)  # type: ignore[return-value]


def _order(plan: BlockLists, row_ptr: Tensor, rows: int) -> Tensor:
    """Longest-first order of (batch, head, row)."""
    if rows == 0:
        return torch.empty(0, dtype=torch.int32, device=row_ptr.device)
    work = row_ptr.diff().view(-1, rows)[plan.pattern_id.long()]
    return longest_first(work.reshape(-1))


def forward_walk(plan: Plan, *, parts: int = 1) -> Walk:
    """Rows of `plan` taken `parts` at a time."""
    if plan.status is not None:
        return device_walk(plan, parts=parts)
    row_ptr, col, tile_id, _, rows = _grouped(plan, parts)
    return _walk(plan, parts, row_ptr, col, tile_id, rows)


def loop_q_walk(plan: Plan, *, parts: int = 1, spt: bool = False) -> Walk:
    """KV blocks of `plan`, each with the coarse Q blocks of `parts` tiles that visit it.

    Args:
        plan: forward lists.
        parts: Q blocks of the plan in a coarse one (the subtile factor).
        spt: dQ is added in descending order of KV blocks instead of ascending.
    """
    if plan.status is not None:
        return device_loop_q_walk(plan, parts=parts, spt=spt)
    row_ptr, col, tile_id, rank, groups = _grouped(plan, parts)
    cols = plan.axes.cols
    new_ptr, new_col, source = transpose_lists(row_ptr, col, groups, cols)
    write_order = rank[source]
    if spt:
        lengths = _part_lengths(plan, parts, new_col, new_ptr, cols)
        write_order = torch.where(write_order < 0, write_order, lengths - 1 - write_order)
    walk = _walk(plan, parts, new_ptr, new_col, tile_id[source], cols)
    tiles = transpose_tiles(plan.tiles, plan.block_size[1])
    return replace(walk, tiles=tiles, write_order=write_order, spt=spt)


def loop_k_walk(plan: Plan, tiles: Tensor | None = None) -> Walk:
    """Q blocks of `plan`, each with the KV blocks that it sees, and bits of S^T.

    Args:
        plan: forward lists.
        tiles: its tiles with rows and columns changed over, if they are at hand.
    """
    if tiles is None and plan.status is not None:
        from maskplan.device.lists import turned_tiles

        tiles = turned_tiles(plan)
    if tiles is None:
        tiles = transpose_tiles(plan.tiles, plan.block_size[1])
    return replace(forward_walk(plan), tiles=tiles)


def _part_lengths(plan: Plan, parts: int, col: Tensor, row_ptr: Tensor, cols: int) -> Tensor:
    """KV blocks in the forward row of each part of an entry, int32 [entries, parts]."""
    rows = plan.axes.rows
    pattern = torch.repeat_interleave(
        torch.arange(len(row_ptr) - 1, device="cpu"), row_ptr.diff()
    ) // max(cols, 1)
    row = col.long()[:, None] * parts + torch.arange(parts, device="cpu")
    line = pattern[:, None] * rows + row.clamp(max=rows - 1)
    return plan.row_ptr.diff()[line].to(torch.int32)
