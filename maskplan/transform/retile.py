"""Re-tiling, the one engine behind `reblock` and `crop`."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from maskplan.geometry import Axes, Geometry
from maskplan.normal import canonical
from maskplan.plan import BlockLists, Plan
from maskplan.provenance import Provenance

ListsT = TypeVar("ListsT", bound=BlockLists)


def _array(axes: Axes) -> np.ndarray:
    sizes = (axes.rows, axes.row_len, axes.col_len, axes.row_block, axes.col_block)
    return np.array(sizes, dtype=np.int64)


def _spans(old: Axes, origin: int, new: Axes) -> np.ndarray:
    """First and last new column that each old column reaches, int64 [old columns, 2]."""
    start = np.arange(old.cols, dtype=np.int64) * old.col_block - origin
    left, right = np.maximum(start, 0), np.minimum(start + old.col_block, new.col_len)
    first, last = left // new.col_block, (right - 1) // new.col_block
    return np.stack([first, np.where(left < right, last, first - 1)], axis=1)


def retile(
    plan: ListsT,
    geometry: Geometry,
    origin: tuple[int, int],
    *,
    provenance: Provenance | None = None,
) -> ListsT:
    """The pairs of `plan` that lie in a window, in blocks of another size.

    Args:
        plan: forward or transposed lists.
        geometry: lengths of the window and the new block size.
        origin: first query and first key of the window.
        provenance: that of the result.

    Returns:
        A canonical plan of the same type.
    """
    from maskplan.transform import retile_kernel as kernels

    new = geometry.axes if isinstance(plan, Plan) else geometry.axes.transposed
    window = origin if isinstance(plan, Plan) else origin[::-1]
    tile_id = np.empty(0, dtype=np.int32) if plan.tile_id is None else plan.tile_id.numpy()
    # A full block still needs some tile to point at, so that the kernel has one type to pass on.
    tiles = plan.tiles.numpy() if plan.num_tiles else np.zeros((1, 1, 1), dtype=np.int32)
    lists = (plan.row_ptr.numpy(), plan.col.numpy(), _spans(plan.axes, window[1], new))
    frame = (_array(plan.axes), np.array(window, dtype=np.int64), _array(new))
    if plan.axes.rows == 0 or new.rows == 0:
        col, out_id = np.empty(0, np.int32), np.empty(0, np.int32)
        out_tiles = np.empty((0, new.row_block, new.words), np.int32)
        row_ptr = np.zeros(plan.num_patterns * new.rows + 1, dtype=np.int64)
    else:
        row_ptr, most = kernels.count_entries(*lists, *frame)
        arrays = (*lists, tile_id, tiles, *frame, row_ptr, most)
        col, out_id, out_tiles = kernels.retile(*arrays)
    return canonical(
        replace(
            plan,
            geometry=geometry,
            row_ptr=torch.from_numpy(row_ptr),
            col=torch.from_numpy(col),
            tile_id=torch.from_numpy(out_id),
            tiles=torch.from_numpy(out_tiles),
            provenance=provenance,
        )
    )
