"""The CPU backward that owns keys: one task is a run of key blocks of one KV head.

dK and dV of up to TILE keys stay in cache while the queries that visit them stream past; dQ is
added to a buffer that belongs to the task's stripe (`maskplan.attention.cpu` sums the stripes in
order, so results do not depend on which thread finished first).
"""

import numpy as np

from maskplan.attention.block_kernel import (
    SCORE_STRIDE,
    TILE,
    put_columns,
    put_row,
    tile_bits,
)
from maskplan.attention.gradient_kernel import KeySide, QuerySide, attend_grad, scratch
from maskplan.attention.operands import Panels, Rows
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def key_side(features, like):
    """Room for TILE keys of (D, DV) features and their gradients."""
    width = 2 * VECTOR_BYTES // like.itemsize
    dk, dv = scratch(TILE, features[0], like), scratch(TILE, features[1], like)
    return KeySide(
        Panels(np.zeros(TILE * features[0], like.dtype), 0, features[0] * width),
        Panels(np.zeros(TILE * features[1], like.dtype), 0, features[1] * width),
        Panels(np.zeros(TILE * dk.stride, like.dtype), 0, TILE * width),
        dk,
        dv,
    )


@kernel
def load_keys(key, k, v, k_at, v_at, count):
    """Pack `count` keys and values in, and clear their gradients."""
    put_columns(k.data, k_at, k.token, count, k.features, key.k_columns.data, 0)
    put_columns(v.data, v_at, v.token, count, v.features, key.v_columns.data, 0)
    for t in range(count):
        at = k_at + t * k.token
        put_row(k.data, at, k.features, key.k_panels.data, 0, key.k_panels.step, t)
    key.dk.data[:] = 0
    key.dv.data[:] = 0


@kernel
def store_rows(rows, source, out, at):
    """Copy the first `rows` of `source` to tokens of `out` from element `at` on."""
    for r in range(rows):
        for f in range(out.features):
            out.data[at + r * out.token + f] = source.data[r * source.stride + f]


@kernel
def stream_blocks(
    key, count, unit, block, left, lists, q, dout, panels, stats, bad, dq, work, scale
):
    """Add the gradients of one key tile and every query of head `unit` that visits its block."""
    width = 2 * VECTOR_BYTES // work[0].itemsize
    q_panels, dout_panels = panels
    bad_keys, bad_queries = bad
    blocks = (lists.seqlen_q + lists.block_q - 1) // lists.block_q
    batch, head = unit // lists.heads, unit % lists.heads
    line = np.int64(lists.pattern[unit]) * lists.rows + block
    for entry in range(lists.row_ptr[line], lists.row_ptr[line + 1]):
        col = np.int64(lists.col[entry])
        tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
        at = unit * blocks + col
        size = min(lists.block_q, lists.seqlen_q - col * lists.block_q)
        for top in range(0, size, TILE):
            first = col * lists.block_q + top
            query = QuerySide(
                Rows(q.data, batch * q.batch + head * q.head + first * q.token, q.token),
                Rows(
                    dout.data,
                    batch * dout.batch + head * dout.head + first * dout.token,
                    dout.token,
                ),
                Panels(
                    q_panels,
                    at * dq.stride * lists.block_q + top * width,
                    lists.block_q * width,
                ),
                Panels(
                    dout_panels,
                    at * key.dv.stride * lists.block_q + top * width,
                    lists.block_q * width,
                ),
                stats[0],
                stats[1],
                unit * lists.seqlen_q + first,
                Rows(dq.data, dq.start + (unit * lists.seqlen_q + first) * dq.stride, dq.stride),
            )
            attend_grad(
                query, key, min(TILE, size - top), count, (q.features, dout.features),
                tile_bits(lists, tile, top, left), tile >= 0, bad_keys or bad_queries[at] != 0,
                work[0], work[1], scale,
            )  # fmt: skip


