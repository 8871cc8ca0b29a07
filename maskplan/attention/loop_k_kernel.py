"""The CPU backward that owns queries: one task is a run of query blocks under one KV head.

dQ of up to TILE queries stays in cache while the keys they visit stream past; dK and dV are added
to buffers that belong to the task's stripe. It is the one for key blocks of a few tokens, which are
gathered.
"""

import numpy as np

from maskplan.attention.block_kernel import (
    SCORE_STRIDE,
    TILE,
    put_columns,
    put_numbers,
    put_row,
    set_bits,
    squares,
    tile_bits,
)
from maskplan.attention.gradient_kernel import KeySide, QuerySide, attend_grad, scratch
from maskplan.attention.loop_q_kernel import key_side, store_rows
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
def stream_gather(query, rows, unit, block, top, lists, k, v, keys, bad, dk, dv, work, scale):
    """As `stream_blocks`, for key blocks too small to be panels: TILE keys at a time."""
    near, bits, keys_of, k_rows, v_rows = keys
    bad_query, bad_keys = bad
    blocks = (lists.seqlen_k + lists.block_k - 1) // lists.block_k
    store = unit // lists.group
    kv_heads = lists.heads // lists.group
    k_at = store // kv_heads * k.batch + store % kv_heads * k.head
    v_at = store // kv_heads * v.batch + store % kv_heads * v.head
    line = np.int64(lists.pattern[unit]) * lists.rows + block
    count, masked, unsafe = 0, False, bad_query
    bits.data[:] = 0
    stop = lists.row_ptr[line + 1]
    for entry in range(lists.row_ptr[line], stop):
        col = np.int64(lists.col[entry])
        tile = np.int64(lists.tile_id[entry]) if lists.tile_id.size else -1
        size = min(lists.block_k, lists.seqlen_k - col * lists.block_k)
        tile_at = (max(tile, 0) * lists.block_q + top) * lists.words
        for within in range(size):
            token = col * lists.block_k + within
            k_token, v_token = k_at + token * k.token, v_at + token * v.token
            put_numbers(k.data, k_token, k.features, k_rows, count * k.features)
            put_numbers(v.data, v_token, v.features, v_rows, count * v.features)
            put_row(k.data, k_token, k.features, near.k_panels.data, 0, near.k_panels.step, count)
            if lists.tile_id.size:
                set_bits(
                    bits.data, 0, lists.tiles, tile_at, rows, lists.words, within, count, tile < 0
                )
            keys_of[count] = store * lists.seqlen_k + token
            masked |= tile >= 0
            unsafe |= bad_keys[store * blocks + col] != 0
            count += 1
            if count == TILE or (entry + 1 == stop and within + 1 == size):
                wide = squares(count)
                put_columns(k_rows, 0, k.features, wide, k.features, near.k_columns.data, 0)
                put_columns(v_rows, 0, v.features, wide, v.features, near.v_columns.data, 0)
                near.dk.data[: wide * near.dk.stride] = 0
                near.dv.data[: wide * near.dv.stride] = 0
                attend_grad(
                    query, near, rows, count, (k.features, v.features), bits, masked, unsafe,
                    work[0], work[1], scale,
                )  # fmt: skip
                for c in range(count):
                    at = dk.start + keys_of[c] * dk.stride
                    for f in range(k.features):
                        dk.data[at + f] += near.dk.data[c * near.dk.stride + f]
                    at = dv.start + keys_of[c] * dv.stride
                    for f in range(v.features):
                        dv.data[at + f] += near.dv.data[c * near.dv.stride + f]
                count, masked, unsafe = 0, False, bad_query
                bits.data[:] = 0


@kernel
def loop_k(first, last, runs, lists, q, k, v, dout, panels, stats, bad, dq, dk, dv, scale, gather):
    """Runs [first, last) of the backward that owns queries.

    Args:
        first, last: places in `runs`.
        runs: int64 [n, 4]: KV unit b * HK + h, stripe, first query block, end of query blocks.
        lists: `Lists` of the queries.
        q, k, v, dout: `Tokens`.
        panels: (k columns, v columns, k panels), flat [B * HK, N, ...]; read unless `gather`.
        stats: (lse as an exponent of 2, delta), each [B * HQ * SQ].
        bad: (uint8 [B * HQ * M] of q or dout, [B * HK * N] of keys), 1 for NaN or infinity.
        dq: `Tokens`, written.
        dk, dv: `Rows` [stripes, B * HK * SK], whole panels wide, added to.
        scale: factor of the scores.
        gather: whether key blocks are gathered token by token.
    """
    dtype = q.data.dtype
    width = 2 * VECTOR_BYTES // q.data.itemsize
    kv_heads = lists.heads // lists.group
    features = (q.features, v.features)
    keys = (
        key_side(features, q.data),
        Rows(np.zeros(TILE * TILE // 32, np.int32), 0, TILE // 32),
        np.zeros(TILE, np.int64),
        np.zeros(TILE * k.features, dtype),
        np.zeros(TILE * v.features, dtype),
    )
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
                    if gather:
                        stream_gather(
                            query, rows, unit, block, top, lists, k, v, keys, bad_here, my_dk,
                            my_dv, work, scale,
                        )  # fmt: skip
                    else:
                        stream_blocks(
                            query, rows, unit, block, top, lists, features, panels, bad_here,
                            my_dk, my_dv, work, scale,
                        )  # fmt: skip
                    dq_at = batch * dq.batch + head * dq.head + token * dq.token
                    store_rows(rows, grad, dq, dq_at)
