"""The canonical form of a plan, and what stands on it: equality and the digest."""

import hashlib
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from maskplan.plan import BlockLists, require_exact

_DIGEST_VERSION = b"maskplan digest 1"
_ARRAYS = ("pattern_id", "row_ptr", "col", "tile_id", "tiles")

ListsT = TypeVar("ListsT", bound=BlockLists)


def canonical(plan: ListsT) -> ListsT:
    """The normal form of `plan`; see `maskplan.Plan` for what that means.

    Equal patterns and equal tiles are merged, both numbered by first use; empty mask blocks are
    dropped and complete ones become full. O(blocks + distinct tiles' bits).
    """
    from maskplan import normal_kernel as kernels

    require_exact(plan, "canonical")
    axes = plan.axes
    tiles = plan.tiles.numpy()
    row_ptr, col = plan.row_ptr.numpy(), plan.col.numpy()
    order, first_pattern = _used_patterns(plan.pattern_id.numpy())
    # Without tiles every block is full; room for one must not be made by the block size alone.
    if plan.tile_id is None or not plan.num_tiles:
        content = np.empty(0, dtype=np.int32)
        kept = tiles[:0]
    else:
        codes, kept = kernels.distinct_tiles(tiles)
        content = kernels.classify(
            row_ptr,
            col,
            plan.tile_id.numpy(),
            codes,
            kernels.tile_counts(kept),
            np.array([axes.rows, axes.row_len, axes.col_len, axes.row_block, axes.col_block]),
        )
    merged = np.arange(len(order))
    if len(order) > 1:
        codes = kernels.pattern_hashes(row_ptr, col, content, axes.rows, order)
        by_code = np.argsort(codes, kind="stable")
        merged = kernels.merge_patterns(row_ptr, col, content, axes.rows, order, codes, by_code)
    new_ptr, new_col, new_content = kernels.emit(
        row_ptr, col, content, axes.rows, order[merged == np.arange(len(order))]
    )
    tile_id, tiles_used = kernels.number_by_use(new_content, len(kept))
    has_tiles = len(tiles_used) > 0
    numbers = np.cumsum(merged == np.arange(len(order))) - 1
    return replace(
        plan,
        pattern_id=torch.from_numpy(numbers[merged][first_pattern].astype(np.int32)),
        row_ptr=torch.from_numpy(new_ptr),
        col=torch.from_numpy(new_col),
        tile_id=torch.from_numpy(tile_id) if has_tiles else None,
        tiles=torch.from_numpy(_take(kept, tiles_used)),
    )


def _used_patterns(pattern_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Patterns in the order pattern_id first uses them, and for each entry its place there."""
    flat = pattern_id.reshape(-1)
    used, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    by_use = np.argsort(first, kind="stable")
    place = np.empty_like(by_use)
    place[by_use] = np.arange(len(by_use))
    return used[by_use].astype(np.int64), place[inverse].reshape(pattern_id.shape)


def _take(tiles: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """`tiles[numbers]`, without a copy where that changes nothing."""
    if len(numbers) == len(tiles) and np.array_equal(numbers, np.arange(len(tiles))):
        return tiles
    taken: np.ndarray = tiles[numbers]
    return taken


def equal(one: BlockLists, other: BlockLists) -> bool:
    """Whether two plans of one type mean the same over the same geometry and pattern_id shape."""
    if one.geometry != other.geometry or one.pattern_id.shape != other.pattern_id.shape:
        return False
    one, other = canonical(one), canonical(other)
    if (one.tile_id is None) != (other.tile_id is None):
        return False
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in _ARRAYS
        if getattr(one, name) is not None
    )


def digest(plan: BlockLists) -> str:
    """SHA-256 over a version, the type, the geometry and the canonical arrays, little-endian.

    Provenance is left out: two ways of making one plan give one digest.
    """
    plan = canonical(plan)
    state = hashlib.sha256(_DIGEST_VERSION)
    state.update(type(plan).__name__.encode())
    state.update(np.array([plan.seqlen_q, plan.seqlen_k, *plan.block_size], dtype="<i8").tobytes())
    for name in _ARRAYS:
        tensor = getattr(plan, name)
        shape = (-1,) if tensor is None else tuple(tensor.shape)
        state.update(np.array([len(shape), *shape], dtype="<i8").tobytes())
        if tensor is not None:
            array = tensor.numpy()
            state.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
    return state.hexdigest()
