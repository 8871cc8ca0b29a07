"""Merged walks of device plans: tensors of `maskplan.lower.walk.Walk`."""

import torch
from torch import Tensor

from maskplan.device.lists import (
    Ranks,
    counted,
    listing,
    on_device,
    power_of_two,
    ranks,
    turned_bits,
)
from maskplan.device.reblock import joined_bits
from maskplan.plan import Plan

_FILL = 1024


def grouped(plan: Plan, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Forward rows taken `parts` at a time: (row_ptr, col, tile_id int32 [entries, parts])."""
    status, axes = plan.status, plan.axes
    assert status is not None
    if parts == 1:
        ids = torch.full_like(plan.col, -1) if plan.tile_id is None else plan.tile_id
        return plan.row_ptr, plan.col, ids[:, None]
    if not axes.rows or not axes.cols:
        return _nothing(plan, -(-axes.rows // parts), parts)[:3]
    with on_device(plan.col):
        own = ranks(plan)
        listed, _, counts = joined_bits(own.listed, None, axes, plan.num_patterns, parts, 1)
        capacity = min(len(plan.col), len(listed) * axes.cols)
        row_ptr, col, _ = listing(listed, None, counts, axes.cols, capacity, status, tiles=0)
        ids, _ = _parts(plan, own, row_ptr, col, parts, turned=False, spt=False)
        return row_ptr, col, ids


def turned(plan: Plan, parts: int, *, spt: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """KV blocks with the groups of `parts` Q blocks that visit each.

    Returns:
        (row_ptr, col, tile_id int32 [entries, parts], write order likewise).
    """
    status, axes = plan.status, plan.axes
    assert status is not None
    if not axes.rows or not axes.cols:
        return _nothing(plan, axes.cols, parts)
    with on_device(plan.col):
        own = ranks(plan)
        listed, groups = own.listed, axes.rows
        if parts > 1:
            listed, _, _ = joined_bits(own.listed, None, axes, plan.num_patterns, parts, 1)
            groups = -(-axes.rows // parts)
        across = turned_bits(listed, plan.num_patterns, groups, axes.cols)
        capacity = min(len(plan.col), len(listed) * axes.cols)
        counts = counted(across)[1]
        row_ptr, col, _ = listing(across, None, counts, groups, capacity, status, tiles=0)
        ids, order = _parts(plan, own, row_ptr, col, parts, turned=True, spt=spt)
        return row_ptr, col, ids, order


def _nothing(plan: Plan, rows: int, parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lines = rows if not plan.axes.rows else plan.num_patterns * rows
    row_ptr = torch.zeros(lines + 1, dtype=torch.int64, device=plan.device)
    none = torch.empty(0, parts, dtype=torch.int32, device=plan.device)
    return row_ptr, none[:, 0], none, none


def _parts(
    plan: Plan, own: Ranks, row_ptr: Tensor, col: Tensor, parts: int, *, turned: bool, spt: bool
) -> tuple[Tensor, Tensor]:
    """(tile_id, ranks) int32 [entries, parts] of a walk's entries."""
    from maskplan.device.reblock_triton import parts_kernel

    capacity, lines = len(col), len(row_ptr) - 1
    ids = torch.empty(capacity, parts, dtype=torch.int32, device=col.device)
    order = torch.empty_like(ids) if turned else ids
    parts_kernel[(lines,)](
        row_ptr, col, ids, order, own.listed, own.before,
        col if plan.tile_id is None else plan.tile_id, plan.row_ptr,
        lines, lines // plan.num_patterns, plan.axes.rows, own.listed.shape[1], parts, capacity,
        TURNED=turned, TILES=plan.tile_id is not None, RANKS=turned, SPT=spt,
        BLOCK=power_of_two(plan.axes.rows if turned else plan.axes.cols, 16, 256), FILL=_FILL,
    )  # fmt: skip
    return ids, order
