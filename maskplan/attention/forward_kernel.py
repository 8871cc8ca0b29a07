"""The CPU forward: one task is up to TILE queries of one head, walked over their key blocks."""

import math

import numpy as np

from maskplan.attention.block_kernel import (
    SCORE_STRIDE,
    TILE,
    product_add_kept,
    put_columns,
    put_numbers,
    put_row,
    score,
    set_bits,
    squares,
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
    peak, total = state
    factor = score(q, keys, rows, count, features, scores, bits, masked, scale)
    span = (count + width - 1) // width * width
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
    panels = out.stride // width
    if masked and unsafe:
        product_add_kept(scores, SCORE_STRIDE, 1, values, out, rows, panels, count, bits, False)
    else:
        product_add(
            scores, 0, SCORE_STRIDE, 1, values.data, values.start, values.step,
            out.data, out.start, out.stride, rows, panels, count,
        )  # fmt: skip


@kernel
def finish(rows, state, acc, out, out_at, lse, lse_at):
    """Store acc / total and the log-sum-exp; a row that saw no key gives 0 and -inf."""
    peak, total = state
    for r in range(rows):
        at = out_at + r * out.token
        if total[r] == 0:
            lse[lse_at + r] = -np.inf
            for f in range(out.features):
                out.data[at + f] = 0
            continue
        lse[lse_at + r] = (peak[r] + np.log2(total[r])) * math.log(2)
        inverse = 1 / total[r]
        for f in range(out.features):
            out.data[at + f] = acc.data[r * acc.stride + f] * inverse


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


@kernel
def forward_gather(first, last, lists, q, k, v, bad, out, lse, scale):
    """Tasks [first, last) over key blocks too small to be panels: TILE keys are gathered at a time.

    Arguments as in `forward_blocks`, but k and v are `Tokens`.
    """
    data = q.data
    width = 2 * VECTOR_BYTES // data.itemsize
    value_panels = (out.features + width - 1) // width
    blocks = (lists.seqlen_k + lists.block_k - 1) // lists.block_k
    parts = (lists.block_q + TILE - 1) // TILE
    scores = np.zeros(TILE * SCORE_STRIDE, data.dtype)
    acc = Rows(np.zeros(TILE * value_panels * width, data.dtype), 0, value_panels * width)
    state = (np.zeros(TILE, data.dtype), np.zeros(TILE, data.dtype))
    near = np.zeros(TILE * q.features, data.dtype)
    keys = Panels(np.zeros(TILE * q.features, data.dtype), 0, q.features * width)
    values = Panels(np.zeros(TILE * value_panels * width, data.dtype), 0, TILE * width)
    bits = Rows(np.zeros(TILE * TILE // 32, np.int32), 0, TILE // 32)
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
        k_at = batch * k.batch + head // lists.group * k.head
        v_at = batch * v.batch + head // lists.group * v.head
        state[0][:] = -np.inf
        state[1][:] = 0
        acc.data[:] = 0
        count, masked, unsafe = 0, False, False
        bits.data[:] = 0
        line = np.int64(lists.pattern[unit]) * lists.rows + block
        stop = lists.row_ptr[line + 1]
        for entry in range(lists.row_ptr[line], stop):
            col = np.int64(lists.col[entry])
            tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
            size = min(lists.block_k, lists.seqlen_k - col * lists.block_k)
            tile_at = (max(tile, 0) * lists.block_q + top) * lists.words
            for within in range(size):
                token = col * lists.block_k + within
                put_numbers(k.data, k_at + token * k.token, k.features, near, count * k.features)
                put_row(
                    v.data, v_at + token * v.token, v.features, values.data, 0, values.step, count
                )
                if lists.tile_id.size:
                    set_bits(
                        bits.data, 0, lists.tiles, tile_at, rows, lists.words, within, count,
                        tile < 0,
                    )  # fmt: skip
                masked |= tile >= 0
                unsafe |= bad[store * blocks + col] != 0
                count += 1
                if count == TILE or (entry + 1 == stop and within + 1 == size):
                    # Whole squares, of which columns past `count` are masked by their place.
                    put_columns(near, 0, k.features, squares(count), k.features, keys.data, 0)
                    attend(
                        q_rows, keys, values, rows, count, q.features, bits, masked, unsafe,
                        scores, state, acc, scale,
                    )  # fmt: skip
                    count, masked, unsafe = 0, False, False
                    bits.data[:] = 0
        out_at = batch * out.batch + head * out.head + query * out.token
        finish(rows, state, acc, out, out_at, lse, unit * lists.seqlen_q + query)
