"""The meaning of a plan: its dense mask, entry by entry. Slow and obvious on purpose."""

import torch
from torch import Tensor

from maskplan.bits import unpack
from maskplan.plan import FULL, BlockLists


def to_dense(plan: BlockLists) -> Tensor:
    """The mask of `plan`, rows by columns of its axes.

    Returns:
        bool [batch, heads, row_len, col_len].
    """
    axes = plan.axes
    dense = torch.zeros(
        plan.num_patterns, axes.row_len, axes.col_len, dtype=torch.bool, device="cpu"
    )
    row_ptr, cols = plan.row_ptr.tolist(), plan.col.tolist()
    tile_ids = [FULL] * len(cols) if plan.tile_id is None else plan.tile_id.tolist()
    for pattern in range(plan.num_patterns):
        for row in range(axes.rows):
            top = row * axes.row_block
            line = pattern * axes.rows + row
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                left = cols[entry] * axes.col_block
                block = dense[pattern, top : top + axes.row_block, left : left + axes.col_block]
                if tile_ids[entry] == FULL:
                    block.fill_(True)
                else:
                    tile = unpack(plan.tiles[tile_ids[entry]], axes.col_block)
                    block |= tile[: block.shape[0], : block.shape[1]]
    return dense[plan.pattern_id.long().cpu()].to(plan.device)
