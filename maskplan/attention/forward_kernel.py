"""The CPU forward: one task is up to TILE queries of one head, walked over their key blocks."""

import math

import numpy as np

from maskplan.attention.block_kernel import (
    SCORE_STRIDE,
    TILE,
    product_add_kept,
    score,
    tile_bits,
)
from maskplan.attention.operands import Panels, Rows
from maskplan.attention.simd_kernel import product_add, row_exp2, row_max, row_scale
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def attend(q, keys, values, rows, count, features, bits, masked, unsafe, scores, state, out, scale):
    """One step of the online softmax: `count` keys added to the running (peak, total, out)."""
    width = 2 * VECTOR_BYTES // scores.itemsize
    factor = score(q, keys, rows, count, features, scores, bits, masked, scale)
    weigh(scores, rows, (count + width - 1) // width * width, factor, state, out)
    panels = out.stride // width
    if masked and unsafe:
        product_add_kept(scores, SCORE_STRIDE, 1, values, out, rows, panels, count, bits, False)
    else:
        product_add(
            scores, 0, SCORE_STRIDE, 1, values.data, values.start, values.step,
            out.data, out.start, out.stride, rows, panels, count,
        )  # fmt: skip


@kernel
def weigh(scores, rows, span, factor, state, out):
    """Turn scores into weights under the running (peak, total), and scale `out` to the new peak."""
    peak, total = state
    for r in range(rows):
        at = r * SCORE_STRIDE
        top = max(peak[r], row_max(scores, at, span) * factor)
        # A row that has seen no key yet stays at -inf; its exponents are taken from 0.
        base = top if top > -np.inf else scores.dtype.type(0)
        if top > peak[r]:
            if peak[r] > -np.inf:
                shrink = scores.dtype.type(np.exp2(peak[r] - top))
                total[r] *= shrink
                row_scale(out.data, out.start + r * out.stride, out.stride, shrink)
            peak[r] = top
        total[r] += row_exp2(scores, at, span, factor, base)


@kernel
def finish(rows, state, acc, out, out_at, lse, lse_at):
    """Store acc / total and the log-sum-exp of rows that are neighbours, see `finish_row`."""
    for r in range(rows):
        finish_row(r, state, acc, out, out_at + r * out.token, lse, lse_at + r)


@kernel
def finish_row(r, state, acc, out, out_at, lse, lse_at):
    """Store acc / total and the log-sum-exp of row r; if it saw no key these are 0 and -inf."""
    peak, total = state
    if total[r] == 0:
        lse[lse_at] = -np.inf
        for f in range(out.features):
            out.data[out_at + f] = 0
        return
    lse[lse_at] = (peak[r] + np.log2(total[r])) * math.log(2)
    inverse = 1 / total[r]
    for f in range(out.features):
        out.data[out_at + f] = acc.data[r * acc.stride + f] * inverse


@kernel
def forward_blocks(first, last, lists, q, keys, values, bad, out, lse, scale):
    """Tasks [first, last) over packed key blocks.

    Args:
        first, last: a task is (unit * M + Q block) * tiles per block + tile in block, where unit
            is b * HQ + h.
        lists: `Lists` of the queries.
        q: `Tokens`.
        keys: `Panels` [B * HK, N, panels of bk, D, width].
        values: `Panels` [B * HK, N, panels of DV, bk, width].
        bad: uint8 [B * HK * N], 1 where a block of values holds NaN or infinity.
        out: `Tokens`, written.
        lse: [B * HQ * SQ], natural log, written.
        scale: factor of the scores.
    """
    data = q.data
    width = 2 * VECTOR_BYTES // data.itemsize
    key_panels = (lists.block_k + width - 1) // width
    value_panels = (out.features + width - 1) // width
    blocks = (lists.seqlen_k + lists.block_k - 1) // lists.block_k
    parts = (lists.block_q + TILE - 1) // TILE
    scores = np.zeros(TILE * SCORE_STRIDE, data.dtype)
    acc = Rows(np.zeros(TILE * value_panels * width, data.dtype), 0, value_panels * width)
    state = (np.zeros(TILE, data.dtype), np.zeros(TILE, data.dtype))
    for task in range(first, last):
        top = task % parts * TILE
        block = task // parts % lists.rows
        unit = task // parts // lists.rows
        batch, head = unit // lists.heads, unit % lists.heads
        store = batch * (lists.heads // lists.group) + head // lists.group
        query = block * lists.block_q + top
        rows = min(TILE, min(lists.block_q - top, lists.seqlen_q - query))
        if rows <= 0:
            continue
        q_rows = Rows(data, batch * q.batch + head * q.head + query * q.token, q.token)
        state[0][:] = -np.inf
        state[1][:] = 0
        acc.data[:] = 0
        line = np.int64(lists.pattern[unit]) * lists.rows + block
        for entry in range(lists.row_ptr[line], lists.row_ptr[line + 1]):
            col = np.int64(lists.col[entry])
            tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
            size = min(lists.block_k, lists.seqlen_k - col * lists.block_k)
            at = store * blocks + col
            for left in range(0, size, TILE):
                attend(
                    q_rows,
                    Panels(
                        keys.data,
                        (at * key_panels + left // width) * q.features * width,
                        q.features * width,
                    ),
                    Panels(
                        values.data,
                        (at * value_panels * lists.block_k + left) * width,
                        lists.block_k * width,
                    ),
                    rows, min(TILE, size - left), q.features, tile_bits(lists, tile, top, left),
                    tile >= 0, bad[at] != 0, scores, state, acc, scale,
                )  # fmt: skip
        out_at = batch * out.batch + head * out.head + query * out.token
        finish(rows, state, acc, out, out_at, lse, unit * lists.seqlen_q + query)
