"""Compiled passes of the canonical form; `maskplan.normal` says what they are for.

A block's `content` is -1 where it is full, -2 where it is empty and to be dropped, else the number
of its distinct tile. An empty content array says that every block is full.
"""

import numpy as np

from maskplan.jit import kernel
from maskplan.tile_pool import count_bits, intern, new_pool

_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(32)


@kernel
def distinct_tiles(tiles):
    """(number of each tile among the distinct ones int32 [T], the distinct tiles)."""
    pool = new_pool(tiles.shape[1], tiles.shape[2], max(tiles.shape[0], 1))
    codes = np.empty(tiles.shape[0], dtype=np.int32)
    for tile in range(tiles.shape[0]):
        pool, codes[tile] = intern(pool, tiles[tile])
    return codes, pool[0][: pool[3][0]]


@kernel
def tile_counts(tiles):
    """Set bits of each tile, int64 [T]."""
    counts = np.empty(tiles.shape[0], dtype=np.int64)
    for tile in range(tiles.shape[0]):
        counts[tile] = count_bits(tiles[tile].reshape(-1))
    return counts


@kernel
def classify(row_ptr, col, tile_id, codes, counts, axes):
    """Content of each block, int32 [blocks].

    `axes` = (rows, row_len, col_len, row_block, col_block).
    """
    rows, row_len, col_len, row_block, col_block = axes
    content = np.empty(col.size, dtype=np.int32)
    for line in range(row_ptr.size - 1):
        height = min(row_block, row_len - (line % rows) * row_block)
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            if tile_id[entry] < 0:
                content[entry] = -1
                continue
            code = codes[tile_id[entry]]
            width = min(col_block, col_len - np.int64(col[entry]) * col_block)
            if counts[code] == 0:
                content[entry] = -2
            elif counts[code] == height * width:
                content[entry] = -1
            else:
                content[entry] = code
    return content


@kernel
def _pattern_hash(row_ptr, col, content, rows, pattern):
    code = np.uint64(1)
    for line in range(pattern * rows, (pattern + 1) * rows):
        code = (code ^ np.uint64(line - pattern * rows)) * _MIX
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            kind = np.int64(-1)
            if content.size:
                kind = np.int64(content[entry])
            if kind != -2:
                word = (np.uint64(col[entry]) << _FOLD) ^ np.uint64(kind + 2)
                code = (code ^ word) * _MIX
    return code ^ (code >> _FOLD)


@kernel
def _next_kept(content, entry, stop):
    while entry < stop and content.size and content[entry] == -2:
        entry += 1
    return entry


@kernel
def _same_pattern(row_ptr, col, content, rows, one, other):
    for row in range(rows):
        a, a_stop = row_ptr[one * rows + row], row_ptr[one * rows + row + 1]
        b, b_stop = row_ptr[other * rows + row], row_ptr[other * rows + row + 1]
        while True:
            a = _next_kept(content, a, a_stop)
            b = _next_kept(content, b, b_stop)
            if a == a_stop or b == b_stop:
                break
            if col[a] != col[b] or (content.size and content[a] != content[b]):
                return False
            a += 1
            b += 1
        if a != a_stop or b != b_stop:
            return False
    return True


@kernel
def pattern_hashes(row_ptr, col, content, rows, order):
    """A 64-bit hash of each pattern of `order`; equal patterns have equal ones."""
    codes = np.empty(order.size, dtype=np.uint64)
    for place in range(order.size):
        codes[place] = _pattern_hash(row_ptr, col, content, rows, order[place])
    return codes


@kernel
def merge_patterns(row_ptr, col, content, rows, order, codes, by_code):
    """For each place in `order`, the first place that holds an equal pattern, int64 [places].

    `by_code` sorts the hashes `codes` stably.
    """
    merged = np.arange(order.size)
    start = 0
    for stop in range(1, order.size + 1):
        if stop < order.size and codes[by_code[stop]] == codes[by_code[start]]:
            continue
        for i in range(start + 1, stop):
            for j in range(start, i):
                one, other = by_code[j], by_code[i]
                if merged[one] == one and _same_pattern(
                    row_ptr, col, content, rows, order[one], order[other]
                ):
                    merged[other] = one
                    break
        start = stop
    return merged


@kernel
def emit(row_ptr, col, content, rows, patterns):
    """(row_ptr, col, content) of `patterns` in that order, empty blocks left out."""
    new_ptr = np.zeros(patterns.size * rows + 1, dtype=np.int64)
    total = 0
    for place in range(patterns.size):
        for row in range(rows):
            line = patterns[place] * rows + row
            if content.size:
                for entry in range(row_ptr[line], row_ptr[line + 1]):
                    total += content[entry] != -2
            else:
                total += row_ptr[line + 1] - row_ptr[line]
            new_ptr[place * rows + row + 1] = total
    new_col = np.empty(total, dtype=np.int32)
    new_content = np.empty(total if content.size else 0, dtype=np.int32)
    at = 0
    for place in range(patterns.size):
        for line in range(patterns[place] * rows, (patterns[place] + 1) * rows):
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                if content.size:
                    if content[entry] == -2:
                        continue
                    new_content[at] = content[entry]
                new_col[at] = col[entry]
                at += 1
    return new_ptr, new_col, new_content


@kernel
def number_by_use(content, tiles):
    """(content renumbered by first use, the tiles used in that order)."""
    number = np.full(tiles, -1, dtype=np.int32)
    used = np.empty(tiles, dtype=np.int64)
    count = 0
    tile_id = np.empty(content.size, dtype=np.int32)
    for entry in range(content.size):
        code = content[entry]
        if code < 0:
            tile_id[entry] = -1
            continue
        if number[code] < 0:
            number[code] = count
            used[count] = code
            count += 1
        tile_id[entry] = number[code]
    return tile_id, used[:count]
