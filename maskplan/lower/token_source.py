"""`TileSource`: lists on the CPU, and how the tiles of `TokenTiles` are cut from them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from maskplan.lower.token_tiles import KEYS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShape:
    """How tiles are cut from lists, by (batch, head).

    Attributes:
        own: (b, h, G') of the lists, G' lists of a token in a tile; b and h are 1 where the result
            is broadcast.
        shape: (batch, heads) of the result.
        seqlen_q: SQ.
        seqlen_k: SK.
        tile_rows: packed rows of a tile.
        group: rows of a token.
        policy: what a tile's list is.
    """

    own: tuple[int, int, int]
    shape: tuple[int, int]
    seqlen_q: int
    seqlen_k: int
    tile_rows: int
    group: int
    policy: str

    @property
    def per_tile(self) -> int:
        """Tokens of a tile."""
        return self.tile_rows // self.group

    @property
    def tiles(self) -> int:
        """Tiles of a head."""
        return -(-self.seqlen_q // self.per_tile)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSource(TileShape):
    """Lists on the CPU that tiles are cut from.

    Attributes:
        lists: int [b, h, G', SQ, topk], or of no elements where `plan` is read.
        given: the lists as the caller gave them, [b, h * G', SQ, topk], for errors.
        plan: the arrays of a plan in blocks of (tokens of a tile, 128), see `_read_blocks`.
    """

    lists: Array
    given: Array
    plan: tuple[Any, ...]

    @property
    def geometry(self) -> tuple[int, ...]:
        """As the kernels take it."""
        return (
            self.seqlen_q, self.seqlen_k, self.per_tile, self.own[1], self.tiles,
            int(not self.lists.ndim or not self.lists.shape[0]),
            int(self.policy == "representative"),
        )  # fmt: skip

    def scratch(self) -> tuple[Array, Array, Array]:
        """Rows of bits, touched words and chosen words of one thread."""
        return scratch_of(self.seqlen_k, self.per_tile * self.own[2])


def scratch_of(seqlen_k: int, rows: int) -> tuple[Array, Array, Array]:
    """(rows of bits, touched words, chosen words) for SK keys and `rows` lists, all zero."""
    words = -(-seqlen_k // 32)
    return (
        np.zeros((words, rows), dtype=np.uint32),
        np.zeros(words, dtype=np.uint8),
        np.zeros(words, dtype=np.uint32),
    )


def no_plan(per_tile: int) -> tuple[Any, ...]:
    """The arguments of a plan where lists are read."""
    none = np.empty(0, dtype=np.int32)
    tiles = np.empty((0, per_tile, KEYS // 32), dtype=np.int32)
    return np.empty((0, 0), np.int32), np.empty(0, np.int64), none, none, tiles, 0
