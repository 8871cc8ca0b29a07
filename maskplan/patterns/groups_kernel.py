"""Compiled engine of masks between groups of tokens: tiles, clusters, text.

Queries and keys are each cut into runs of slots, a group each. A query group sees whole key groups.
A block's phase is how the runs lie in it, on both sides, and one bit for each pair of its runs.
`runs` are int64 [groups, 2], [start, stop), ascending, disjoint and not empty.
"""

import numpy as np

from maskplan.build.bit_rows_kernel import reserve, set_bits
from maskplan.jit import kernel
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


@kernel
def _lies(runs, blocks, block):
    """(first run of each block, how many runs it has), int64 [blocks] each."""
    first = np.zeros(blocks, dtype=np.int64)
    count = np.zeros(blocks, dtype=np.int64)
    for run in range(runs.shape[0]):
        for at in range(runs[run, 0] // block, (runs[run, 1] - 1) // block + 1):
            if count[at] == 0:
                first[at] = run
            count[at] += 1
    return first, count


@kernel
def _shapes(runs, first, count, block, length):
    """A number for each block, equal where extent and runs lie equally: int64 [blocks]."""
    most = max(count.max(), 1) if count.size else 1
    key = np.empty(1 + 2 * most, dtype=np.int64)
    known = new_phases(key.size)
    shapes = np.zeros(first.size, dtype=np.int64)
    for at in range(first.size):
        left = at * block
        key[:] = -1
        key[0] = min(block, length - left)
        for i in range(count[at]):
            key[1 + 2 * i] = max(runs[first[at] + i, 0] - left, 0)
            key[2 + 2 * i] = min(runs[first[at] + i, 1] - left, key[0])
        known, shapes[at] = number_of(known, key)
    return shapes


@kernel
def _draw(tile, bits, q_runs, q_count, top, bottom, k_runs, k_count, left, right, stride):
    """Set the bits of a block in `tile`, int32 [bq, words], from the bits of its pairs of runs.

    Args:
        q_runs: runs of the block's queries, `k_runs` of its keys, from the first on.
        stride: bits of `bits` for each query run.
    """
    words = tile.shape[1]
    flat = tile.reshape(-1)
    flat[:] = 0
    for i in range(q_count):
        row = max(q_runs[i, 0], top) - top
        stop = min(q_runs[i, 1], bottom) - top
        base = row * words
        for j in range(k_count):
            bit = i * stride + j
            if (bits[bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1):
                start = max(k_runs[j, 0], left) - left
                set_bits(flat, base, start, min(k_runs[j, 1], right) - left)
        for other in range(row + 1, stop):
            for word in range(words):
                flat[other * words + word] = flat[base + word]


@kernel
def _list_known(at, row, seen, bits, numbers, q_shape, k_shapes, table, key, col, content, total):
    """Append blocks of keys from `at` on that the row has seen, up to the first of unknown phase.

    Args:
        seen: int64 [N], the last row that sees each block.
        bits: uint64 [N * numbers], the bits of each block's pairs of runs; cleared where listed.
        table: (keys, contents, slots) of the phases.

    Returns:
        (where it stopped, the new total).
    """
    keys, contents, slots = table
    for block in range(at, seen.size):
        if seen[block] != row:
            continue
        key[0] = (q_shape << 32) | k_shapes[block]
        for i in range(numbers):
            key[1 + i] = np.int64(bits[block * numbers + i])
        what = content_of(keys, contents, slots, key)
        if what == UNKNOWN:
            return block, total
        for i in range(numbers):
            bits[block * numbers + i] = 0
        if what != EMPTY:
            col[total] = block
            content[total] = what
            total += 1
    return seen.size, total


@kernel
def plan_groups(q_runs, k_runs, row_ptr, groups, axes, part):
    """Block lists of some rows of blocks of one pattern.

    Args:
        q_runs: of queries, `k_runs` of keys.
        row_ptr: int64 [query groups + 1]: group g sees groups[row_ptr[g] : row_ptr[g + 1]].
        groups: int32 key groups in any order, -1 for none.
        axes: int64 [4] = SQ, SK, bq, bk.
        part: (first row of blocks, one past the last).

    Returns:
        (row_ptr int64 [rows + 1], col, content, tiles).
    """
    seqlen_q, seqlen_k, bq, bk = axes
    rows, cols, words = (seqlen_q + bq - 1) // bq, (seqlen_k + bk - 1) // bk, (bk + 31) // 32
    q_first, q_count = _lies(q_runs, rows, bq)
    k_first, k_count = _lies(k_runs, cols, bk)
    q_shapes = _shapes(q_runs, q_first, q_count, bq, seqlen_q)
    k_shapes = _shapes(k_runs, k_first, k_count, bk, seqlen_k)
    stride = max(k_count.max(), 1) if cols else 1
    pairs = stride * (max(q_count.max(), 1) if rows else 1)
    numbers = (pairs + 63) // 64
    reach = k_runs // bk  # blocks that a group lies in, divided once and not for each query
    reach[:, 1] = (k_runs[:, 1] - 1) // bk + 1
    bits = np.zeros(cols * numbers, dtype=np.uint64)
    seen = np.full(cols, -1, dtype=np.int64)
    key = np.empty(1 + numbers, dtype=np.int64)
    phases, pool = new_phases(key.size), new_pool(bq, words, 16)
    tile = np.zeros((bq, words), dtype=np.int32)
    first_row, last_row = part
    out_ptr = np.zeros(last_row - first_row + 1, dtype=np.int64)
    col, content = np.empty(4096, dtype=np.int32), np.empty(4096, dtype=np.int32)
    total = 0
    for row in range(first_row, last_row):
        for i in range(q_count[row]):
            group = q_first[row] + i
            for entry in range(row_ptr[group], row_ptr[group + 1]):
                other = groups[entry]
                if other < 0:
                    continue
                for at in range(reach[other, 0], reach[other, 1]):
                    bit = i * stride + other - k_first[at]
                    bits[at * numbers + (bit >> 6)] |= np.uint64(1) << np.uint64(bit & 63)
                    seen[at] = row
        top, bottom = row * bq, min((row + 1) * bq, seqlen_q)
        col, content = reserve(col, content, total + cols)
        at = 0
        while True:
            table = phases[:3]
            at, total = _list_known(
                at, row, seen, bits, numbers, q_shapes[row], k_shapes,
                table, key, col, content, total,
            )  # fmt: skip
            if at == cols:
                break
            left, right = at * bk, min((at + 1) * bk, seqlen_k)
            _draw(
                tile, bits[at * numbers :], q_runs[q_first[row] :], q_count[row], top, bottom,
                k_runs[k_first[at] :], k_count[at], left, right, stride,
            )  # fmt: skip
            pool, what = content_of_bits(pool, tile, (bottom - top) * (right - left))
            phases = remember(phases, key, what)  # `key` is this block's
        out_ptr[row + 1 - first_row] = total
    return out_ptr, col[:total].copy(), content[:total].copy(), pool[0][: pool[3][0]].copy()
