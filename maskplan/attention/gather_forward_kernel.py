"""The CPU forward of tiles of queries that gather the keys of one list."""

import numpy as np

from maskplan.attention.block_kernel import SCORE_STRIDE, TILE
from maskplan.attention.forward_kernel import attend, finish_row, weigh
from maskplan.attention.gather_kernel import (
    FEW,
    any_bad,
    kv_unit,
    line_of,
    no_bits,
    parts_of,
    place_of,
    row_at,
    score_few,
    stat_at,
    take_bits,
    take_columns,
    take_queries,
)
from maskplan.attention.indexed_kernel import sum_rows, take_panels
from maskplan.attention.operands import Panels, Rows
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def attend_few(q, rows, k, v, bases, keys, first, count, scores, state, acc, scale):
    """One step of the online softmax for a few rows, see NOTE [Few rows]."""
    width = 2 * VECTOR_BYTES // scores.itemsize
    factor = score_few(q, rows, k, bases[0], keys, first, count, scores, scale)
    weigh(scores, rows, (count + width - 1) // width * width, factor, state, acc)
    for r in range(rows):
        sum_rows(
            scores, r * SCORE_STRIDE, v.data, bases[1], v.token, keys, first, count, v.features,
            acc.data, r * acc.stride,
        )  # fmt: skip


@kernel
def gather_forward(first, last, gathers, q, k, v, bad, out, lse, scale):
    """Tasks [first, last), see `place_of`.

    Args:
        first, last: tasks.
        gathers: `Gathers`.
        q, k, v: `Tokens`.
        bad: uint8 [B * HK * SK], 1 where a value holds NaN or infinity; read where there are bits.
        out: `Tokens`, written.
        lse: [B * HQ * SQ], natural log, written.
        scale: factor of the scores.
    """
    data = q.data
    width = 2 * VECTOR_BYTES // data.itemsize
    value_panels = (out.features + width - 1) // width
    scores = np.zeros(TILE * SCORE_STRIDE, data.dtype)
    acc = Rows(np.zeros(TILE * value_panels * width, data.dtype), 0, value_panels * width)
    state = (np.zeros(TILE, data.dtype), np.zeros(TILE, data.dtype))
    near_q = Rows(np.zeros(TILE * q.features, data.dtype), 0, q.features)
    near = np.zeros(TILE * q.features, data.dtype)
    columns = Panels(np.zeros(TILE * q.features, data.dtype), 0, q.features * width)
    values = Panels(np.zeros(TILE * value_panels * width, data.dtype), 0, TILE * width)
    bits, masked = no_bits(), gathers.bits.size > 0
    for task in range(first, last):
        unit, tile, top, rows = place_of(task, gathers, parts_of(gathers))
        if rows <= 0:
            continue
        batch, kv_head = kv_unit(gathers, unit)
        bases = (batch * k.batch + kv_head * k.head, batch * v.batch + kv_head * v.head)
        bad_at = (batch * (gathers.heads // gathers.group) + kv_head) * gathers.seqlen_k
        take_queries(q, gathers, unit, tile, top, rows, near_q)
        state[0][:rows] = -np.inf
        state[1][:rows] = 0
        acc.data[: rows * acc.stride] = 0
        line = line_of(gathers, unit, tile)
        start = gathers.start[line]
        for done in range(0, gathers.count[line], TILE):
            at, count = start + done, min(TILE, gathers.count[line] - done)
            if rows <= FEW and not masked:
                attend_few(
                    near_q, rows, k, v, bases, gathers.keys, at, count, scores, state, acc, scale
                )
                continue
            take_columns(k, bases[0], gathers.keys, at, count, near, columns.data)
            take_panels(
                v.data, bases[1], v.token, gathers.keys, at, count, v.features, values.data,
                values.step,
            )  # fmt: skip
            unsafe = False
            if masked:
                take_bits(gathers, line, top, rows, done, bits)
                unsafe = any_bad(bad, bad_at, gathers.keys, at, count)
            attend(
                near_q, columns, values, rows, count, q.features, bits, masked, unsafe, scores,
                state, acc, scale,
            )  # fmt: skip
        for r in range(rows):
            finish_row(
                r, state, acc, out, row_at(out, gathers, unit, tile, top + r), lse,
                stat_at(gathers, unit, tile, top + r),
            )  # fmt: skip
