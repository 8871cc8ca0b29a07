"""The CPU backward of tiles of queries that gather the keys of one list.

It owns queries, as `loop_k` does: one task is a run of tiles under one KV head, and dK and dV are
added to buffers of the task's stripe.
"""

import numpy as np

from maskplan.attention.block_kernel import SCORE_STRIDE, TILE, put_numbers, put_row
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
from maskplan.attention.gradient_kernel import QuerySide, attend_grad, scratch
from maskplan.attention.indexed_kernel import (
    dot_rows,
    give_rows,
    spread_rows,
    sum_rows,
    take_panels,
)
from maskplan.attention.loop_q_kernel import key_side
from maskplan.attention.operands import Panels, Rows
from maskplan.attention.simd_kernel import row_exp2, row_softmax_grad
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def few_grad(query, rows, k, v, bases, keys, first, count, dk, dv, work, scale):
    """As `attend_grad` for a few rows and keys where they lie, see NOTE [Few rows].

    Args:
        query: `QuerySide`.
        rows: how many.
        k, v: `Tokens`.
        bases: where token 0 of their KV head is, in each.
        keys, first, count: its tokens are keys[first : first + count].
        dk, dv: `Rows` of the KV head's tokens, added to.
        work: (weights, grads).
        scale: factor of the scores.
    """
    weights, grads = work
    width = 2 * VECTOR_BYTES // weights.itemsize
    span = (count + width - 1) // width * width
    factor = score_few(query.q, rows, k, bases[0], keys, first, count, weights, scale)
    for r in range(rows):
        at, q_at, dout_at = r * SCORE_STRIDE, r * query.q.stride, r * query.dout.stride
        dot_rows(
            query.dout.data, dout_at, v.data, bases[1], v.token, keys, first, count, v.features,
            grads, at,
        )  # fmt: skip
        if query.lse[r] == -np.inf:
            weights[at : at + span] = weights.dtype.type(0)
        else:
            row_exp2(weights, at, span, factor, query.lse[r])
        row_softmax_grad(weights, at, grads, at, span, query.delta[r], weights.dtype.type(scale))
        sum_rows(
            grads, at, k.data, bases[0], k.token, keys, first, count, k.features, query.dq.data,
            r * query.dq.stride,
        )  # fmt: skip
        spread_rows(
            grads, at, query.q.data, q_at, dk.data, dk.start, dk.stride, keys, first, count,
            k.features,
        )  # fmt: skip
        spread_rows(
            weights, at, query.dout.data, dout_at, dv.data, dv.start, dv.stride, keys, first,
            count, v.features,
        )  # fmt: skip


@kernel
def many_grad(
    query, rows, k, v, bases, keys, first, count, dk, dv, work, scale, near, masked, bits, unsafe
):
    """As `attend_grad`, with the keys packed next to each other and their gradients scattered."""
    key, k_rows, v_rows = near
    take_columns(k, bases[0], keys, first, count, k_rows, key.k_columns.data)
    take_columns(v, bases[1], keys, first, count, v_rows, key.v_columns.data)
    take_panels(
        k.data, bases[0], k.token, keys, first, count, k.features, key.k_panels.data,
        key.k_panels.step,
    )  # fmt: skip
    key.dk.data[: count * key.dk.stride] = 0
    key.dv.data[: count * key.dv.stride] = 0
    attend_grad(
        query, key, rows, count, (k.features, v.features), bits, masked, unsafe, work[0], work[1],
        scale,
    )  # fmt: skip
    give_rows(
        dk.data, dk.start, dk.stride, keys, first, count, k.features, key.dk.data, 0,
        key.dk.stride,
    )  # fmt: skip
    give_rows(
        dv.data, dv.start, dv.stride, keys, first, count, v.features, key.dv.data, 0,
        key.dv.stride,
    )  # fmt: skip