@kernel
def stream_gather(
    key, count, unit, block, left, lists, q, dout, queries, stats, bad, dq, work, scale
):
    """As `stream_blocks`, for query blocks too small for a product: TILE queries at a time."""
    near, bits, rows_of = queries
    bad_keys, bad_queries = bad
    blocks = (lists.seqlen_q + lists.block_q - 1) // lists.block_q
    batch, head = unit // lists.heads, unit % lists.heads
    q_at = batch * q.batch + head * q.head
    dout_at = batch * dout.batch + head * dout.head
    line = np.int64(lists.pattern[unit]) * lists.rows + block
    rows, masked, unsafe = 0, False, bad_keys
    stop = lists.row_ptr[line + 1]
    for entry in range(lists.row_ptr[line], stop):
        col = np.int64(lists.col[entry])
        tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
        size = min(lists.block_q, lists.seqlen_q - col * lists.block_q)
        for within in range(size):
            token = col * lists.block_q + within
            for f in range(q.features):
                near.q.data[rows * near.q.stride + f] = q.data[q_at + token * q.token + f]
            for f in range(dout.features):
                near.dout.data[rows * near.dout.stride + f] = dout.data[
                    dout_at + token * dout.token + f
                ]
            put_row(
                q.data, q_at + token * q.token, q.features,
                near.q_panels.data, 0, near.q_panels.step, rows,
            )  # fmt: skip
            put_row(
                dout.data, dout_at + token * dout.token, dout.features,
                near.dout_panels.data, 0, near.dout_panels.step, rows,
            )  # fmt: skip
            near.lse[rows] = stats[0][unit * lists.seqlen_q + token]
            near.delta[rows] = stats[1][unit * lists.seqlen_q + token]
            rows_of[rows] = unit * lists.seqlen_q + token
            source = tile_bits(lists, tile, within, left)
            for word in range((count + 31) // 32):
                bits.data[rows * bits.stride + word] = (
                    np.int32(-1) if tile < 0 else source.data[source.start + word]
                )
            masked |= tile >= 0
            unsafe |= bad_queries[unit * blocks + col] != 0
            rows += 1
            if rows == TILE or (entry + 1 == stop and within + 1 == size):
                near.dq.data[:] = 0
                attend_grad(
                    near, key, rows, count, (q.features, dout.features), bits, masked, unsafe,
                    work[0], work[1], scale,
                )  # fmt: skip
                for r in range(rows):
                    at = dq.start + rows_of[r] * dq.stride
                    for f in range(q.features):
                        dq.data[at + f] += near.dq.data[r * near.dq.stride + f]
                rows, masked, unsafe = 0, False, bad_keys


@kernel
def loop_q(first, last, runs, lists, q, k, v, dout, panels, stats, bad, dq, dk, dv, scale, gather):
    """Runs [first, last) of the backward that owns keys.

    Args:
        first, last: places in `runs`.
        runs: int64 [n, 4]: KV unit b * HK + h, stripe, first key block, end of key blocks.
        lists: `Lists` of the keys.
        q, k, v, dout: `Tokens`.
        panels: (q, dout), flat [B * HQ, M, panels of D or DV, bq, width]; read unless `gather`.
        stats: (lse as an exponent of 2, delta), each [B * HQ * SQ].
        bad: (uint8 [B * HK * N] of keys, [B * HQ * M] of q or dout), 1 for NaN or infinity.
        dq: `Rows` [stripes, B * HQ * SQ], whole panels wide, added to.
        dk, dv: `Tokens`, written.
        scale: factor of the scores.
        gather: whether query blocks are gathered token by token.
    """
    dtype = q.data.dtype
    width = 2 * VECTOR_BYTES // q.data.itemsize
    blocks = (lists.seqlen_k + lists.block_k - 1) // lists.block_k
    kv_heads = lists.heads // lists.group
    key = key_side((q.features, v.features), q.data)
    work = (np.zeros(TILE * SCORE_STRIDE, dtype), np.zeros(TILE * SCORE_STRIDE, dtype))
    near = QuerySide(
        scratch(TILE, q.features, q.data), scratch(TILE, v.features, q.data),
        Panels(np.zeros(TILE * key.dk.stride, dtype), 0, TILE * width),
        Panels(np.zeros(TILE * key.dv.stride, dtype), 0, TILE * width),
        np.zeros(TILE, dtype), np.zeros(TILE, dtype), 0, scratch(TILE, q.features, q.data),
    )  # fmt: skip
    queries = (near, Rows(np.zeros(TILE * TILE // 32, np.int32), 0, TILE // 32),
               np.zeros(TILE, np.int64))  # fmt: skip
    tokens_q = lists.pattern.size * lists.seqlen_q
    for place in range(first, last):
        store, stripe = runs[place, 0], runs[place, 1]
        batch, head = store // kv_heads, store % kv_heads
        mine = Rows(dq.data, dq.start + stripe * tokens_q * dq.stride, dq.stride)
        for block in range(runs[place, 2], runs[place, 3]):
            size = min(lists.block_k, lists.seqlen_k - block * lists.block_k)
            bad_here = (bad[0][store * blocks + block] != 0, bad[1])
            for left in range(0, size, TILE):
                count, token = min(TILE, size - left), block * lists.block_k + left
                load_keys(
                    key, k, v, batch * k.batch + head * k.head + token * k.token,
                    batch * v.batch + head * v.head + token * v.token, count,
                )  # fmt: skip
                for member in range(lists.group):
                    unit = store * lists.group + member
                    if gather:
                        stream_gather(
                            key, count, unit, block, left, lists, q, dout, queries, stats,
                            bad_here, mine, work, scale,
                        )  # fmt: skip
                    else:
                        stream_blocks(
                            key, count, unit, block, left, lists, q, dout, panels, stats,
                            bad_here, mine, work, scale,
                        )  # fmt: skip
                dk_at = batch * dk.batch + head * dk.head + token * dk.token
                store_rows(count, key.dk, dk, dk_at)
                dv_at = batch * dv.batch + head * dv.head + token * dv.token
                store_rows(count, key.dv, dv, dv_at)
