"""Tiles of blocks made from whole ones, few for any number of blocks.

NOTE [Tiles of parts]: where all blocks of a plan are full, the bits of a block of another size say
no more than which of the old blocks it lies in are listed. So its tile has a number made of that:
a bit for each of these parts, where the block starts within its first part, and whether it is the
last of its line or column, which the ends of the lengths cut. A tile for each such number is less
than one for each block by orders of magnitude: of 40 heads of 591 x 591 blocks of 128 x 128, cut
and joined to 128 x 96, 96 KiB instead of 27 GiB, which is what room for a tile of every block is.
"""

from math import gcd

import torch
from torch import Tensor

from maskplan.device.lists import power_of_two
from maskplan.geometry import Axes

_MOST_PARTS = 8


def met(new: int, old: int) -> int:
    """New intervals of a length that one old interval meets at most, both laid out from 0."""
    return (new - gcd(new, old) + old - 1) // new + 1


class PartTiles:
    """Tiles of blocks of `new` axes, made from whole blocks of `old` ones.

    Attributes:
        parts: (rows, columns) of old blocks that a new one lies in at most.
        count: how many tiles there are; None where parts are too many.
    """

    def __init__(self, old: Axes, new: Axes) -> None:
        self.old, self.new = old, new
        self.parts = (met(old.row_block, new.row_block), met(old.col_block, new.col_block))
        self._units = (gcd(old.row_block, new.row_block), gcd(old.col_block, new.col_block))
        self._phases = (old.row_block // self._units[0], old.col_block // self._units[1])
        bits = self.parts[0] * self.parts[1]
        kinds = 4 * self._phases[0] * self._phases[1]
        self.count = kinds << bits if bits <= _MOST_PARTS else None

    def write(self, row_ptr: Tensor, col: Tensor, tile_id: Tensor, listed: Tensor) -> Tensor:
        """int32 [count, rows, words]: the tiles; `tile_id` of partial blocks becomes their number.

        Args:
            row_ptr: of the new plan.
            col: see there.
            tile_id: -1 of full blocks, anything from 0 on of partial ones.
            listed: int32 [old lines, words], bits of the old blocks.
        """
        from maskplan.device.part_tiles_triton import number_kernel, part_tiles_kernel

        assert self.count is not None
        old, new = self.old, self.new
        sizes = {
            "ROW": old.row_block,
            "COL": old.col_block,
            "DOWN": self.parts[0],
            "ACROSS": self.parts[1],
        }
        number_kernel[(len(row_ptr) - 1,)](
            row_ptr, col, tile_id, listed, old.rows, listed.shape[1], new.rows, new.cols,
            new.row_block, new.col_block, old.row_len, old.col_len, *self._units, self._phases[1],
            BLOCK=128, num_warps=1, **sizes,
        )  # fmt: skip
        tiles = torch.empty(
            self.count, new.row_block, new.words, dtype=torch.int32, device=col.device
        )
        part_tiles_kernel[(self.count,)](
            tiles, new.row_block, new.col_block, new.words, *self._units, self._phases[1],
            new.row_len - (new.rows - 1) * new.row_block,
            new.col_len - (new.cols - 1) * new.col_block,
            CHUNK=power_of_two(new.row_block * new.words, 1, 64), **sizes,
        )  # fmt: skip
        return tiles