@kernel
def gather_backward(first, last, runs, gathers, q, k, v, dout, stats, bad, dq, dk, dv, scale):
    """Runs [first, last).

    Args:
        first, last: places in `runs`.
        runs: int64 [n, 4]: KV unit b * HK + h, stripe, first tile, end of tiles.
        gathers: `Gathers`.
        q, k, v, dout: `Tokens`.
        stats: (lse as an exponent of 2, delta), each [B * HQ * SQ].
        bad: (uint8 [B * HQ * SQ] of q or dout, [B * HK * SK] of k), 1 for NaN or infinity; read
            where there are bits.
        dq: `Tokens`, written.
        dk, dv: `Rows` [stripes, B * HK * SK], whole panels wide, added to.
        scale: factor of the scores.
    """
    dtype = q.data.dtype
    width = 2 * VECTOR_BYTES // q.data.itemsize
    near = (
        key_side((q.features, v.features), q.data),
        np.zeros(TILE * k.features, dtype),
        np.zeros(TILE * v.features, dtype),
    )
    work = (np.zeros(TILE * SCORE_STRIDE, dtype), np.zeros(TILE * SCORE_STRIDE, dtype))
    grad = scratch(TILE, q.features, q.data)
    near_q = Rows(np.zeros(TILE * q.features, dtype), 0, q.features)
    near_dout = Rows(np.zeros(TILE * v.features, dtype), 0, v.features)
    q_panels = Panels(np.zeros(TILE * grad.stride, dtype), 0, TILE * width)
    dout_panels = Panels(np.zeros(TILE * dv.stride, dtype), 0, TILE * width)
    lse, delta = np.zeros(TILE, dtype), np.zeros(TILE, dtype)
    bits, masked = no_bits(), gathers.bits.size > 0
    parts, packs = parts_of(gathers), gathers.group // gathers.pack
    tokens_k = gathers.chosen.size // packs * gathers.seqlen_k
    query = QuerySide(near_q, near_dout, q_panels, dout_panels, lse, delta, 0, grad)
    for place in range(first, last):
        store, stripe = runs[place, 0], runs[place, 1]
        first_k = stripe * tokens_k + store * gathers.seqlen_k
        my_dk = Rows(dk.data, dk.start + first_k * dk.stride, dk.stride)
        my_dv = Rows(dv.data, dv.start + first_k * dv.stride, dv.stride)
        count_tiles = (runs[place, 3] - runs[place, 2]) * parts
        for number in range(packs * count_tiles):
            unit = store * packs + number // count_tiles
            task = (unit * gathers.tiles + runs[place, 2]) * parts + number % count_tiles
            _, tile, top, rows = place_of(task, gathers, parts)
            if rows <= 0:
                continue
            batch, kv_head = kv_unit(gathers, unit)
            bases = (batch * k.batch + kv_head * k.head, batch * v.batch + kv_head * v.head)
            take_queries(q, gathers, unit, tile, top, rows, near_q)
            take_queries(dout, gathers, unit, tile, top, rows, near_dout)
            line = line_of(gathers, unit, tile)
            few = rows <= FEW and not masked
            bad_query = False
            for r in range(rows):
                at = stat_at(gathers, unit, tile, top + r)
                lse[r], delta[r] = stats[0][at], stats[1][at]
                if not few:
                    put_row(
                        near_q.data,
                        r * near_q.stride,
                        q.features,
                        q_panels.data,
                        0,
                        q_panels.step,
                        r,
                    )
                    put_row(
                        near_dout.data,
                        r * near_dout.stride,
                        v.features,
                        dout_panels.data,
                        0,
                        dout_panels.step,
                        r,
                    )
                if masked:
                    bad_query |= bad[0][at] != 0
            grad.data[: rows * grad.stride] = 0
            for done in range(0, gathers.count[line], TILE):
                at, count = gathers.start[line] + done, min(TILE, gathers.count[line] - done)
                if few:
                    few_grad(
                        query, rows, k, v, bases, gathers.keys, at, count, my_dk, my_dv, work,
                        scale,
                    )  # fmt: skip
                    continue
                unsafe = bad_query
                if masked:
                    take_bits(gathers, line, top, rows, done, bits)
                    unsafe |= any_bad(bad[1], store * gathers.seqlen_k, gathers.keys, at, count)
                many_grad(
                    query, rows, k, v, bases, gathers.keys, at, count, my_dk, my_dv, work,
                    scale, near, masked, bits, unsafe,
                )  # fmt: skip
            for r in range(rows):
                put_numbers(
                    grad.data,
                    r * grad.stride,
                    q.features,
                    dq.data,
                    row_at(dq, gathers, unit, tile, top + r),
                )
