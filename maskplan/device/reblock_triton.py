"""Triton kernels that join and cut blocks of a plan, and walk several rows at once."""

import triton
import triton.language as tl

from maskplan.device.bits_triton import below, popcount


@triton.jit
def join_kernel(
    listed, full, new_listed, new_full, counts,
    rows, cols, words, new_rows, new_words, down, across,
    FULL: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Bits of blocks that are `down` x `across` old ones, and how many each new line lists.

    A new block is listed if one of its parts is, and full if all parts that there are are full.
    """
    line = tl.program_id(0).to(tl.int64)
    pattern = line // new_rows
    first_row = (line % new_rows) * down
    bit = tl.arange(0, 32)
    total = tl.zeros([], tl.int32)
    for start in range(0, new_words, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)
        column = at[:, None] * 32 + bit[None, :]
        some = tl.zeros([BLOCK_W, 32], tl.int32)
        every = tl.full([BLOCK_W, 32], 1, tl.int32)
        for i in range(down):
            row = first_row + i
            for j in range(across):
                part = column * across + j
                inside = (row < rows) & ((part >> 5) < words)
                place = (pattern * rows + row) * words + (part >> 5)
                some |= (tl.load(listed + place, mask=inside, other=0) >> (part & 31)) & 1
                if FULL:
                    whole = (tl.load(full + place, mask=inside, other=0) >> (part & 31)) & 1
                    every &= tl.where((row < rows) & (part < cols), whole, 1)
        word = tl.sum(some << bit[None, :], 1)
        tl.store(new_listed + line * new_words + at, word, mask=at < new_words)
        total += tl.sum(popcount(word), 0)
        if FULL:
            word = tl.sum((every & some) << bit[None, :], 1)
            tl.store(new_full + line * new_words + at, word, mask=at < new_words)
    tl.store(counts + line, total)


@triton.jit
def words_at(
    old_listed, old_before, old_tile_id, old_tiles, top, column, at, size,
    old_line, cols, words, row_len, col_len, new_col, new_words,
    ROW: tl.constexpr, COL: tl.constexpr, OLD_WORDS: tl.constexpr, TILES: tl.constexpr,
    BY_WORD: tl.constexpr,
):  # fmt: skip
    """(words `at` of a new block's tile, what they are if the block is full), from old blocks.

    BY_WORD says that words of the new blocks are words of old ones.
    """
    bit = tl.arange(0, 32)
    token = top + at // new_words
    inside = (at < size) & (token < row_len)
    line = old_line + token // ROW
    i = token % ROW
    first = (at % new_words) * 32  # key of the word within the new block
    key = column * new_col + first
    left = tl.minimum(new_col - first, col_len - key)  # keys of the word
    most = tl.where(left >= 32, -1, (1 << tl.minimum(tl.maximum(left, 0), 31)) - 1)
    most = tl.where(inside, most, 0)
    if BY_WORD:
        part = key // COL
        place = line * words + (part >> 5)
        seen = inside & (part < cols)
        listed = tl.load(old_listed + place, mask=seen, other=0)
        seen = seen & (((listed >> (part & 31)) & 1) == 1)
        value = most
        if TILES:
            source = tl.load(old_before + place, mask=seen, other=0)
            source += below(listed, part & 31)
            old = tl.load(old_tile_id + source, mask=seen, other=-1).to(tl.int64)
            held = (old * ROW + i) * OLD_WORDS + (key % COL) // 32
            bits = tl.load(old_tiles + held, mask=seen & (old >= 0), other=0)
            value = tl.where(old >= 0, bits, value)
        value = tl.where(seen, value, 0)
    else:
        key = key[:, None] + bit[None, :]
        part = key // COL
        place = line[:, None] * words + (part >> 5)
        seen = inside[:, None] & (bit[None, :] < left[:, None])
        listed = tl.load(old_listed + place, mask=seen, other=0)
        seen = seen & (((listed >> (part & 31)) & 1) == 1)
        one = tl.where(seen, 1, 0)
        if TILES:
            source = tl.load(old_before + place, mask=seen, other=0)
            source += below(listed, part & 31)
            old = tl.load(old_tile_id + source, mask=seen, other=-1).to(tl.int64)
            at_bit = key - part * COL
            held = (old * ROW + i[:, None]) * OLD_WORDS + (at_bit >> 5)
            bits = tl.load(old_tiles + held, mask=seen & (old >= 0), other=0)
            one = tl.where(seen & (old >= 0), (bits >> (at_bit & 31)) & 1, one)
        value = tl.sum(one << bit[None, :], 1)
    return value, most


@triton.jit
def tiles_kernel(
    row_ptr, col, tile_id, tiles, old_listed, old_before, old_tile_id, old_tiles,
    rows, cols, words, new_rows, row_len, col_len, new_row, new_col, new_words,
    ROW: tl.constexpr, COL: tl.constexpr, OLD_WORDS: tl.constexpr, TILES: tl.constexpr,
    BY_WORD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Tiles of the partial blocks of one new line, from old blocks of ROW x COL tokens."""
    line = tl.program_id(0).to(tl.int64)
    old_line = line // new_rows * rows
    size = new_row * new_words
    top = (line % new_rows) * new_row
    first = tl.load(row_ptr + line) + tl.program_id(1)
    for entry in range(first, tl.load(row_ptr + line + 1), tl.num_programs(1)):
        tile = tl.load(tile_id + entry).to(tl.int64)
        if tile >= 0:
            column = tl.load(col + entry)
            for start in range(0, size, CHUNK):
                at = start + tl.arange(0, CHUNK)
                value, _ = words_at(
                    old_listed, old_before, old_tile_id, old_tiles, top, column, at, size,
                    old_line, cols, words, row_len, col_len, new_col, new_words,
                    ROW, COL, OLD_WORDS, TILES, BY_WORD,
                )  # fmt: skip
                tl.store(tiles + tile * size + at, value, mask=at < size)


@triton.jit
def cut_kernel(
    listed, full, old_listed, old_full, old_before, old_tile_id, old_tiles,
    rows, cols, words, new_rows, new_cols, row_len, col_len, new_row, new_col, new_words,
    down, across,
    ROW: tl.constexpr, COL: tl.constexpr, OLD_WORDS: tl.constexpr, TILES: tl.constexpr,
    BY_WORD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One word of the bits of a new line's blocks, each in parts of at most down x across old ones.

    A block of listed and of missing or partial parts is what its bits say.
    """
    line = tl.program_id(0).to(tl.int64)
    old_line = line // new_rows * rows
    top = (line % new_rows) * new_row
    bit = tl.arange(0, 32)
    column = tl.program_id(1) * 32 + bit
    some = tl.zeros([32], tl.int32)
    every = tl.where(column < new_cols, 1, 0)
    last_row = (tl.minimum(top + new_row, row_len) - 1) // ROW
    last_part = (tl.minimum(column * new_col + new_col, col_len) - 1) // COL
    for i in range(down):
        row = top // ROW + i
        for j in range(across):
            part = column * new_col // COL + j
            there = (column < new_cols) & (row <= last_row) & (part <= last_part)
            place = (old_line + row) * words + (part >> 5)
            some |= (tl.load(old_listed + place, mask=there, other=0) >> (part & 31)) & 1
            whole = (tl.load(old_full + place, mask=there, other=0) >> (part & 31)) & 1
            every &= tl.where(there, whole, 1)
    found = tl.sum((some & every) << bit, 0)
    held = tl.sum(some << bit, 0)
    if TILES:
        unknown = held & ~found
        held = found
        size = new_row * new_words
        for j in range(32):
            if (unknown >> j) & 1:
                has_any, has_all = 0, 1
                for start in range(0, size, CHUNK):
                    at = start + tl.arange(0, CHUNK)
                    value, most = words_at(
                        old_listed, old_before, old_tile_id, old_tiles, top,
                        tl.program_id(1) * 32 + j, at, size, old_line, cols, words, row_len,
                        col_len, new_col, new_words, ROW, COL, OLD_WORDS, TILES, BY_WORD,
                    )  # fmt: skip
                    has_any |= tl.max(tl.where(value != 0, 1, 0), 0)
                    has_all &= tl.min(tl.where(value == most, 1, 0), 0)
                held |= has_any << j
                found |= (has_any & has_all) << j
    at = line * tl.num_programs(1) + tl.program_id(1)
    tl.store(listed + at, held)
    tl.store(full + at, found)


@triton.jit
def parts_kernel(
    row_ptr, col, ids, ranks, listed, before, tile_id, old_ptr,
    lines, a_pattern, rows, words, parts, capacity,
    TURNED: tl.constexpr, TILES: tl.constexpr, RANKS: tl.constexpr, SPT: tl.constexpr,
    BLOCK: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """For each entry of a walk and each of its parts: the tile, and the rank in the part's own row.

    A line is (pattern, group of rows) and col the column, or TURNED the other way round. A part
    that skips the block has tile -2 and rank -1; so has what room is left.
    """
    line = tl.program_id(0).to(tl.int64)
    if line < lines:
        pattern = line // a_pattern
        own = (line % a_pattern).to(tl.int32)
        start = tl.load(row_ptr + line)
        stop = tl.load(row_ptr + line + 1)
        for first in range(start, stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            inside = entry < stop
            other = tl.load(col + entry, mask=inside, other=0)
            for part in range(parts):
                if TURNED:
                    row = other * parts + part
                    column = tl.zeros([BLOCK], tl.int32) + own
                else:
                    row = tl.zeros([BLOCK], tl.int32) + (own * parts + part)
                    column = other
                old_line = pattern * rows + row
                place = old_line * words + (column >> 5)
                seen = inside & (row < rows)
                word = tl.load(listed + place, mask=seen, other=0)
                seen = seen & (((word >> (column & 31)) & 1) == 1)
                source = tl.load(before + place, mask=seen, other=0) + below(word, column & 31)
                tile = tl.full([BLOCK], -1, tl.int32)
                if TILES:
                    tile = tl.load(tile_id + source, mask=seen, other=-1)
                out = entry * parts + part
                tl.store(ids + out, tl.where(seen, tile, -2), mask=inside)
                if RANKS:
                    row_start = tl.load(old_ptr + old_line, mask=seen, other=0)
                    rank = (source - row_start).to(tl.int32)
                    if SPT:
                        row_stop = tl.load(old_ptr + old_line + 1, mask=seen, other=0)
                        rank = (row_stop - row_start).to(tl.int32) - 1 - rank
                    tl.store(ranks + out, tl.where(seen, rank, -1), mask=inside)
    lane = tl.arange(0, FILL)
    used = tl.load(row_ptr + lines) * parts
    step = tl.num_programs(0).to(tl.int64) * FILL
    for start in range(used + line * FILL, capacity * parts, step):
        spare = start + lane
        tl.store(ids + spare, tl.full([FILL], -2, tl.int32), mask=spare < capacity * parts)
        if RANKS:
            tl.store(ranks + spare, tl.full([FILL], -1, tl.int32), mask=spare < capacity * parts)
