"""Compiled walk from block lists to slices; `maskplan.interop.magi` says what a slice is.

A slice that still grows is a row of int64 `slices`: q0, q1, first key of the first run, first and
one past the last key of the last run, and how far the two ends move from query to query, -1 until
that is known.
"""

import numpy as np

from maskplan.jit import kernel

_Q0, _Q1, _FIRST, _START, _STOP, _LOW, _HIGH = 0, 1, 2, 3, 4, 5, 6
_UNKNOWN = -1


@kernel
def _add_run(runs, count, start, stop):
    """Append a run of keys, joined to the last where they touch; returns (runs, count)."""
    if count and runs[count - 1, 1] == start:
        runs[count - 1, 1] = stop
        return runs, count
    if count == runs.shape[0]:
        more = np.empty((2 * count, 2), dtype=np.int64)
        more[:count] = runs
        runs = more
    runs[count, 0], runs[count, 1] = start, stop
    return runs, count + 1


@kernel
def _runs_of_query(col, tile_id, tiles, begin, end, query, bk, seqlen_k, runs):
    """Runs of the keys that one query of a row of blocks sees; returns (runs, count)."""
    count = 0
    for entry in range(begin, end):
        left = np.int64(col[entry]) * bk
        width = min(bk, seqlen_k - left)
        if tile_id.size == 0 or tile_id[entry] < 0:
            runs, count = _add_run(runs, count, left, left + width)
            continue
        first = np.int64(-1)
        for k in range(width):
            kept = (tiles[tile_id[entry], query, k >> 5] >> (k & 31)) & 1
            if kept and first < 0:
                first = left + k
            if not kept and first >= 0:
                runs, count = _add_run(runs, count, first, left + k)
                first = np.int64(-1)
        if first >= 0:
            runs, count = _add_run(runs, count, first, left + width)
    return runs, count


@kernel
def _goes_on(piece, start, stop, tall):
    """Whether a slice can go on with a run, of one query or of several (`tall`)."""
    low, high = start - piece[_START], stop - piece[_STOP]
    if low < 0 or low > 1 or high < 0 or high > 1 or (tall and (low or high)):
        return False
    return piece[_LOW] == _UNKNOWN or (piece[_LOW] == low and piece[_HIGH] == high)


@kernel
def slices_of_lists(row_ptr, col, tile_id, tiles, axes):
    """The slices of one pattern, in the order in which they begin.

    Args:
        row_ptr: int64 [M + 1], `col` int32 [blocks], `tile_id` int32 [blocks] or empty.
        col: as above.
        tile_id: as above.
        tiles: int32 [T, bq, words].
        axes: int64 [4] = SQ, SK, bq, bk.

    Returns:
        int64 [slices, 7].
    """
    seqlen_q, seqlen_k, bq, bk = axes
    slices = np.empty((256, 7), dtype=np.int64)
    total = 0
    runs = np.empty((64, 2), dtype=np.int64)
    last, last_count, last_stop = np.empty(64, dtype=np.int64), 0, np.int64(0)
    now = np.empty(64, dtype=np.int64)
    for row in range(row_ptr.size - 1):
        begin, end = row_ptr[row], row_ptr[row + 1]
        top, bottom = row * bq, min((row + 1) * bq, seqlen_q)
        mixed = tile_id.size > 0 and (tile_id[begin:end] >= 0).any()
        step = 1 if mixed else bottom - top
        for q0 in range(top, bottom, step):
            q1 = q0 + step
            runs, count = _runs_of_query(
                col, tile_id, tiles, begin, end, q0 - top, bk, seqlen_k, runs
            )
            if count > now.size:
                now = np.empty(2 * count, dtype=np.int64)
            before = 0
            for i in range(count):
                start, stop = runs[i]
                # Runs of a query do not touch, so one slice at most can go on with this one.
                while before < last_count and slices[last[before], _START] + 1 < start:
                    before += 1
                if (
                    before < last_count
                    and last_stop == q0
                    and _goes_on(slices[last[before]], start, stop, step > 1)
                ):
                    piece = slices[last[before]]
                    piece[_LOW], piece[_HIGH] = start - piece[_START], stop - piece[_STOP]
                    piece[_Q1], piece[_START], piece[_STOP] = q1, start, stop
                    now[i] = last[before]
                    before += 1
                    continue
                if total == slices.shape[0]:
                    more = np.empty((2 * total, 7), dtype=np.int64)
                    more[:total] = slices
                    slices = more
                still = 0 if step > 1 else _UNKNOWN
                slices[total] = np.array([q0, q1, start, start, stop, still, still])
                now[i] = total
                total += 1
            last, now = now, last
            last_count, last_stop = count, q1
    return slices[:total].copy()
