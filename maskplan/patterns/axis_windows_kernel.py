"""Compiled engine of masks that are a product over the axes of a grid.

A query at (t, h, w) sees a key at (t', h', w') if each axis lets it: low[x] <= y < high[x] and
y - x is a multiple of the axis's step. Slots are cut into runs, tokens of one (t, h) whose w counts
up: int64 [runs, 5] = (first slot, one past the last, t, h, w of the first), ascending; text is a
run with t = -1, which sees and is seen.

NOTE [Two small matrices]: inside a block only a few frames and rows of the grid occur, so a block's
phase is the place of its runs on both sides, which of its frames see each other, and which of its
rows. What w lets through follows from the places. Sets of frames and of rows repeat: the two small
matrices are made once for a set of queries and a set of keys, and numbered by their bits.
"""

import numpy as np

from maskplan.build.bit_rows_kernel import reserve, set_bits
from maskplan.jit import kernel
from maskplan.patterns.axis_reach_kernel import candidates, mark, reach
from maskplan.patterns.phase_kernel import (
    EMPTY,
    UNKNOWN,
    content_of,
    content_of_bits,
    new_phases,
    number_of,
    remember,
)
from maskplan.tile_pool import new_pool

_LINES = 64  # sets of queries whose matrices are kept at a time


@kernel
def _sees(axis, step, x, y):
    """Whether coordinate x sees y. `axis` is int64 [2, length]: low, high."""
    return axis[0, x] <= y < axis[1, x] and (step == 1 or (y - x) % step == 0)


@kernel
def _index(values, count, value):
    """(place of `value` among values[:count], the new count), put there if it is new."""
    for at in range(count):
        if values[at] == value:
            return at, count
    values[count] = value
    return count, count + 1


