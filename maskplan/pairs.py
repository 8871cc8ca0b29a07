"""Counts of pairs: what a plan keeps, and what its listed blocks make a kernel visit."""

from math import inf

import torch
from torch import Tensor

from maskplan.bits import popcount
from maskplan.plan import BlockLists


def _lines(plan: BlockLists) -> Tensor:
    """Row (pattern, block row) of each listed block, int64 [blocks]."""
    return torch.repeat_interleave(
        torch.arange(len(plan.row_ptr) - 1, device=plan.device), plan.row_ptr.diff()
    )


def visited_by_block(plan: BlockLists) -> Tensor:
    """In-range pairs of each listed block, int64 [blocks]."""
    axes = plan.axes
    row = _lines(plan) % max(axes.rows, 1)
    heights = (axes.row_len - row * axes.row_block).clamp(max=axes.row_block)
    widths = (axes.col_len - plan.col.long() * axes.col_block).clamp(max=axes.col_block)
    return heights * widths


def kept_by_block(plan: BlockLists) -> Tensor:
    """Kept pairs of each listed block, int64 [blocks]."""
    visited = visited_by_block(plan)
    if plan.tile_id is None:
        return visited
    counts = popcount(plan.tiles)
    masked = plan.tile_id >= 0
    visited[masked] = counts[plan.tile_id[masked].long()]
    return visited


def by_pattern(plan: BlockLists, by_block: Tensor) -> Tensor:
    """Sums of an int64 [blocks] over each pattern, int64 [P]."""
    sums = torch.cat([by_block.new_zeros(1), by_block.cumsum(0)])
    rows = plan.axes.rows
    at = plan.row_ptr[:: max(rows, 1)] if rows else plan.row_ptr.new_zeros(plan.num_patterns + 1)
    return sums[at].diff()


def _visited(plan: BlockLists) -> Tensor:
    """In-range pairs of the listed blocks of each pattern, int64 [P]; O(rows).

    A row visits whole blocks but for its last column, and only the last of its list can be that.
    """
    axes = plan.axes
    if axes.rows == 0:
        return plan.row_ptr.new_zeros(plan.num_patterns)
    counts = plan.row_ptr.diff()
    last = plan.col[(plan.row_ptr[1:] - 1).clamp(min=0)] if plan.num_blocks else counts
    ends = (counts > 0) & (last == axes.cols - 1)
    widths = counts * axes.col_block - ends * (axes.cols * axes.col_block - axes.col_len)
    heights = axes.row_len - torch.arange(axes.rows, device=plan.device) * axes.row_block
    by_row = widths.view(-1, axes.rows) * heights.clamp(max=axes.row_block)
    return by_row.sum(dim=1)


def _over_heads(plan: BlockLists, by_pattern: Tensor) -> int:
    """Sum over (batch, heads), in Python's integers: pairs of all heads may pass 64 bits."""
    return sum(by_pattern[plan.pattern_id.long().reshape(-1)].tolist())


def kept_pairs(plan: BlockLists) -> int:
    """Pairs kept, over (batch, heads)."""
    if plan.tile_id is None:
        return visited_pairs(plan)
    return _over_heads(plan, by_pattern(plan, kept_by_block(plan)))


def visited_pairs(plan: BlockLists) -> int:
    """In-range pairs of the listed blocks, over (batch, heads)."""
    return _over_heads(plan, _visited(plan))


def amplification(plan: BlockLists, *, wanted: int | None = None) -> float:
    """Pairs a kernel visits over pairs wanted; 1 where nothing is visited.

    Args:
        plan: forward or transposed lists.
        wanted: pairs wanted; by default those `plan` keeps.
    """
    visited = visited_pairs(plan)
    wanted = kept_pairs(plan) if wanted is None else wanted
    if not visited:
        return 1.0
    return visited / wanted if wanted else inf
