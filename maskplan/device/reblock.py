"""Device plans in blocks of other sizes, exact by bits."""

from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from maskplan.device.lists import (
    check_room,
    counted,
    listing,
    on_device,
    power_of_two,
    ranks,
    words_of,
)
from maskplan.device.part_tiles import PartTiles, met
from maskplan.geometry import WORD_BITS, Axes, Geometry
from maskplan.plan import BlockLists, Plan

ListsT = TypeVar("ListsT", bound=BlockLists)


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


def recut(plan: ListsT, geometry: Geometry, *, superset: bool) -> ListsT:
    """The pairs of a device plan in blocks of another size.

    Args:
        plan: forward or transposed lists.
        geometry: with the new block size.
        superset: every listed block becomes full.

    Raises:
        PlanError: if it could have more blocks than 32-bit numbers count.
    """
    new = geometry.axes if isinstance(plan, Plan) else geometry.axes.transposed
    if plan.axes.rows == 0 or plan.axes.cols == 0:
        return _without_blocks(plan, geometry, new)
    with on_device(plan.col):
        return _Recut(plan, new).plan(geometry, superset=superset)


def _without_blocks(plan: ListsT, geometry: Geometry, new: Axes) -> ListsT:
    lines = plan.num_patterns * new.rows
    return replace(
        plan,
        geometry=geometry,
        row_ptr=torch.zeros(lines + 1, dtype=torch.int64, device=plan.device),
        tile_id=None,
        tiles=torch.empty(0, new.row_block, new.words, dtype=torch.int32, device=plan.device),
    )


class _Recut(Generic[ListsT]):
    """A device plan, and the axes it gets."""

    def __init__(self, plan: ListsT, new: Axes) -> None:
        self.lists, self.old, self.new = plan, plan.axes, new
        self.ranks = ranks(plan, full=True)

    def plan(self, geometry: Geometry, *, superset: bool) -> ListsT:
        """With new lists and tiles."""
        plan, old, new = self.lists, self.old, self.new
        assert plan.status is not None
        listed, full, counts = self._blocks()
        parts = met(new.row_block, old.row_block) * met(new.col_block, old.col_block)
        capacity = check_room(min(len(plan.col) * parts, len(listed) * new.cols), "reblock")
        kind = 0 if superset or self._stays_whole() else 2
        row_ptr, col, tile_id = listing(
            listed, full, counts, new.cols, capacity, plan.status, tiles=kind
        )
        tiles = torch.empty(0, new.row_block, new.words, dtype=torch.int32, device=plan.device)
        if tile_id is not None:
            tiles = self._tiles(row_ptr, col, tile_id)
        return replace(
            plan, geometry=geometry, row_ptr=row_ptr, col=col, tile_id=tile_id, tiles=tiles
        )

    def _stays_whole(self) -> bool:
        """Whether every new block is full: a piece of a full one."""
        old, new = self.old, self.new
        divides = old.row_block % new.row_block == 0 and old.col_block % new.col_block == 0
        return divides and self.lists.tile_id is None

    def _tiles(self, row_ptr: Tensor, col: Tensor, tile_id: Tensor) -> Tensor:
        """The tiles of new lists, whose `tile_id` it may write."""
        from maskplan.device.reblock_triton import tiles_kernel

        old, new = self.old, self.new
        few = PartTiles(old, new)
        if self.lists.tile_id is None and few.count is not None and few.count < len(col):
            return few.write(row_ptr, col, tile_id, self.ranks.listed)
        tiles = torch.empty(
            len(col), new.row_block, new.words, dtype=torch.int32, device=col.device
        )
        tiles_kernel[(len(row_ptr) - 1, 4)](
            row_ptr, col, tile_id, tiles, *self._bits(tiles), old.rows, old.cols,
            self.ranks.listed.shape[1], new.rows, *self._sizes(), **self._variant(),
        )  # fmt: skip
        return tiles

    def _blocks(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """(listed, full, blocks a line) of the new blocks."""
        old, new, patterns = self.old, self.new, self.lists.num_patterns
        if new.row_block % old.row_block == 0 and new.col_block % old.col_block == 0:
            factors = (new.row_block // old.row_block, new.col_block // old.col_block)
            return joined_bits(self.ranks.listed, self.ranks.full, old, patterns, *factors)
        from maskplan.device.reblock_triton import cut_kernel

        shape = (2, patterns * new.rows, words_of(new.cols))
        listed, full = torch.empty(shape, dtype=torch.int32, device=self.lists.device)
        cut_kernel[shape[1:]](
            listed, full, self.ranks.listed, self.ranks.full, *self._bits(listed)[1:], old.rows,
            old.cols, self.ranks.listed.shape[1], new.rows, new.cols, *self._sizes(),
            met(old.row_block, new.row_block), met(old.col_block, new.col_block),
            **self._variant(),
        )  # fmt: skip
        return listed, full, counted(listed)[1]

    def _bits(self, unused: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What finds the bits of an old block: listed, before, tile_id, tiles."""
        plan = self.lists
        tile_id, tiles = (unused, unused) if plan.tile_id is None else (plan.tile_id, plan.tiles)
        return self.ranks.listed, self.ranks.before, tile_id, tiles

    def _sizes(self) -> tuple[int, ...]:
        old, new = self.old, self.new
        return (old.row_len, old.col_len, new.row_block, new.col_block, new.words)

    def _variant(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        old, new = self.old, self.new
        by_word = old.col_block % WORD_BITS == 0 and new.col_block % WORD_BITS == 0
        return {
            "ROW": old.row_block,
            "COL": old.col_block,
            "OLD_WORDS": old.words,
            "TILES": self.lists.tile_id is not None,
            "BY_WORD": by_word,
            "CHUNK": power_of_two(new.row_block * new.words, 1, 512 if by_word else 32),
        }
