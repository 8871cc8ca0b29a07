"""Compiled engine of interval-shaped masks; `maskplan.build.slices` says what a slice is.

NOTE [Phases]: patterns repeat, so most mask blocks look like one made before. A block's phase is
its in-range extent and, for each slice that touches it, the slice clipped to the block and counted
from its corner. Equal phases have equal bits, so the phase is looked up first and bits are made
only for a new one. The cache of phases has a fixed size and is emptied when it is full: it saves
work and decides nothing, because tiles are interned by their bits.
"""

import numpy as np

from maskplan.build.bit_rows_kernel import reserve, set_bits
from maskplan.jit import kernel
from maskplan.tile_pool import count_bits, intern, new_pool

_EMPTY = np.int32(-2)
_FULL = np.int32(-1)
_UNKNOWN = np.int32(-3)
_PHASES = 4096
_PHASE_NUMBERS = 1 << 16
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)


@kernel
def _span(slices, piece, top, bottom, bk, seqlen_k, out):
    """KV blocks of one slice in the rows [top, bottom): touched [out0, out1), full [out2, out3)."""
    q0, q1, k0 = slices[piece, 0], slices[piece, 1], slices[piece, 2]
    k1, low, high = slices[piece, 3], slices[piece, 4], slices[piece, 5]
    first = max(max(q0, top), k0 - high + 1)
    last = min(min(q1, bottom), k1 - low) - 1
    for i in range(4):
        out[i] = 0
    if first > last or low >= high or k0 >= k1:
        return
    out[0] = max(k0, first + low) // bk
    out[1] = (min(k1, last + high) + bk - 1) // bk
    if first == top and last == bottom - 1:
        start, stop = max(k0, last + low), min(k1, first + high)
        out[2] = (start + bk - 1) // bk
        out[3] = (stop + bk - 1) // bk if stop >= seqlen_k else stop // bk


@kernel
def _phase(slices, active, live, count, top, height, left, bk, seqlen_k, key):
    """Write the phase of a block to `key`; returns how many numbers it has."""
    width = min(bk, seqlen_k - left)
    key[0], key[1] = height, width
    size = 2
    for i in range(count):
        piece = active[live[i]]
        q0, q1, k0 = slices[piece, 0], slices[piece, 1], slices[piece, 2]
        k1, low, high = slices[piece, 3], slices[piece, 4], slices[piece, 5]
        r0, r1 = max(q0 - top, 0), min(q1 - top, height)
        c0, c1 = max(k0 - left, 0), min(k1 - left, width)
        low, high = max(low + top - left, -height), min(high + top - left, width)
        if r0 >= r1 or c0 >= c1 or r0 + low >= c1 or r1 - 1 + high <= c0:
            continue
        key[size], key[size + 1], key[size + 2] = r0, r1, c0
        key[size + 3], key[size + 4], key[size + 5] = c1, low, high
        size += 6
    return size


@kernel
def _draw(key, size, tile):
    """Set the bits of a phase in `tile`, int32 [bq, words]."""
    words = tile.shape[1]
    flat = tile.reshape(-1)
    for word in range(flat.size):
        flat[word] = 0
    for at in range(2, size, 6):
        low, high = key[at + 4], key[at + 5]
        for row in range(key[at], key[at + 1]):
            start, stop = max(key[at + 2], row + low), min(key[at + 3], row + high)
            if start < stop:
                set_bits(flat, row * words, start, stop)


@kernel
def _new_phases():
    return (
        np.empty(_PHASE_NUMBERS, dtype=np.int64),
        np.zeros(_PHASES + 1, dtype=np.int64),
        np.empty(_PHASES, dtype=np.uint64),
        np.empty(_PHASES, dtype=np.int32),
        np.full(2 * _PHASES, -1, dtype=np.int32),
        np.zeros(1, dtype=np.int64),
    )


@kernel
def _find(numbers, begin, codes, contents, slots, key, size):
    """(slot of the phase, its content or _UNKNOWN, its hash)."""
    code = np.uint64(size)
    for i in range(size):
        code = (code ^ np.uint64(key[i])) * _MIX
        code ^= code >> _FOLD
    at = np.int64(code & np.uint64(slots.size - 1))
    while slots[at] >= 0:
        other = slots[at]
        if codes[other] == code and begin[other + 1] - begin[other] == size:
            same = True
            for i in range(size):
                same = same and numbers[begin[other] + i] == key[i]
            if same:
                return at, contents[other], code
        at = (at + 1) & (slots.size - 1)
    return at, _UNKNOWN, code


@kernel
def _remember(phases, at, code, key, size, content):
    numbers, begin, codes, contents, slots, count = phases
    if count[0] == _PHASES or begin[count[0]] + size > numbers.size:
        for slot in range(slots.size):
            slots[slot] = -1
        count[0] = 0
        at = np.int64(code & np.uint64(slots.size - 1))
    if size > numbers.size:
        return
    here = count[0]
    for i in range(size):
        numbers[begin[here] + i] = key[i]
    begin[here + 1] = begin[here] + size
    codes[here] = code
    contents[here] = content
    slots[at] = here
    count[0] = here + 1


