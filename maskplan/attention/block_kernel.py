"""Steps of the CPU engine on one tile of scores: packing operands, scores, products under a mask.

A tile has up to `TILE` queries and `TILE` keys. `bits` is a `Rows` over int32 words: bit c % 32 of
word c // 32 in row r keeps pair (r, c); it is read only when `masked`.

NOTE [Non-finite values]: 0 * NaN is NaN, so a product would carry a NaN or infinity from a value
that a query does not select into its sum, although its weight is 0. Scores need no care: pairs that
are not kept are overwritten. Products over a tile in which some pairs are not kept, and whose right
side is not all finite, go pair by pair over the kept ones (`product_add_kept`).
"""

import math

import numpy as np

from maskplan.attention.operands import Rows
from maskplan.attention.simd_kernel import (
    product_set,
    row_copy,
    row_dot,
    row_mask,
    row_scale,
    transpose_square,
)
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel

TILE = 128
# Scores are kept this far apart, so that columns of a tile do not all fall into the same cache set.
SCORE_STRIDE = TILE + 16
LOG2E = math.log2(math.e)


@kernel
def put_column(source, at, features, target, start, position):
    """Store one row of `features` numbers as column `position` of panels with `features` rows."""
    width = 2 * VECTOR_BYTES // target.itemsize
    out = start + (position // width) * features * width + position % width
    for f in range(features):
        target[out + f * width] = source[at + f]


@kernel
def dot(a, a_at, b, b_at, count):
    """Sum of products of `count` numbers."""
    whole = count // (VECTOR_BYTES // a.itemsize) * (VECTOR_BYTES // a.itemsize)
    total = row_dot(a, a_at, b, b_at, whole)
    for i in range(whole, count):
        total += a[a_at + i] * b[b_at + i]
    return total


@kernel
def squares(count):
    """`count` rounded up to whole squares of any dtype's transpose, at most TILE."""
    return (count + 15) // 16 * 16


@kernel
def put_numbers(source, at, count, target, start):
    """Copy `count` numbers."""
    whole = count // (VECTOR_BYTES // target.itemsize) * (VECTOR_BYTES // target.itemsize)
    row_copy(source, at, target, start, whole)
    for i in range(whole, count):
        target[start + i] = source[at + i]


@kernel
def put_columns(source, at, stride, rows, features, target, start):
    """Store `rows` rows of `features` numbers, `stride` apart, as the first columns of panels."""
    width = 2 * VECTOR_BYTES // target.itemsize
    half = width // 2
    whole = features // half * half
    for first in range(0, rows, half):
        if first + half > rows:
            for row in range(first, rows):
                put_column(source, at + row * stride, features, target, start, row)
            continue
        out = start + (first // width) * features * width + first % width
        for f in range(0, whole, half):
            transpose_square(
                source, at + first * stride + f, stride, target, out + f * width, width
            )
        for row in range(first, first + half):
            for f in range(whole, features):
                target[out + f * width + row - first] = source[at + row * stride + f]


@kernel
def put_row(source, at, features, target, start, step, position):
    """Store one row of `features` numbers as row `position` of panels, the last zero-filled."""
    width = 2 * VECTOR_BYTES // target.itemsize
    for first in range(0, features, width):
        out = start + (first // width) * step + position * width
        count = min(width, features - first)
        if count == width:
            row_copy(source, at + first, target, out, width)
            continue
        for f in range(count):
            target[out + f] = source[at + first + f]
        for f in range(count, width):
            target[out + f] = 0


@kernel
def score(q, keys, rows, count, features, scores, bits, masked, scale):
    """Scores of `rows` queries with `count` keys, -inf where a pair is not kept and past `count`.

    Returns:
        The factor that turns them into exponents of 2.
    """
    width = 2 * VECTOR_BYTES // scores.itemsize
    panels = (count + width - 1) // width
    span = panels * width
    gone = scores.dtype.type(-np.inf)
    product_set(
        q.data, q.start, q.stride, 1, keys.data, keys.start, keys.step,
        scores, 0, SCORE_STRIDE, rows, panels, features,
    )  # fmt: skip
    factor = scale
    if scale <= 0:
        # -inf would change sign, or become NaN, if the exponent applied this scale.
        factor = scores.dtype.type(1)
    for r in range(rows):
        at = r * SCORE_STRIDE
        if scale <= 0:
            row_scale(scores, at, span, scale)
        for c in range(count, span):
            scores[at + c] = gone
        if masked:
            row_mask(scores, at, span, bits.data, bits.start + r * bits.stride, gone)
    return factor * scores.dtype.type(LOG2E)


@kernel
def product_add_kept(a, a_row, a_k, right, out, rows, panels, depth, bits, flipped):
    """Add A B to out over kept pairs alone, with NaN or infinity elsewhere left alone.

    Element (i, k) of A is a[i * a_row + k * a_k]; the pair is (i, k), or (k, i) when `flipped`.
    """
    width = 2 * VECTOR_BYTES // a.itemsize
    for i in range(rows):
        for k in range(depth):
            query, key = (k, i) if flipped else (i, k)
            word = bits.data[bits.start + query * bits.stride + key // 32]
            if (word >> np.int32(key % 32)) & 1 == 0:
                continue
            weight = a[i * a_row + k * a_k]
            for p in range(panels):
                source = right.start + p * right.step + k * width
                target = out.start + i * out.stride + p * width
                for f in range(width):
                    out.data[target + f] += weight * right.data[source + f]


@kernel
def tile_bits(lists, tile, first_query, first_key):
    """The bits of a block's tile, from a query and a key (a multiple of 32) of the block on."""
    start = (max(tile, 0) * lists.block_q + first_query) * lists.words + first_key // 32
    return Rows(lists.tiles, start, lists.words)
