"""Forward lists to LoopQ lists and back."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from maskplan.normal import canonical
from maskplan.plan import BlockLists, Plan, TransposedPlan
from maskplan.threads import run_ranges

_FEWEST_BLOCKS_A_THREAD = 1 << 16
_FEWEST_TILES_A_THREAD = 64

KindT = TypeVar("KindT", Plan, TransposedPlan)


def transpose_lists(
    plan: BlockLists, *, sources: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Block lists of `plan` by column.

    A stable counting sort, so rows ascend in each column whatever the number of threads.

    Returns:
        row_ptr int64 [P * cols + 1], col int32 [blocks], tile_id int32 [blocks] or None (numbers of
        the plan's own tiles), and the entry of `plan` that each block came from, int64 [blocks], or
        None unless `sources`.
    """
    from maskplan.transform import transpose_kernel as kernels

    axes, patterns = plan.axes, plan.num_patterns
    row_ptr, col = plan.row_ptr.numpy(), plan.col.numpy()
    none = np.empty(0, dtype=np.int32)
    tile_id = none if plan.tile_id is None else plan.tile_id.numpy()
    new_ptr = np.zeros(patterns * axes.cols + 1, dtype=np.int64)
    new_col = np.empty(len(col), dtype=np.int32)
    new_tile = np.empty(len(tile_id), dtype=np.int32)
    source = np.empty(len(col) if sources else 0, dtype=np.int64)
    size = (axes.rows, axes.cols)

    def count(first: int, last: int) -> None:
        kernels.count_columns(row_ptr, col, *size, first, last, new_ptr)

    def scatter(first: int, last: int) -> None:
        lists = (new_ptr, new_col, new_tile, source)
        kernels.scatter(row_ptr, col, tile_id, *size, first, last, *lists)

    if axes.rows and axes.cols:
        smallest = -(-patterns * _FEWEST_BLOCKS_A_THREAD // max(len(col), 1))
        run_ranges(count, patterns, smallest=smallest)
        np.cumsum(new_ptr, out=new_ptr)
        run_ranges(scatter, patterns, smallest=smallest)
    return (
        torch.from_numpy(new_ptr),
        torch.from_numpy(new_col),
        None if plan.tile_id is None else torch.from_numpy(new_tile),
        torch.from_numpy(source) if sources else None,
    )


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

    Canonical if `plan` is. O(blocks + tiles' bits).
    """
    return _transposed(plan, TransposedPlan)


def transpose_back(plan: TransposedPlan) -> Plan:
    """The pairs of `plan` listed per Q block; the inverse of `transpose_plan`."""
    return _transposed(plan, Plan)


def _transposed(plan: BlockLists, kind: type[KindT]) -> KindT:
    if plan.axes.cols == 0:  # lists with no rows hold one pattern, so there must be only one
        plan = canonical(plan)
    row_ptr, col, tile_id, _ = transpose_lists(plan)
    axes = plan.axes.transposed
    tiles = plan.tiles.new_empty(0, axes.row_block, axes.words)
    if tile_id is not None:
        kept_id, kept = _renumber(tile_id, plan.tiles)
        tile_id, tiles = kept_id, transpose_tiles(kept, plan.axes.col_block)
    return kind(
        geometry=plan.geometry,
        pattern_id=plan.pattern_id,
        row_ptr=row_ptr,
        col=col,
        tile_id=tile_id,
        tiles=tiles,
        provenance=plan.provenance,
    )