@kernel
def _sort_spans(slices, active, count, top, bottom, bk, seqlen_k, spans):
    """Order the active slices by first block, with their spans; returns how many still reach on.

    The order is kept from row to row, so that the insertion sort finds it nearly done.
    """
    span = np.empty(4, dtype=np.int64)
    keep = 0
    for i in range(count):
        piece = active[i]
        if slices[piece, 1] <= top:
            continue
        _span(slices, piece, top, bottom, bk, seqlen_k, span)
        at = keep
        while at > 0 and spans[at - 1, 0] > span[0]:
            for part in range(4):
                spans[at, part] = spans[at - 1, part]
            active[at] = active[at - 1]
            at -= 1
        for part in range(4):
            spans[at, part] = span[part]
        active[at] = piece
        keep += 1
    return keep


@kernel
def _live_blocks(live, count, spans, block):
    """Drop the slices that end before `block`; (how many stay, first block past a full stretch)."""
    kept, full_stop = 0, np.int64(0)
    for i in range(count):
        span = live[i]
        if spans[span, 1] > block:
            live[kept] = span
            kept += 1
            if spans[span, 2] <= block:
                full_stop = max(full_stop, spans[span, 3])
    return kept, full_stop


@kernel
def _make(key, size, tile, pool):
    """(pool, content) of a block of a new phase, from its bits."""
    _draw(key, size, tile)
    bits = count_bits(tile.reshape(-1))
    if bits == 0:
        return pool, _EMPTY
    if bits == key[0] * key[1]:
        return pool, _FULL
    return intern(pool, tile)


@kernel
def _list_row(slices, active, spans, count, extent, scratch, phases, pool, col, content, total):
    """Append the blocks of one row of blocks, from its slices' spans in order of first block.

    Args:
        extent: (first query, one past the last, bk, SK).
        scratch: (live int64, key int64, tile int32 [bq, words]).
    """
    top, bottom, bk, seqlen_k = extent
    live, key, tile = scratch
    numbers, begin, codes, contents, slots, _ = phases  # once: unpacking counts references
    upcoming, lives, block = 0, 0, np.int64(0)
    while True:
        if lives == 0:
            while upcoming < count and spans[upcoming, 0] >= spans[upcoming, 1]:
                upcoming += 1
            if upcoming == count:
                return pool, col, content, total
            block = max(block, spans[upcoming, 0])
        while upcoming < count and spans[upcoming, 0] <= block:
            live[lives] = upcoming
            lives += 1
            upcoming += 1
        lives, full_stop = _live_blocks(live, lives, spans, block)
        if lives == 0:
            continue
        if full_stop > block:
            col, content = reserve(col, content, total + full_stop - block)
            for i in range(full_stop - block):
                col[total + i] = block + i
                content[total + i] = _FULL
            total, block = total + full_stop - block, full_stop
            continue
        size = _phase(slices, active, live, lives, top, bottom - top, block * bk, bk, seqlen_k, key)
        at, what, code = _find(numbers, begin, codes, contents, slots, key, size)
        if what == _UNKNOWN:
            pool, what = _make(key, size, tile, pool)
            _remember(phases, at, code, key, size, what)
        if what != _EMPTY:
            if total == col.size:
                col, content = reserve(col, content, total + 1)
            col[total] = block
            content[total] = what
            total += 1
        block += 1


@kernel
def plan_slices(slices, first, axes):
    """Block lists of P patterns.

    Args:
        slices: int64 [S, 6], ascending by q0 within a pattern.
        first: int64 [P + 1]: pattern p has slices [first[p], first[p + 1]).
        axes: int64 [4] = SQ, SK, bq, bk.

    Returns:
        (row_ptr int64 [P * M + 1], col, content, tiles).
    """
    seqlen_q, seqlen_k, bq, bk = axes[0], axes[1], axes[2], axes[3]
    rows, words = (seqlen_q + bq - 1) // bq, (bk + 31) // 32
    row_ptr = np.zeros((first.size - 1) * rows + 1, dtype=np.int64)
    col, content = np.empty(4096, dtype=np.int32), np.empty(4096, dtype=np.int32)
    total = 0
    pool = new_pool(bq, words, 16)
    phases = _new_phases()
    active = np.empty(max(slices.shape[0], 1), dtype=np.int64)
    spans = np.empty((active.size, 4), dtype=np.int64)
    scratch = (
        np.empty(active.size, dtype=np.int64),
        np.empty(2 + 6 * active.size, dtype=np.int64),
        np.zeros((bq, words), dtype=np.int32),
    )
    for pattern in range(first.size - 1):
        upcoming, count = first[pattern], 0
        for row in range(rows):
            top, bottom = row * bq, min((row + 1) * bq, seqlen_q)
            while upcoming < first[pattern + 1] and slices[upcoming, 0] < bottom:
                active[count] = upcoming
                count += 1
                upcoming += 1
            count = _sort_spans(slices, active, count, top, bottom, bk, seqlen_k, spans)
            extent = (top, bottom, bk, seqlen_k)
            pool, col, content, total = _list_row(
                slices, active, spans, count, extent, scratch, phases, pool, col, content, total
            )
            row_ptr[pattern * rows + row + 1] = total
    return row_ptr, col[:total].copy(), content[:total].copy(), pool[0][: pool[3][0]].copy()
