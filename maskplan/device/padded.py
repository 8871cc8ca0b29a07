"""Padded lists of device plans."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.device.lists import counted, on_device, power_of_two, ranks, turned_bits
from maskplan.device.status import new_status
from maskplan.plan import BlockLists

_BLOCK, _WARPS = 1024, 2  # slots at once, and warps of a list: short chains of loads, many lists


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedLists:
    """Tensors of `maskplan.lower.tensors.BlockSparseTensors`, under its names."""

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_idx: Tensor
    mask_tile_id: Tensor
    dq_write_order: Tensor | None
    dq_write_order_full: Tensor | None


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
    turned, before, lengths, words = counts, counts, counts, 1
    if with_order:
        own = ranks(plan).listed
        turned = turned_bits(own, plan.num_patterns, rows, plan.axes.cols)
        before, lengths = counted(turned)
        words = turned.shape[1]
    status = plan.status if plan.status is not None else new_status(plan.device)
    padded_kernel[(plan.batch * plan.heads * rows,)](
        plan.row_ptr, plan.col, plan.col if plan.tile_id is None else plan.tile_id, plan.pattern_id,
        counts, lists, turned, before, lengths, rows, plan.axes.cols, words, width, status,
        TILES=plan.tile_id is not None, ORDER=0 if spt is None else 1 + spt,
        BLOCK=power_of_two(width, 32, _BLOCK), num_warps=_WARPS,
    )  # fmt: skip
    mask_idx, full_idx, mask_tile, *orders = lists.unbind(0)
    mask_order, full_order = orders if with_order else (None, None)
    return PaddedLists(
        mask_block_cnt=counts[0],
        mask_block_idx=mask_idx,
        full_block_cnt=counts[1],
        full_block_idx=full_idx,
        mask_tile_id=mask_tile,
        dq_write_order=mask_order,
        dq_write_order_full=full_order,
    )
