"""Plans read off dense rows, one Q block at a time: memory for the rows of one Q block only."""

from typing import Any

import numpy as np
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.geometry import WORD_BITS, Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance


class DenseRows:
    """Collects Q blocks in order, patterns outermost, and makes their plan.

    Fill `bits`, then call `end_block`; when all are in, call `plan`.

    Attributes:
        bits: uint8 view [bq, bytes] of one Q block's keep-bits, bit i of byte j for key 8 * j + i.
            Cleared after each block.
    """

    def __init__(self, geometry: Geometry) -> None:
        from maskplan.build.band_kernel import new_band
        from maskplan.tile_pool import new_pool

        (bq, bk), words = geometry.block_size, geometry.axes.words
        self.geometry = geometry
        self._band = new_band(geometry.seqlen_k, bk, bq)
        self._tile = np.zeros((bq, words), dtype=np.int32)
        self._pool = new_pool(bq, words, 16)
        self._col = np.empty(1024, dtype=np.int32)
        self._content = np.empty(1024, dtype=np.int32)
        self._total = 0
        self._ends = [0]
        row_bytes = -(-geometry.seqlen_k // WORD_BITS) * 4
        self.bits: np.ndarray[Any, Any] = self._band[0].view(np.uint8).reshape(bq, row_bytes)

    def put(self, keep: Tensor, first_key: int = 0) -> None:
        """Set the bits of bool [rows, keys] from `first_key`, a multiple of 8, for the next block.

        Rows count from the start of the Q block.
        """
        packed = np.packbits(keep.numpy(), axis=1, bitorder="little")
        at = first_key // 8
        self.bits[: packed.shape[0], at : at + packed.shape[1]] = packed

    def end_block(self) -> None:
        """The next Q block is complete."""
        from maskplan.build.band_kernel import emit, mark_all

        bq = self.geometry.block_size[0]
        row = (len(self._ends) - 1) % self.geometry.num_q_blocks
        height = min(bq, self.geometry.seqlen_q - row * bq)
        mark_all(self._band)
        self._pool, self._col, self._content, self._total = emit(
            self._band, height, self._tile, self._pool, self._col, self._content, self._total
        )
        self._ends.append(self._total)

    def plan(self, pattern_id: Tensor, provenance: Provenance) -> Plan:
        """The canonical plan of all blocks put in."""
        return assemble(
            self.geometry,
            pattern_id,
            np.array(self._ends, dtype=np.int64),
            self._col[: self._total].copy(),
            self._content[: self._total].copy(),
            self._pool[0][: self._pool[3][0]],
            provenance,
        )
