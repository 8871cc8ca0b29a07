"""Padded lists of device plans."""

from typing import TypedDict

import torch
from torch import Tensor

from maskplan.device.list_writer import pad_lists
from maskplan.device.lists import counted, on_device, power_of_two, ranks, turned_bits
from maskplan.device.nvrtc import runs
from maskplan.device.status import new_status
from maskplan.plan import BlockLists

_BLOCK = 512  # slots that a warp of Triton writes at once


class PaddedLists(TypedDict):
    """Tensors of `maskplan.lower.tensors.BlockSparseTensors`, under its names."""

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_idx: Tensor
    mask_tile_id: Tensor
    dq_write_order: Tensor | None
    dq_write_order_full: Tensor | None


def named(counts: Tensor, lists: Tensor) -> PaddedLists:
    """Counts int32 [2, ...] and lists int32 [3 or 5, ...], in the order of the kernels."""
    mask_idx, full_idx, mask_tile, *orders = lists.unbind(0)
    mask_order, full_order = orders or (None, None)
    return PaddedLists(
        mask_block_cnt=counts[0],
        mask_block_idx=mask_idx,
        full_block_cnt=counts[1],
        full_block_idx=full_idx,
        mask_tile_id=mask_tile,
        dq_write_order=mask_order,
        dq_write_order_full=full_order,
    )


def padded(plan: BlockLists, width: int, *, spt: bool | None = None) -> PaddedLists:
    """Padded lists of every (batch, head, row).

    Args:
        plan: a device plan.
        width: of the lists; blocks beyond it are dropped, with status bit 2.
        spt: of a TransposedPlan: None for no write order, else whether it descends.
    """
    with on_device(plan.col):
        return _padded(plan, width, spt)


def _padded(plan: BlockLists, width: int, spt: bool | None) -> PaddedLists:
    from maskplan.device.padded_triton import padded_kernel

    rows = plan.axes.rows
    shape = (plan.batch, plan.heads, rows)
    with_order = spt is not None
    counts = torch.empty(2, *shape, dtype=torch.int32, device=plan.device)
    lists = torch.empty(
        5 if with_order else 3, *shape, width, dtype=torch.int32, device=plan.device
    )
    turned = None
    if with_order:
        own = turned_bits(ranks(plan).listed, plan.num_patterns, rows, plan.axes.cols)
        turned = (own, *counted(own))
    status = plan.status if plan.status is not None else new_status(plan.device)
    order = 0 if spt is None else 1 + spt
    if runs(plan.col):
        pad_lists(
            plan.row_ptr, plan.col, plan.tile_id, plan.pattern_id, counts, lists, turned, status,
            rows=rows, cols=plan.axes.cols, order=order,
        )  # fmt: skip
    else:
        bits, before, lengths = (counts, counts, counts) if turned is None else turned
        padded_kernel[(plan.batch * plan.heads * rows,)](
            plan.row_ptr, plan.col, plan.col if plan.tile_id is None else plan.tile_id,
            plan.pattern_id, counts, lists, bits, before, lengths, rows, plan.axes.cols,
            1 if turned is None else bits.shape[1], width, status,
            TILES=plan.tile_id is not None, ORDER=order, BLOCK=power_of_two(width, 32, _BLOCK),
            num_warps=1,
        )  # fmt: skip
    return named(counts, lists)