@kernel
def _blocks(runs, block, length):
    """The blocks of a sequence, and how runs lie in them.

    Returns:
        (first run of each block, count of its runs, numbers int64 [3, blocks] of its shape, of its
        set of frames and of its set of rows, its frames int64 [blocks, most], their count, its
        rows, their count).
    """
    blocks = (length + block - 1) // block
    first, count = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    for run in range(runs.shape[0]):
        for at in range(runs[run, 0] // block, (runs[run, 1] - 1) // block + 1):
            if count[at] == 0:
                first[at] = run
            count[at] += 1
    most = max(count.max(), 1) if blocks else 1
    frames, rows = np.empty((blocks, most), np.int64), np.empty((blocks, most), np.int64)
    frame_count, row_count = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    numbers = np.zeros((3, blocks), np.int64)
    key = np.empty(1 + 5 * most, dtype=np.int64)
    known, frame_sets, row_sets = new_phases(key.size), new_phases(most), new_phases(most)
    frames[:], rows[:] = -1, -1
    for at in range(blocks):
        left, right = at * block, min((at + 1) * block, length)
        key[:] = -1
        key[0] = right - left
        for i in range(count[at]):
            start, stop, t, h, w = runs[first[at] + i]
            here = key[1 + 5 * i : 6 + 5 * i]
            here[0], here[1] = max(start, left) - left, min(stop, right) - left
            here[4] = w + max(left - start, 0)
            if t >= 0:
                here[2], frame_count[at] = _index(frames[at], frame_count[at], t)
                here[3], row_count[at] = _index(rows[at], row_count[at], h)
        known, numbers[0, at] = number_of(known, key)
        frame_sets, numbers[1, at] = number_of(frame_sets, frames[at])
        row_sets, numbers[2, at] = number_of(row_sets, rows[at])
    return first, count, numbers, frames, frame_count, rows, row_count


@kernel
def _matrix(axis, step, q_values, q_count, k_values, k_count, table, bits):
    """(table, number) of which coordinates see each other, as bits."""
    bits[:] = 0
    bit = 0
    for i in range(q_count):
        for j in range(k_count):
            if _sees(axis, step, q_values[i], k_values[j]):
                bits[bit >> 6] |= np.int64(np.uint64(1) << np.uint64(bit & 63))
            bit += 1
    # Counts tell matrices of other sizes apart.
    bits[-1] = (np.int64(q_count) << 32) | k_count
    return number_of(table, bits)


@kernel
def _draw_columns(flat, base, axis, step, x, low, high, at):
    """Set the bits of keys of w in [low, high), of which low has column `at`, that x sees."""
    start, stop = max(axis[0, x], low), min(axis[1, x], high)
    if step == 1:
        if start < stop:
            set_bits(flat, base, at + start - low, at + stop - low)
        return
    for y in range(start + (x - start) % step, stop, step):
        set_bits(flat, base, at + y - low, at + y - low + 1)


@kernel
def _draw(tile, q_runs, q_count, top, bottom, k_runs, k_count, left, right, axes, steps):
    """Set the bits of a block in `tile`, int32 [bq, words].

    Args:
        q_runs: runs of the block's queries, `k_runs` of its keys, from the first on.
    """
    words = tile.shape[1]
    flat = tile.reshape(-1)
    flat[:] = 0
    t_axis, h_axis, w_axis = axes
    for i in range(q_count):
        q_start, q_stop, t, h, w = q_runs[i]
        for j in range(k_count):
            k_start, k_stop, t_key, h_key, w_key = k_runs[j]
            at, end = max(k_start, left) - left, min(k_stop, right) - left
            whole = t < 0 or t_key < 0
            if not whole and not (
                _sees(t_axis, steps[0], t, t_key) and _sees(h_axis, steps[1], h, h_key)
            ):
                continue
            low = w_key + max(left - k_start, 0)
            for q in range(max(q_start, top), min(q_stop, bottom)):
                base = (q - top) * words
                if whole:
                    set_bits(flat, base, at, end)
                else:
                    x = w + q - q_start
                    high = low + end - at
                    _draw_columns(flat, base, w_axis, steps[2], x, low, high, at)


@kernel
def _list_known(
    found, at, count, query, k_numbers, made, matrices, table, key, col, content, total
):
    """Append blocks found[at:count] up to the first whose phase is not known.

    Args:
        query: numbers of the shape, of the frames and of the rows of the block of queries.
        k_numbers: int64 [3, N], the same of each block of keys.
        made: int64 [2, lines, N], `matrices` likewise: see `plan_axis_windows`.
        table: (keys, contents, slots) of the phases.

    Returns:
        (where it stopped in `found`, the new total).
    """
    keys, contents, slots = table
    shape, q_frames, q_rows = query
    frame_line, row_line = q_frames % _LINES, q_rows % _LINES
    for i in range(at, count):
        block = found[i]
        frames, rows = k_numbers[1, block], k_numbers[2, block]
        if made[0, frame_line, frames] != q_frames or made[1, row_line, rows] != q_rows:
            return i, total
        key[0] = (shape << 32) | k_numbers[0, block]
        key[1] = (matrices[0, frame_line, frames] << 32) | matrices[1, row_line, rows]
        what = content_of(keys, contents, slots, key)
        if what == UNKNOWN:
            return i, total
        if what != EMPTY:
            col[total] = block
            content[total] = what
            total += 1
    return count, total


@kernel
def plan_axis_windows(q_runs, k_runs, axes, steps, grid, tile, starts, text, lengths, part):
    """Block lists of some rows of blocks.

    Args:
        q_runs: runs of the queries, `k_runs` of the keys.
        axes: three int64 [2, length] = low and high of t, h, w.
        steps: three ints.
        grid: int64 [3], (T, H, W).
        tile: int64 [3], tokens of a tile of the keys' order.
        starts: int64 [tiles], first slot of each tile of keys.
        text: int64 [2], slots of the keys' text.
        lengths: int64 [4] = SQ, SK, bq, bk.
        part: (first row of blocks, one past the last).

    Returns:
        (row_ptr int64 [rows + 1], col, content, tiles).
    """
    seqlen_q, seqlen_k, bq, bk = lengths
    t_axis, h_axis, _ = axes
    t_step, h_step, _ = steps
    q_first, q_count, q_numbers, q_frames, q_frame_n, q_rows, q_row_n = _blocks(
        q_runs, bq, seqlen_q
    )
    k_first, k_count, k_numbers, k_frames, k_frame_n, k_rows, k_row_n = _blocks(
        k_runs, bk, seqlen_k
    )
    first_row, last_row = part
    cols, words = k_first.size, (bk + 31) // 32
    most = 1
    if q_first.size and cols:
        most = max(q_frame_n.max() * k_frame_n.max(), q_row_n.max() * k_row_n.max(), 1)
    bits = np.empty(1 + (most + 63) // 64, dtype=np.int64)
    frame_pairs, row_pairs = new_phases(bits.size), new_phases(bits.size)
    # Number of the matrix of a set of queries and one of keys, where `made` is the set of queries.
    matrices = np.zeros((2, _LINES, cols), dtype=np.int64)
    made = np.full((2, _LINES, cols), -1, dtype=np.int64)
    key = np.empty(2, dtype=np.int64)
    phases, pool = new_phases(key.size), new_pool(bq, words, 16)
    block = np.zeros((bq, words), dtype=np.int32)
    found, hull = np.empty(cols, dtype=np.int64), np.empty((3, 2), dtype=np.int64)
    out_ptr = np.zeros(last_row - first_row + 1, dtype=np.int64)
    col, content = np.empty(4096, dtype=np.int32), np.empty(4096, dtype=np.int32)
    total = 0
    for row in range(first_row, last_row):
        top, bottom = row * bq, min((row + 1) * bq, seqlen_q)
        if reach(q_runs, q_first[row], q_count[row], top, bottom, axes, hull):
            count = mark(found, 0, 0, cols - 1)
        elif hull[0, 1] == 0:
            count = 0
        else:
            count = candidates(hull, grid, tile, starts, text, bk, found)
        col, content = reserve(col, content, total + count)
        query = (q_numbers[0, row], q_numbers[1, row], q_numbers[2, row])
        frame_line, row_line = query[1] % _LINES, query[2] % _LINES
        i = 0
        while True:
            table = phases[:3]
            i, total = _list_known(
                found, i, count, query, k_numbers, made, matrices, table, key, col, content, total
            )
            if i == count:
                break
            at = found[i]
            frames, rows = k_numbers[1, at], k_numbers[2, at]
            if made[0, frame_line, frames] != query[1]:
                made[0, frame_line, frames] = query[1]
                frame_pairs, matrices[0, frame_line, frames] = _matrix(
                    t_axis, t_step, q_frames[row], q_frame_n[row],
                    k_frames[at], k_frame_n[at], frame_pairs, bits,
                )  # fmt: skip
            elif made[1, row_line, rows] != query[2]:
                made[1, row_line, rows] = query[2]
                row_pairs, matrices[1, row_line, rows] = _matrix(
                    h_axis, h_step, q_rows[row], q_row_n[row],
                    k_rows[at], k_row_n[at], row_pairs, bits,
                )  # fmt: skip
            else:  # `key` is this block's
                left, right = at * bk, min((at + 1) * bk, seqlen_k)
                _draw(
                    block, q_runs[q_first[row] :], q_count[row], top, bottom,
                    k_runs[k_first[at] :], k_count[at], left, right, axes, steps,
                )  # fmt: skip
                pool, what = content_of_bits(pool, block, (bottom - top) * (right - left))
                phases = remember(phases, key, what)
        out_ptr[row + 1 - first_row] = total
    return out_ptr, col[:total].copy(), content[:total].copy(), pool[0][: pool[3][0]].copy()
