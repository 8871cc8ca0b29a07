"""The CPU backward that owns queries: one task is a run of query blocks under one KV head.

dQ of up to TILE queries stays in cache while the keys they visit stream past; dK and dV are added
to buffers that belong to the task's stripe.
"""

import numpy as np

from maskplan.attention.block_kernel import SCORE_STRIDE, TILE, put_row, tile_bits
from maskplan.attention.gradient_kernel import KeySide, QuerySide, attend_grad, scratch
from maskplan.attention.loop_q_kernel import store_rows
from maskplan.attention.operands import Panels, Rows
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


@kernel
def stream_blocks(query, rows, unit, block, top, lists, features, panels, bad, dk, dv, work, scale):
    """Add the gradients of one query tile and every key of the blocks that it visits."""
    width = 2 * VECTOR_BYTES // work[0].itemsize
    k_columns, v_columns, k_panels = panels
    bad_query, bad_keys = bad
    padded = (lists.block_k + width - 1) // width * width
    blocks = (lists.seqlen_k + lists.block_k - 1) // lists.block_k
    store = unit // lists.group
    line = np.int64(lists.pattern[unit]) * lists.rows + block
    for entry in range(lists.row_ptr[line], lists.row_ptr[line + 1]):
        col = np.int64(lists.col[entry])
        tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
        at = store * blocks + col
        size = min(lists.block_k, lists.seqlen_k - col * lists.block_k)
        for left in range(0, size, TILE):
            first = store * lists.seqlen_k + col * lists.block_k + left
            key = KeySide(
                Panels(k_columns, (at * padded + left) * features[0], features[0] * width),
                Panels(v_columns, (at * padded + left) * features[1], features[1] * width),
                Panels(
                    k_panels,
                    at * dk.stride * lists.block_k + left * width,
                    lists.block_k * width,
                ),
                Rows(dk.data, dk.start + first * dk.stride, dk.stride),
                Rows(dv.data, dv.start + first * dv.stride, dv.stride),
            )
            attend_grad(
                query, key, rows, min(TILE, size - left), features,
                tile_bits(lists, tile, top, left), tile >= 0, bad_query or bad_keys[at] != 0,
                work[0], work[1], scale,
            )  # fmt: skip


@kernel
def loop_k(first, last, runs, lists, q, k, v, dout, panels, stats, bad, dq, dk, dv, scale):
    """Runs [first, last) of the backward that owns queries.

    Args:
        first, last: places in `runs`.
        runs: int64 [n, 4]: KV unit b * HK + h, stripe, first query block, end of query blocks.
        lists: `Lists` of the queries.
        q, k, v, dout: `Tokens`.
        panels: (k columns, v columns, k panels), flat [B * HK, N, ...].
        stats: (lse as an exponent of 2, delta), each [B * HQ * SQ].
        bad: (uint8 [B * HQ * M] of q or dout, [B * HK * N] of keys), 1 for NaN or infinity.
        dq: `Tokens`, written.
        dk, dv: `Rows` [stripes, B * HK * SK], whole panels wide, added to.
        scale: factor of the scores.
    """
    dtype = q.data.dtype
    width = 2 * VECTOR_BYTES // q.data.itemsize
    kv_heads = lists.heads // lists.group
    features = (q.features, v.features)
    work = (np.zeros(TILE * SCORE_STRIDE, dtype), np.zeros(TILE * SCORE_STRIDE, dtype))
    grad = scratch(TILE, q.features, q.data)
    q_panels = Panels(np.zeros(TILE * grad.stride, dtype), 0, TILE * width)
    dout_panels = Panels(np.zeros(TILE * dv.stride, dtype), 0, TILE * width)
    tokens_k = lists.pattern.size // lists.group * lists.seqlen_k
    for place in range(first, last):
        store, stripe = runs[place, 0], runs[place, 1]
        batch = store // kv_heads
        my_dk = Rows(dk.data, dk.start + stripe * tokens_k * dk.stride, dk.stride)
        my_dv = Rows(dv.data, dv.start + stripe * tokens_k * dv.stride, dv.stride)
        for unit in range(store * lists.group, (store + 1) * lists.group):
            head = unit % lists.heads
            for block in range(runs[place, 2], runs[place, 3]):
                size = min(lists.block_q, lists.seqlen_q - block * lists.block_q)
                bad_here = (bad[0][unit * lists.rows + block] != 0, bad[1])
                for top in range(0, size, TILE):
                    rows, token = min(TILE, size - top), block * lists.block_q + top
                    q_at = batch * q.batch + head * q.head + token * q.token
                    dout_at = batch * dout.batch + head * dout.head + token * dout.token
                    for r in range(rows):
                        put_row(
                            q.data, q_at + r * q.token, q.features, q_panels.data, 0,
                            q_panels.step, r,
                        )  # fmt: skip
                        put_row(
                            dout.data, dout_at + r * dout.token, dout.features, dout_panels.data,
                            0, dout_panels.step, r,
                        )  # fmt: skip
                    grad.data[:] = 0
                    query = QuerySide(
                        Rows(q.data, q_at, q.token), Rows(dout.data, dout_at, dout.token),
                        q_panels, dout_panels, stats[0], stats[1],
                        unit * lists.seqlen_q + token, grad,
                    )  # fmt: skip
                    stream_blocks(
                        query, rows, unit, block, top, lists, features, panels, bad_here, my_dk,
                        my_dv, work, scale,
                    )  # fmt: skip
                    dq_at = batch * dq.batch + head * dq.head + token * dq.token
                    store_rows(rows, grad, dq, dq_at)
