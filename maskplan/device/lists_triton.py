"""Triton kernels that write block lists: counts to row pointers, bits to columns and tiles."""

import triton
import triton.language as tl

from maskplan.device.bits_triton import below, places, raise_status


@triton.jit
def scan_kernel(counts, row_ptr, lines, capacity, status, BLOCK: tl.constexpr):
    """row_ptr int64 [lines + 1] of counts int32 [lines], cut at the capacity.

    Each program adds up all counts before its own stretch: cheaper than a second launch.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    part = tl.zeros([BLOCK], tl.int64)
    for start in range(0, first, BLOCK):
        part += tl.load(counts + start + lane)
    own = first + lane
    inside = own < lines
    count = tl.load(counts + own, mask=inside, other=0).to(tl.int64)
    stop = tl.sum(part, 0) + tl.cumsum(count, 0)
    tl.store(row_ptr + 1 + own, tl.minimum(stop, capacity), mask=inside)
    raise_status(status, 2, tl.max(tl.where(inside, stop, 0), 0) > capacity)
    if first == 0:
        tl.store(row_ptr, tl.zeros([], tl.int64))


@triton.jit
def fill_none(target, first, stop, part, parts, BLOCK: tl.constexpr):
    """-1 in target[first:stop]; `part` of `parts` programs that share the work.

    Whole stretches of BLOCK have no mask, so that a thread writes 16 bytes at once.
    """
    lane = tl.arange(0, BLOCK)
    none = tl.full([BLOCK], -1, tl.int32)
    aligned = (first + BLOCK - 1) // BLOCK
    end = stop // BLOCK
    if part == 0:
        tl.store(target + first + lane, none, mask=first + lane < tl.minimum(aligned * BLOCK, stop))
        last = tl.maximum(aligned, end) * BLOCK + lane
        tl.store(target + last, none, mask=last < stop)
    for stretch in range(aligned + part, end, parts):
        tl.store(target + stretch * BLOCK + lane, none)


@triton.jit
def fill_spare(used, col, tile_id, capacity, TILES: tl.constexpr, FILL: tl.constexpr):
    """-1 in what room the lists leave, shared out among all programs."""
    part, parts = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    fill_none(col, used, capacity, part, parts, FILL)
    if TILES:
        fill_none(tile_id, used, capacity, part, parts, FILL)


@triton.jit
def emit_kernel(
    listed, full, counts, row_ptr, col, tile_id, lines, cols, words, capacity, status,
    TILES: tl.constexpr, SCAN: tl.constexpr, BLOCK_W: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """col and tile_id of lists given as bits, and -1 in what room is left.

    TILES: 0, there is no tile_id. 1, a partial block of line and column has tile line * cols +
    column. 2, it has the tile of its own place in `col`. SCAN: row_ptr is made here, every program
    adding up all counts, SCAN at a time.
    """
    line = tl.program_id(0).to(tl.int64)
    if SCAN:
        lane = tl.arange(0, SCAN)
        own = tl.zeros([SCAN], tl.int64)
        every = tl.zeros([SCAN], tl.int64)
        for first in range(0, lines, SCAN):
            other = first + lane
            count = tl.load(counts + other, mask=other < lines, other=0).to(tl.int64)
            every += count
            own += tl.where(other < line, count, 0)
        total = tl.sum(every, 0)
        carry = tl.sum(own, 0)
        used = tl.minimum(total, capacity)
        raise_status(status, 2, (total > capacity) & (line == 0))
        if line == 0:
            tl.store(row_ptr, tl.zeros([], tl.int64))
    else:
        carry = tl.load(row_ptr + line)
        used = tl.load(row_ptr + lines)
    if line < lines:
        if SCAN:
            stop = tl.minimum(carry + tl.load(counts + line), capacity)
            tl.store(row_ptr + line + 1, stop)
        else:
            stop = tl.load(row_ptr + line + 1)
        for start in range(0, words, BLOCK_W):
            column, entry, held, carry = places(listed + line * words, start, words, carry, BLOCK_W)
            keep = held & (entry < stop)
            tl.store(col + entry, column, mask=keep)
            if TILES > 0:
                whole = tl.load(full + line * words + (column >> 5), mask=keep, other=0)
                slot = entry if TILES == 2 else line * cols + column
                is_full = ((whole >> (column & 31)) & 1) == 1
                tl.store(tile_id + entry, tl.where(is_full, -1, slot).to(tl.int32), mask=keep)
    fill_spare(used, col, tile_id, capacity, TILES > 0, FILL)


@triton.jit
def turned_lists_kernel(
    turned, row_ptr, old_before, old_listed, old_tile_id, col, tile_id,
    lines, words, old_rows, old_cols, old_words, capacity,
    TILES: tl.constexpr, BLOCK_W: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """col and tile_id of transposed lists: a block has the tile that it had before.

    Here a line is (pattern, one of old_cols columns), and its columns are the old rows.
    """
    line = tl.program_id(0).to(tl.int64)
    if line < lines:
        carry = tl.load(row_ptr + line)
        stop = tl.load(row_ptr + line + 1)
        pattern = line // old_cols
        old_column = (line % old_cols).to(tl.int32)
        for start in range(0, words, BLOCK_W):
            row, entry, held, carry = places(turned + line * words, start, words, carry, BLOCK_W)
            keep = held & (entry < stop)
            tl.store(col + entry, row, mask=keep)
            if TILES:
                place = (pattern * old_rows + row) * old_words + (old_column >> 5)
                old_word = tl.load(old_listed + place, mask=keep, other=0)
                source = tl.load(old_before + place, mask=keep, other=0)
                source += below(old_word, old_column & 31)
                tile = tl.load(old_tile_id + source, mask=keep, other=-1)
                tl.store(tile_id + entry, tile, mask=keep)
    fill_spare(tl.load(row_ptr + lines), col, tile_id, capacity, TILES, FILL)
