"""What both directions of the CPU engine do with tiles of queries that gather their keys.

NOTE [Few rows]: keys that are gathered for many rows are first packed into panels, and products run
at the rate of dense ones. For a query or two that costs more than the products themselves, so each
key is read where it lies: a dot product for its score, and a row added for its value.
"""

import numpy as np

from maskplan.attention.block_kernel import (
    LOG2E,
    SCORE_STRIDE,
    TILE,
    put_columns,
    put_numbers,
    squares,
)
from maskplan.attention.indexed_kernel import dot_rows, take_rows
from maskplan.attention.operands import Rows
from maskplan.attention.simd_kernel import row_scale
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel

FEW = 3  # rows of a tile that read keys where they lie


@kernel
def place_of(task, gathers, parts):
    """(unit, tile, first row, rows) of task (unit * tiles + tile) * parts + part of TILE rows."""
    part, tile = task % parts, task // parts % gathers.tiles
    tokens = min(gathers.tokens, gathers.seqlen_q - tile * gathers.tokens)
    top = part * TILE
    return task // parts // gathers.tiles, tile, top, min(TILE, tokens * gathers.pack - top)


@kernel
def parts_of(gathers):
    """Parts of at most TILE rows that a tile is cut into."""
    return (gathers.tokens * gathers.pack + TILE - 1) // TILE


@kernel
def row_at(x, gathers, unit, tile, row):
    """Where row `row` of a unit's tile begins in x, `Tokens` [B, SQ, HQ, F]."""
    packs = gathers.heads // gathers.pack
    token = tile * gathers.tokens + row // gathers.pack
    head = unit % packs * gathers.pack + row % gathers.pack
    return unit // packs * x.batch + token * x.token + head * x.head


@kernel
def stat_at(gathers, unit, tile, row):
    """Where row `row` of a unit's tile is in an array [B, HQ, SQ]."""
    packs = gathers.heads // gathers.pack
    token = tile * gathers.tokens + row // gathers.pack
    head = unit % packs * gathers.pack + row % gathers.pack
    return (unit // packs * gathers.heads + head) * gathers.seqlen_q + token


@kernel
def kv_unit(gathers, unit):
    """(batch, KV head) that a unit reads."""
    packs = gathers.heads // gathers.pack
    return unit // packs, unit % packs * gathers.pack // gathers.group


@kernel
def take_bits(gathers, line, top, rows, first, bits):
    """The bits of TILE entries of list `line`, from entry `first` on, for rows from `top` on."""
    for r in range(rows):
        token, head = (top + r) // gathers.pack, (top + r) % gathers.pack
        own = token * gathers.per_token + (head if gathers.per_token > 1 else 0)
        at = (line * gathers.tokens * gathers.per_token + own) * gathers.words
        for w in range(TILE // 32):
            word = first // 32 + w
            bits.data[r * (TILE // 32) + w] = gathers.bits[at + word] if word < gathers.words else 0


@kernel
def any_bad(bad, base, keys, first, count):
    """Whether one of keys[first : first + count] is marked in `bad`, from element `base` on."""
    found = np.uint8(0)
    for c in range(first, first + count):
        found |= bad[base + keys[c]]
    return found != 0


@kernel
def take_columns(x, base, keys, first, count, near, columns):
    """Pack tokens keys[first : first + count] of x as the columns of panels, by way of `near`."""
    take_rows(x.data, base, x.token, keys, first, count, x.features, near, 0, x.features)
    # Whole squares, of which columns past `count` are masked by their place.
    put_columns(near, 0, x.features, squares(count), x.features, columns, 0)


@kernel
def score_few(q, rows, k, base, keys, first, count, scores, scale):
    """As `block_kernel.score`, of a few rows with keys where they lie, none of them masked."""
    width = 2 * VECTOR_BYTES // scores.itemsize
    span = (count + width - 1) // width * width
    gone = scores.dtype.type(-np.inf)
    for r in range(rows):
        dot_rows(
            q.data, q.start + r * q.stride, k.data, base, k.token, keys, first, count, k.features,
            scores, r * SCORE_STRIDE,
        )  # fmt: skip
    for r in range(rows):
        if scale <= 0:
            row_scale(scores, r * SCORE_STRIDE, span, scale)
        for c in range(count, span):
            scores[r * SCORE_STRIDE + c] = gone
    factor = scores.dtype.type(1) if scale <= 0 else scale
    return factor * scores.dtype.type(LOG2E)


@kernel
def take_queries(x, gathers, unit, tile, top, rows, near):
    """Rows of a unit's tile copied next to each other into `near`, a `Rows`."""
    for r in range(rows):
        at = row_at(x, gathers, unit, tile, top + r)
        put_numbers(x.data, at, x.features, near.data, r * near.stride)


@kernel
def line_of(gathers, unit, tile):
    """The number of a unit's tile among all lists."""
    return np.int64(gathers.chosen[unit]) * gathers.tiles + tile


@kernel
def no_bits():
    """Room for the bits of TILE rows and TILE keys."""
    return Rows(np.zeros(TILE * TILE // 32, np.int32), 0, TILE // 32)
