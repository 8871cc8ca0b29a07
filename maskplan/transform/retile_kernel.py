"""Compiled re-tiling: the same pairs, seen through a window, in blocks of another size.

NOTE [Phase before bits]: re-tiling a regular mask makes millions of blocks and a handful of
distinct ones. A new block is a list of children: old blocks, each at an offset, each full or with a
tile. Equal lists make equal bits, so the list is looked up first and bits are made once a list. A
new block with many children (a token-level plan) is rarely met twice: its bits are made directly.

An `axes` array is int64 [rows, row_len, col_len, row_block, col_block]; `spans` is int64
[old columns, 2], the first and the last new column that each old one reaches (last < first: none).
"""

import numpy as np

from maskplan.jit import kernel
from maskplan.tile_pool import intern, new_pool

FULL = -1
_MOST_CHILDREN_LOOKED_UP = 16
_KEY_WORDS = 1 + 2 * _MOST_CHILDREN_LOOKED_UP
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(31)
_HALF = np.int64(1) << np.int64(32)


@kernel
def count_entries(row_ptr, col, spans, old, window, new):
    """(row_ptr of the new lists, the most children any new row has)."""
    patterns = (row_ptr.size - 1) // old[0]
    new_cols = -(-new[2] // new[4])
    seen = np.full(new_cols, -1, dtype=np.int64)
    new_ptr = np.zeros(patterns * new[0] + 1, dtype=np.int64)
    most = 0
    for line in range(patterns * new[0]):
        pattern, row = line // new[0], line % new[0]
        first = window[0] + row * new[3]
        last = window[0] + min((row + 1) * new[3], new[1]) - 1
        found, children = 0, 0
        for old_row in range(first // old[3], last // old[3] + 1):
            old_line = pattern * old[0] + old_row
            for entry in range(row_ptr[old_line], row_ptr[old_line + 1]):
                column = col[entry]
                for place in range(spans[column, 0], spans[column, 1] + 1):
                    children += 1
                    if seen[place] != line:
                        seen[place] = line
                        found += 1
        new_ptr[line + 1] = new_ptr[line] + found
        most = max(most, children)
    return new_ptr, most


@kernel
def _ascending(counts, columns, found):
    """Put columns[:found], those with a count, in ascending order."""
    if found * 16 < counts.size:
        columns[:found].sort()
        return
    at = 0
    for column in range(counts.size):
        if counts[column]:
            columns[at] = column
            at += 1


@kernel
def _gather_children(row_ptr, col, spans, old, window, new, line, scratch):
    """Children of one new row, bucketed by new column in ascending order.

    `scratch` = (counts [new_cols] all 0, columns [new_cols], child_entry, child_row). Returns how
    many new columns there are; counts[columns[i]] then is where the children of columns[i] stop.
    """
    counts, columns, child_entry, child_row = scratch
    pattern, row = line // new[0], line % new[0]
    first = window[0] + row * new[3]
    last = window[0] + min((row + 1) * new[3], new[1]) - 1
    found = 0
    for fill in range(2):
        for old_row in range(first // old[3], last // old[3] + 1):
            old_line = pattern * old[0] + old_row
            for entry in range(row_ptr[old_line], row_ptr[old_line + 1]):
                column = col[entry]
                for place in range(spans[column, 0], spans[column, 1] + 1):
                    if fill:
                        child_entry[counts[place]] = entry
                        child_row[counts[place]] = old_row
                    elif counts[place] == 0:
                        columns[found] = place
                        found += 1
                    counts[place] += 1
        if fill == 0:
            _ascending(counts, columns, found)
            start = 0
            for i in range(found):
                size = counts[columns[i]]
                counts[columns[i]] = start
                start += size
    return found


@kernel
def _paint(scratch, height, width, top, left, tile, is_full, tile_width, tile_height):
    """OR a child whose corner lies at (top, left) of the new block into `scratch` [rows, words]."""
    row_from, row_to = max(top, 0), min(top + tile_height, height)
    col_from, col_to = max(left, 0), min(left + tile_width, width)
    if col_from >= col_to:
        return
    for word in range(col_from // 32, (col_to - 1) // 32 + 1):
        low, high = max(col_from - word * 32, 0), min(col_to - word * 32, 32)
        keep = np.uint64((np.int64(1) << np.int64(high)) - (np.int64(1) << np.int64(low)))
        if is_full:
            bits = np.int32(np.uint32(keep))
            for row in range(row_from, row_to):
                scratch[row, word] |= bits
            continue
        source = word * 32 - left
        index, shift = source // 32, np.uint64(source % 32)
        for row in range(row_from, row_to):
            value = np.uint64(0)
            if index >= 0:
                value = np.uint64(np.uint32(tile[row - top, index]))
            if index + 1 < tile.shape[1]:
                upper = np.uint64(np.uint32(tile[row - top, index + 1]))
                value |= upper << np.uint64(32)
            scratch[row, word] |= np.int32(np.uint32((value >> shift) & keep))


@kernel
def _key_hash(key, size):
    code = np.uint64(size)
    for i in range(size):
        code = (code ^ np.uint64(key[i])) * _MIX
        code ^= code >> _FOLD
    return code


@kernel
def _same_key(one, other, size):
    for i in range(size):
        if one[i] != other[i]:
            return False
    return True


@kernel
def _slot(slots, keys, sizes, key, size):
    """Slot that holds the number of `key`, or the free one (-1) where it belongs."""
    at = np.int64(_key_hash(key, size) & np.uint64(slots.size - 1))
    while slots[at] >= 0:
        number = slots[at]
        if sizes[number] == size and _same_key(keys[number], key, size):
            break
        at = (at + 1) & (slots.size - 1)
    return at


@kernel
def _with_key(table, key, size, tile):
    """`table` = (slots, keys, sizes, tiles, count) with `key` put in; grown once half full."""
    slots, keys, sizes, tiles, count = table
    number = count[0]
    if number == keys.shape[0]:
        more_keys = np.empty((2 * number, keys.shape[1]), dtype=np.int64)
        more_keys[:number] = keys
        more_sizes = np.empty(2 * number, dtype=np.int64)
        more_sizes[:number] = sizes
        more_tiles = np.empty(2 * number, dtype=np.int32)
        more_tiles[:number] = tiles
        keys, sizes, tiles = more_keys, more_sizes, more_tiles
        slots = np.full(4 * number, -1, dtype=np.int64)
        for known in range(number):
            slots[_slot(slots, keys, sizes, keys[known], sizes[known])] = known
    keys[number], sizes[number], tiles[number] = key, size, tile
    slots[_slot(slots, keys, sizes, key, size)] = number
    count[0] = number + 1
    return slots, keys, sizes, tiles, count


@kernel
def retile(row_ptr, col, spans, tile_id, tiles, old, window, new, new_ptr, most):
    """(col, tile_id, tiles) of the new lists; `tile_id` empty on input: every block is full.

    Blocks may come out empty, and tiles complete: the caller makes the result canonical.
    """
    words = -(-new[4] // 32)
    new_cols = -(-new[2] // new[4])
    lists = (
        np.zeros(new_cols, dtype=np.int64),
        np.empty(new_cols, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
    )
    counts, columns, child_entry, child_row = lists
    out_col = np.empty(new_ptr[-1], dtype=np.int32)
    out_tile = np.full(new_ptr[-1], FULL, dtype=np.int32)
    pool = new_pool(new[3], words, 16)
    scratch = np.zeros((new[3], words), dtype=np.int32)
    key = np.empty(_KEY_WORDS, dtype=np.int64)
    table = (
        np.full(128, -1, dtype=np.int64),
        np.empty((64, _KEY_WORDS), dtype=np.int64),
        np.empty(64, dtype=np.int64),
        np.empty(64, dtype=np.int32),
        np.zeros(1, dtype=np.int64),
    )
    slots, keys, sizes, key_tiles, _ = table
    for line in range(new_ptr.size - 1):
        found = _gather_children(row_ptr, col, spans, old, window, new, line, lists)
        row = line % new[0]
        height = min(new[3], new[1] - row * new[3])
        start = 0
        for i in range(found):
            place = columns[i]
            stop = counts[place]
            counts[place] = 0
            entry_out = new_ptr[line] + i
            out_col[entry_out] = place
            width = min(new[4], new[2] - place * new[4])
            origin_row = window[0] + row * new[3]
            origin_col = window[1] + place * new[4]
            covered = 0
            for child in range(start, stop):
                entry = child_entry[child]
                if tile_id.size and tile_id[entry] != FULL:
                    continue
                top = child_row[child] * old[3] - origin_row
                left = col[entry] * old[4] - origin_col
                covered += (min(top + old[3], height) - max(top, 0)) * (
                    min(left + old[4], width) - max(left, 0)
                )
            if covered == height * width:
                start = stop
                continue
            looked_up = stop - start <= _MOST_CHILDREN_LOOKED_UP
            size = 1 + 2 * (stop - start)
            if looked_up:
                key[0] = height * _HALF + width
                for child in range(start, stop):
                    entry = child_entry[child]
                    top = child_row[child] * old[3] - origin_row
                    left = col[entry] * old[4] - origin_col
                    key[1 + 2 * (child - start)] = top * _HALF + left
                    code = np.int64(FULL)
                    if tile_id.size:
                        code = np.int64(tile_id[entry])
                    key[2 + 2 * (child - start)] = code
                number = slots[_slot(slots, keys, sizes, key, size)]
                if number >= 0:
                    out_tile[entry_out] = key_tiles[number]
                    start = stop
                    continue
            scratch[:] = 0
            for child in range(start, stop):
                entry = child_entry[child]
                top = child_row[child] * old[3] - origin_row
                left = col[entry] * old[4] - origin_col
                is_full = tile_id.size == 0 or tile_id[entry] == FULL
                tile = tiles[0 if is_full else tile_id[entry]]
                _paint(scratch, height, width, top, left, tile, is_full, old[4], old[3])
            pool, number = intern(pool, scratch)
            out_tile[entry_out] = number
            if looked_up:
                table = _with_key(table, key, size, number)
                slots, keys, sizes, key_tiles, _ = table
            start = stop
    return out_col, out_tile, pool[0][: pool[3][0]]
