"""Compiled reading of plans and token tiles into `GatheredLists`."""

import numpy as np

from maskplan.jit import kernel


@kernel
def ones(word):
    """Set bits of an int64 in [0, 2^32)."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) & 0xFFFFFFFF) >> 24


@kernel
def _word(plan, entry, token, w, size):
    """Word `w` of the bits of a token in a block of `size` keys, as an int64 in [0, 2^32)."""
    tile_id, tiles = plan[2], plan[3]
    if tile_id.size and tile_id[entry] >= 0:
        return np.int64(tiles[tile_id[entry], token, w]) & 0xFFFFFFFF
    return (np.int64(1) << min(32, size - 32 * w)) - 1


@kernel
def _union(plan, entry, tokens, w, size):
    """The bits that some of the first `tokens` tokens of a block have in word `w`."""
    tile_id = plan[2]
    if not tile_id.size or tile_id[entry] < 0:
        return _word(plan, entry, 0, w, size)
    found = np.int64(0)
    for token in range(tokens):
        found |= _word(plan, entry, token, w, size)
    return found


@kernel
def measure_tiles(tiles, start, stop, found):
    """Fill found int64 [T, 2] of tiles [start, stop): keys that some row has, and set bits."""
    for tile in range(start, stop):
        union, kept = 0, 0
        for w in range(tiles.shape[2]):
            some = np.int64(0)
            for row in range(tiles.shape[1]):
                word = np.int64(tiles[tile, row, w]) & 0xFFFFFFFF
                some |= word
                kept += ones(word)
            union += ones(some)
        found[tile, 0], found[tile, 1] = union, kept


@kernel
def measure(plan, shape, start, stop, of_tiles, found):
    """Measure lines [start, stop), a line being (pattern, Q block) with Q blocks fastest.

    Args:
        plan: (row_ptr, col, tile_id, tiles) of a plan, `tile_id` of no elements for full blocks.
        shape: (SQ, SK, bq, bk, Q blocks).
        start: first line.
        stop: the line after the last.
        of_tiles: from `measure_tiles`.
        found: int64 [lines, 3], filled with (pairs of the listed blocks, keys that some token of
            the line selects, pairs selected).
    """
    row_ptr, col, tile_id, _ = plan
    seqlen_q, seqlen_k, bq, bk, blocks = shape
    for line in range(start, stop):
        tokens = min(bq, seqlen_q - line % blocks * bq)
        visited, union, kept = 0, 0, 0
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            size = min(bk, seqlen_k - np.int64(col[entry]) * bk)
            visited += tokens * size
            if tile_id.size and tile_id[entry] >= 0:
                union += of_tiles[tile_id[entry], 0]
                kept += of_tiles[tile_id[entry], 1]
            else:
                union += size
                kept += tokens * size
        found[line, 0], found[line, 1], found[line, 2] = visited, union, kept


@kernel
def count_by_token(plan, shape, start, stop, counts):
    """Fill counts int32 [patterns, SQ] of lines [start, stop): keys of each token."""
    row_ptr, col = plan[0], plan[1]
    seqlen_q, seqlen_k, bq, bk, blocks = shape
    for line in range(start, stop):
        first = line % blocks * bq
        for token in range(min(bq, seqlen_q - first)):
            total = 0
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                size = min(bk, seqlen_k - np.int64(col[entry]) * bk)
                for w in range((size + 31) // 32):
                    total += ones(_word(plan, entry, token, w, size))
            counts[line // blocks, first + token] = total


@kernel
def _put(word, first, keys, at):
    """Write `first` + the place of each set bit to keys[at:]; where the next one goes."""
    while word:
        keys[at] = first + ones((word & -word) - 1)
        word &= word - 1
        at += 1
    return at


@kernel
def fill_by_token(plan, shape, start, stop, starts, keys):
    """Write the keys of each token of lines [start, stop), from starts[pattern, token] on."""
    row_ptr, col = plan[0], plan[1]
    seqlen_q, seqlen_k, bq, bk, blocks = shape
    for line in range(start, stop):
        first = line % blocks * bq
        for token in range(min(bq, seqlen_q - first)):
            at = starts[line // blocks, first + token]
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                base = np.int64(col[entry]) * bk
                size = min(bk, seqlen_k - base)
                for w in range((size + 31) // 32):
                    at = _put(_word(plan, entry, token, w, size), base + 32 * w, keys, at)


@kernel
def count_by_block(plan, shape, start, stop, counts):
    """Fill counts int32 [lines] of lines [start, stop): keys that some token selects."""
    row_ptr, col = plan[0], plan[1]
    seqlen_q, seqlen_k, bq, bk, blocks = shape
    for line in range(start, stop):
        tokens, total = min(bq, seqlen_q - line % blocks * bq), 0
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            size = min(bk, seqlen_k - np.int64(col[entry]) * bk)
            for w in range((size + 31) // 32):
                total += ones(_union(plan, entry, tokens, w, size))
        counts[line] = total


@kernel
def fill_by_block(plan, shape, start, stop, starts, keys, bits):
    """Write the union of each line's keys, from starts[line] on, and who selects which.

    Args:
        plan: as in `measure`.
        shape: likewise.
        start: likewise.
        stop: likewise.
        starts: int64 [lines].
        keys: int32, flat.
        bits: int32 [lines, bq, words], zeros.
    """
    row_ptr, col = plan[0], plan[1]
    seqlen_q, seqlen_k, bq, bk, blocks = shape
    for line in range(start, stop):
        tokens, at = min(bq, seqlen_q - line % blocks * bq), starts[line]
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            base = np.int64(col[entry]) * bk
            size = min(bk, seqlen_k - base)
            for w in range((size + 31) // 32):
                union = _union(plan, entry, tokens, w, size)
                after = _put(union, base + 32 * w, keys, at)
                for token in range(tokens):
                    own = _word(plan, entry, token, w, size) if bits.size else np.int64(0)
                    for slot in range(at, after):
                        if own >> (keys[slot] - base - 32 * w) & 1:
                            place = slot - starts[line]
                            mark = np.int32(np.int64(1) << (place & 31))
                            bits[line, token, place >> 5] |= mark
                at = after


@kernel
def count_of_rows(bits, tokens, lists, shape, start, stop, counts):
    """Fill counts int32 [lists of heads, SQ] with the bits that each row of tiles has.

    Args:
        bits: int32 [lists, tiles, tokens * lists of a token, words].
        tokens: query tokens of a tile.
        lists: lists of a token.
        shape: (SQ, tiles of a list).
        start: first tile, over (list, tile).
        stop: the tile after the last.
        counts: row (list * lists of a token + number of the token's list).
    """
    seqlen_q, tiles = shape
    for tile in range(start, stop):
        of, m = tile // tiles, tile % tiles
        for row in range(min(tokens, seqlen_q - m * tokens) * lists):
            total = 0
            for w in range(bits.shape[3]):
                total += ones(np.int64(bits[of, m, row, w]) & 0xFFFFFFFF)
            counts[of * lists + row % lists, m * tokens + row // lists] = total


@kernel
def fill_of_rows(bits, table, tokens, lists, shape, start, stop, starts, keys):
    """Write the keys of each row of tiles [start, stop), from starts[list of a head, token] on.

    Args:
        bits: as in `count_of_rows`.
        table: int32 [lists, tiles, 32 * words], the keys of each tile.
        tokens: likewise.
        lists: likewise.
        shape: likewise.
        start: likewise.
        stop: likewise.
        starts: int64, as counts there.
        keys: int32, flat.
    """
    seqlen_q, tiles = shape
    for tile in range(start, stop):
        of, m = tile // tiles, tile % tiles
        for row in range(min(tokens, seqlen_q - m * tokens) * lists):
            at = starts[of * lists + row % lists, m * tokens + row // lists]
            for w in range(bits.shape[3]):
                after = _put(np.int64(bits[of, m, row, w]) & 0xFFFFFFFF, 32 * w, keys, at)
                for slot in range(at, after):
                    keys[slot] = table[of, m, keys[slot]]
                at = after
