"""Device plans in larger blocks, exact by bits."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from maskplan.device.lists import listing, on_device, power_of_two, ranks, words_of
from maskplan.errors import UnsupportedError, sentence
from maskplan.geometry import WORD_BITS, Axes, Geometry
from maskplan.plan import BlockLists, Plan

ListsT = TypeVar("ListsT", bound=BlockLists)


def _factors(old: Axes, new: Axes, size: tuple[int, int]) -> tuple[int, int]:
    """(old rows, old columns) of a new block.

    Raises:
        UnsupportedError: if they are not whole numbers.
    """
    down, rest_down = divmod(new.row_block, old.row_block)
    across, rest_across = divmod(new.col_block, old.col_block)
    if rest_down or rest_across:
        raise UnsupportedError(
            sentence(
                what="a device plan joins whole blocks",
                where="reblock",
                got=f"blocks of {new.row_block} x {new.col_block} from "
                f"{old.row_block} x {old.col_block}",
                wanted="multiples of the plan's own sizes",
                remedy=f"plan in smaller blocks, or use plan.cpu().reblock({size})",
            )
        )
    return down, across


def joined_bits(
    listed: Tensor, full: Tensor | None, old: Axes, patterns: int, down: int, across: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(listed, full, blocks a line) of blocks that are down x across old ones."""
    from maskplan.device.reblock_triton import join_kernel

    rows, cols = -(-old.rows // down), -(-old.cols // across)
    words = words_of(cols)
    new = torch.empty(
        1 if full is None else 2, patterns * rows, words, dtype=torch.int32, device=listed.device
    )
    new_full = None if full is None else new[1]
    counts = torch.empty(patterns * rows, dtype=torch.int32, device=listed.device)
    join_kernel[(patterns * rows,)](
        listed, listed if full is None else full, new[0], new[-1], counts,
        old.rows, old.cols, listed.shape[1], max(rows, 1), words, down, across,
        FULL=full is not None, BLOCK_W=power_of_two(words, 1, 32),
    )  # fmt: skip
    return new[0], new_full, counts


def coarsened(plan: ListsT, geometry: Geometry, *, superset: bool) -> ListsT:
    """The pairs of a device plan in blocks that are multiples of its own.

    Args:
        plan: forward or transposed lists.
        geometry: with the new block size.
        superset: every listed block becomes full.

    Raises:
        UnsupportedError: if the new sizes are no multiples.
    """
    new = geometry.axes if isinstance(plan, Plan) else geometry.axes.transposed
    down, across = _factors(plan.axes, new, geometry.block_size)
    if plan.axes.rows == 0 or plan.axes.cols == 0:
        return _without_blocks(plan, geometry, new)
    with on_device(plan.col):
        return _coarsened(plan, geometry, (down, across), superset=superset)


def _without_blocks(plan: ListsT, geometry: Geometry, new: Axes) -> ListsT:
    lines = plan.num_patterns * new.rows
    return replace(
        plan,
        geometry=geometry,
        row_ptr=torch.zeros(lines + 1, dtype=torch.int64, device=plan.device),
        tile_id=None,
        tiles=torch.empty(0, new.row_block, new.words, dtype=torch.int32, device=plan.device),
    )


def _coarsened(
    plan: ListsT, geometry: Geometry, factors: tuple[int, int], *, superset: bool
) -> ListsT:
    from maskplan.device.reblock_triton import joined_tiles_kernel

    old = plan.axes
    new = geometry.axes if isinstance(plan, Plan) else geometry.axes.transposed
    status = plan.status
    assert status is not None
    own = ranks(plan, full=True)
    listed, full, counts = joined_bits(own.listed, own.full, old, plan.num_patterns, *factors)
    capacity = min(len(plan.col), len(listed) * new.cols)
    kind = 0 if superset else 2
    row_ptr, col, tile_id = listing(listed, full, counts, new.cols, capacity, status, tiles=kind)
    room = 0 if superset else capacity
    tiles = torch.empty(room, new.row_block, new.words, dtype=torch.int32, device=plan.device)
    if tile_id is not None:
        has_tiles = plan.tile_id is not None
        chunk = 512 if old.col_block % WORD_BITS == 0 else 32  # by words, or by bits
        joined_tiles_kernel[(len(listed), 4)](
            row_ptr, col, tile_id, tiles, own.listed, own.before,
            plan.tile_id if has_tiles else col, plan.tiles if has_tiles else tiles,
            old.rows, old.cols, own.listed.shape[1], new.rows, old.row_len, old.col_len, *factors,
            ROW=old.row_block, COL=old.col_block, OLD_WORDS=old.words, NEW_WORDS=new.words,
            TILES=has_tiles, CHUNK=power_of_two(new.row_block * new.words, 1, chunk),
        )  # fmt: skip
    return replace(plan, geometry=geometry, row_ptr=row_ptr, col=col, tile_id=tile_id, tiles=tiles)
