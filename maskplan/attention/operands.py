"""What the CPU kernels take: flat arrays with starts and strides, all counted in elements.

Named tuples, because numba passes them by field without a copy. Kernels see every tensor as one
flat array, so that one compiled version serves every layout, broadcast and stride.
"""

from typing import Any, NamedTuple


class Tokens(NamedTuple):
    """A tensor [B, S, H, F] whose features lie next to each other.

    Attributes:
        data: its elements, flat.
        batch, token, head: strides in elements; 0 where it is broadcast.
        features: F.
    """

    data: Any
    batch: int
    token: int
    head: int
    features: int


class Rows(NamedTuple):
    """Rows of numbers: row r starts at data[start + r * stride]."""

    data: Any
    start: int
    stride: int


class Panels(NamedTuple):
    """The right side of a product, in panels of `simd_kernel.panel` columns, row after row.

    Panel p starts at data[start + p * step].
    """

    data: Any
    start: int
    step: int


class Lists(NamedTuple):
    """The lists of a plan, seen from the side that owns a task (queries, or keys).

    Attributes:
        row_ptr, col: CSR over (pattern, block of the owning side); int64 and int32.
        tile_id: int32, -1 full, else the tile; empty when every block is full.
        tiles: int32 words, flat [T, bq, words], in forward orientation on both sides.
        pattern: int32 [B * HQ].
        rows: blocks of the owning side.
        words: 32-bit words in a tile's row.
        seqlen_q, seqlen_k, block_q, block_k: tokens.
        heads, group: HQ, and query heads per KV head.
    """

    row_ptr: Any
    col: Any
    tile_id: Any
    tiles: Any
    pattern: Any
    rows: int
    words: int
    seqlen_q: int
    seqlen_k: int
    block_q: int
    block_k: int
    heads: int
    group: int


class Gathers(NamedTuple):
    """Lists of key tokens, by tile of query tokens: `GatheredLists` as the kernels take them.

    A unit is a (batch, pack), where a pack is `pack` query heads that read the same keys of one KV
    head: rows of a tile are (token, head in pack), heads fastest.

    Attributes:
        start, count: int64 and int32 [lists * tiles]: the keys of a list's tile.
        keys: int32, flat.
        bits: int32 words, flat [lists * tiles, tokens * per_token, words]; empty where every row
            of a tile sees each of its keys.
        chosen: int32 [B * HQ / pack], the list of each unit.
        tokens: query tokens of a tile.
        per_token: rows of bits of a token: 1, or `pack`.
        words: 32-bit words of a row of bits.
        tiles: tiles of a list.
        seqlen_q, seqlen_k: tokens.
        heads, group, pack: HQ, query heads per KV head, and those read together.
    """

    start: Any
    count: Any
    keys: Any
    bits: Any
    chosen: Any
    tokens: int
    per_token: int
    words: int
    tiles: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    group: int
    pack: int
