"""Counts of pairs: what a plan keeps, and what its listed blocks make a kernel visit."""

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


def _over_heads(plan: BlockLists, by_block: Tensor) -> int:
    return int(by_pattern(plan, by_block)[plan.pattern_id.long()].sum())


def kept_pairs(plan: BlockLists) -> int:
    """Pairs kept, over (batch, heads)."""
    return _over_heads(plan, kept_by_block(plan))


def visited_pairs(plan: BlockLists) -> int:
    """In-range pairs of the listed blocks, over (batch, heads)."""
    return _over_heads(plan, visited_by_block(plan))


def amplification(plan: BlockLists, *, wanted: int | None = None) -> float:
    """Pairs a kernel visits over pairs wanted; 1 where nothing is wanted or visited.

    Args:
        plan: forward or transposed lists.
        wanted: pairs wanted; by default those `plan` keeps.
    """
    visited = visited_pairs(plan)
    wanted = kept_pairs(plan) if wanted is None else wanted
    return visited / wanted if wanted else 1.0
