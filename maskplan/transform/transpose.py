"""Forward lists to LoopQ lists and back."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from maskplan.normal import canonical
from maskplan.plan import BlockLists, Plan, TransposedPlan
from maskplan.threads import run_ranges

_FEWEST_BLOCKS_A_THREAD = 1 << 19  # half a millisecond of work, what a thread costs to start
_FEWEST_TILES_A_THREAD = 64

KindT = TypeVar("KindT", Plan, TransposedPlan)


def transpose_lists(
    row_ptr: Tensor, col: Tensor, rows: int, cols: int, *, sources: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Block lists by column.

    A stable counting sort, so rows ascend in each column whatever the number of threads.

    Args:
        row_ptr: int64 [P * rows + 1].
        col: int32 [blocks].
        rows: block rows of a pattern.
        cols: block columns of a pattern.
        sources: whether to make the third result.

    Returns:
        row_ptr int64 [P * cols + 1], col int32 [blocks], and for each block there the one here that
        it came from, int64 [blocks], or empty.
    """
    from maskplan.transform import transpose_kernel as kernels

    if rows == 0 or cols == 0:
        return row_ptr.new_zeros(cols + 1), col.new_empty(0), row_ptr.new_empty(0)
    patterns = (len(row_ptr) - 1) // rows
    ptr, columns = row_ptr.numpy(), col.numpy()
    new_ptr = np.zeros(patterns * cols + 1, dtype=np.int64)
    new_col = np.empty(len(columns), dtype=np.int32)
    source = np.empty(len(columns) if sources else 0, dtype=np.int64)

    def work(first: int, last: int) -> None:
        kernels.transpose_lists(ptr, columns, rows, cols, first, last, new_ptr, new_col, source)

    smallest = -(-patterns * _FEWEST_BLOCKS_A_THREAD // max(len(columns), 1))
    run_ranges(work, patterns, smallest=smallest)
    return torch.from_numpy(new_ptr), torch.from_numpy(new_col), torch.from_numpy(source)


def transpose_tiles(tiles: Tensor, width: int) -> Tensor:
    """Bit tiles with rows and columns changed over.

    Args:
        tiles: int32 [T, R, ceil(width / 32)].
        width: columns of a tile.

    Returns:
        int32 [T, width, ceil(R / 32)].
    """
    from maskplan.transform import transpose_kernel as kernels

    count, height, _ = tiles.shape
    out = np.empty((count, width, -(-height // 32)), dtype=np.int32)
    source = tiles.numpy()

    def work(first: int, last: int) -> None:
        kernels.transpose_tiles(source, first, last, width, out)

    if count:
        run_ranges(work, count, smallest=_FEWEST_TILES_A_THREAD)
    return torch.from_numpy(out)


def _renumber(tile_id: Tensor, tiles: Tensor) -> tuple[Tensor | None, Tensor]:
    """Tiles in the order the lists first use them, unused ones left out."""
    from maskplan.normal_kernel import number_by_use

    numbers, used = number_by_use(tile_id.numpy(), len(tiles))
    if not len(used):
        return None, tiles[:0]
    return torch.from_numpy(numbers), tiles[torch.from_numpy(used)]


def transpose_plan(plan: Plan) -> TransposedPlan:
    """The pairs of `plan` listed per KV block, bits transposed with them.

    Canonical if `plan` is. O(blocks + tiles' bits). A device plan is transposed on its device, with
    the room it has, without waiting for it.
    """
    return _transposed(plan, TransposedPlan)


def transpose_back(plan: TransposedPlan) -> Plan:
    """The pairs of `plan` listed per Q block; the inverse of `transpose_plan`."""
    return _transposed(plan, Plan)


def _transposed(plan: BlockLists, kind: type[KindT]) -> KindT:
    if plan.status is not None:
        from maskplan.device.lists import transposed

        return transposed(plan, kind)
    if plan.axes.cols == 0:  # lists with no rows hold one pattern, so there must be only one
        plan = canonical(plan)
    size = (plan.axes.rows, plan.axes.cols)
    row_ptr, col, source = transpose_lists(
        plan.row_ptr, plan.col, *size, sources=plan.tile_id is not None
    )
    axes = plan.axes.transposed
    tile_id, tiles = None, plan.tiles.new_empty(0, axes.row_block, axes.words)
    if plan.tile_id is not None:
        tile_id, kept = _renumber(plan.tile_id[source], plan.tiles)
        tiles = transpose_tiles(kept, plan.axes.col_block)
    return kind(
        geometry=plan.geometry,
        pattern_id=plan.pattern_id,
        row_ptr=row_ptr,
        col=col,
        tile_id=tile_id,
        tiles=tiles,
        provenance=plan.provenance,
    )
