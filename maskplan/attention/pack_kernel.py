"""Packing whole tensors into panels, and lists seen from the other side."""

import numpy as np

from maskplan.attention.block_kernel import LOG2E, dot, put_columns, put_row
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def pack_columns(first, last, x, heads, seqlen, block, out):
    """Blocks [first, last) of x, over (b, h, block), with tokens as the columns of panels.

    Args:
        x: `Tokens` [B, S, heads, F].
        out: zeros, flat [B * heads, blocks, panels of `block`, F, width].
    """
    width = 2 * VECTOR_BYTES // out.itemsize
    blocks = (seqlen + block - 1) // block
    size = (block + width - 1) // width * width * x.features
    for place in range(first, last):
        unit, start = place // blocks, place % blocks * block
        at = unit // heads * x.batch + unit % heads * x.head + start * x.token
        rows = min(block, seqlen - start)
        put_columns(x.data, at, x.token, rows, x.features, out, place * size)


@kernel
def pack_rows(first, last, x, heads, seqlen, block, out):
    """Blocks [first, last) of x with tokens as the rows of panels over features.

    Args:
        x: `Tokens` [B, S, heads, F].
        out: flat [B * heads, blocks, panels of F, block, width].
    """
    width = 2 * VECTOR_BYTES // out.itemsize
    blocks = (seqlen + block - 1) // block
    size = (x.features + width - 1) // width * width * block
    for place in range(first, last):
        unit, start = place // blocks, place % blocks * block
        at = unit // heads * x.batch + unit % heads * x.head + start * x.token
        for t in range(min(block, seqlen - start)):
            put_row(x.data, at + t * x.token, x.features, out, place * size, block * width, t)


@kernel
def row_stats(first, last, out, dout, lse, dlse, heads, seqlen, exponent, delta):
    """Queries [first, last) of (b, h, query): what the backward needs of each row.

    Args:
        out, dout: `Tokens`.
        lse, dlse: [B * HQ * SQ]; dlse may be empty for zeros.
        exponent: lse as an exponent of 2, written.
        delta: rowsum(out * dout) - dlse, written.
    """
    for row in range(first, last):
        unit, token = row // seqlen, row % seqlen
        batch, head = unit // heads, unit % heads
        at = batch * out.batch + head * out.head + token * out.token
        dout_at = batch * dout.batch + head * dout.head + token * dout.token
        total = lse.dtype.type(0)
        if dlse.size:
            total = -dlse[row]
        delta[row] = total + dot(out.data, at, dout.data, dout_at, out.features)
        exponent[row] = lse[row] * LOG2E


@kernel
def lists_of_keys(row_ptr, col, tile_id, rows, cols):
    """(row_ptr, col, tile_id) of the same entries per (pattern, key block), query blocks ascending.

    `tile_id` keeps naming tiles in forward orientation; it is empty when the argument is.
    """
    patterns = (row_ptr.size - 1) // max(rows, 1)
    other_ptr = np.zeros(patterns * cols + 1, np.int64)
    for line in range(row_ptr.size - 1):
        base = line // rows * cols + 1
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            other_ptr[base + col[entry]] += 1
    for line in range(patterns * cols):
        other_ptr[line + 1] += other_ptr[line]
    filled = other_ptr[:-1].copy()
    other_col = np.empty(col.size, np.int32)
    other_tile = np.empty(tile_id.size, np.int32)
    for line in range(row_ptr.size - 1):
        base = line // rows * cols
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            at = filled[base + col[entry]]
            filled[base + col[entry]] = at + 1
            other_col[at] = line % rows
            if tile_id.size:
                other_tile[at] = tile_id[entry]
    return other_ptr, other_col, other_tile
