"""Compiled band: the kept keys of one Q block as bits, and the blocks they make.

A band is the tuple (bits, whole, present, summary, shape). `bits` int32 [L * W] holds L lists of W
words, one bit a key. `present` int32 has a bit for each KV block with a bit set, `whole` for each
that a band of one list keeps completely, whatever its bits say. `summary` has a bit for each word
of `present` or `whole` that is not 0, so that a band with few blocks is read without looking at all
of them. `shape` int64 = SK, bk, L, W. Everything is 0 between Q blocks: emitting clears it.
"""

import numpy as np

from maskplan.build.bit_rows_kernel import reserve
from maskplan.jit import kernel
from maskplan.tile_pool import count_bits, intern

_ONES = np.int64(0xFFFFFFFF)
# Bit number of a power of two, by the top five bits of its product with a de Bruijn sequence.
_DE_BRUIJN = np.int64(0x077CB531)
_BIT_NUMBERS = np.zeros(32, dtype=np.int64)
for _bit in range(32):
    _BIT_NUMBERS[((1 << _bit) * 0x077CB531 & 0xFFFFFFFF) >> 27] = _bit


@kernel
def new_band(seqlen_k, bk, lists):
    """An empty band of `lists` lists of keys."""
    words = (seqlen_k + 31) // 32
    blocks = (seqlen_k + bk - 1) // bk
    return (
        np.zeros(lists * words, dtype=np.int32),
        np.zeros((blocks + 31) // 32, dtype=np.int32),
        np.zeros((blocks + 31) // 32, dtype=np.int32),
        np.zeros((blocks + 1023) // 1024, dtype=np.int32),
        np.array([seqlen_k, bk, lists, words], dtype=np.int64),
    )


@kernel
def mark(which, summary, block):
    """Set a KV block's bit in `present` or `whole`."""
    word = block >> 5
    which[word] |= np.int32(np.int64(1) << (block & 31))
    summary[word >> 5] |= np.int32(np.int64(1) << (word & 31))


@kernel
def mark_all(band):
    """Note that every KV block may have a key."""
    _, _, present, summary, shape = band
    for block in range((shape[0] + shape[1] - 1) // shape[1]):
        mark(present, summary, block)


@kernel
def _take_row(bits, base, left, width, flat, start, words):
    """Move bits [left, left + width) of the list at bits[base] to flat[start]; whether any was set.

    The list is left with 0 there. Blocks need not start on a word.
    """
    shift = left & 31
    found_any = False
    for word in range(words):
        size = min(32, width - 32 * word)
        if size <= 0:
            flat[start + word] = 0
            continue
        at = base + (left >> 5) + word
        mask = (np.int64(1) << size) - 1
        pair = np.int64(bits[at]) & _ONES
        crosses = shift + size > 32
        if crosses:
            pair |= (np.int64(bits[at + 1]) & _ONES) << 32
        found = (pair >> shift) & mask
        flat[start + word] = np.int32(found)
        if found:
            pair &= ~(mask << shift)
            bits[at] = np.int32(pair)
            if crosses:
                bits[at + 1] = np.int32(pair >> 32)
            found_any = True
    return found_any


@kernel
def _take_whole_words(bits, base, stride, lists, flat, words):
    """As `_take_row` for each list, where the block starts on a word and fills its words.

    All in one loop over flat arrays: a slice for each row counts references, at the price of
    several rows.
    """
    found = np.int32(0)
    for row in range(lists):
        at, start = base + row * stride, row * words
        for word in range(words):
            value = bits[at + word]
            flat[start + word] = value
            bits[at + word] = 0
            found |= value
    return found != 0


@kernel
def _take_block(bits, lists, stride, left, width, height, flat, words):
    """Move one block of the band to a flat tile; returns its kept pairs. One list serves all rows.

    Args:
        stride: words of a list.
        words: words of a row of the tile.
    """
    taken = min(lists, height)
    if left & 31 == 0 and width == 32 * words:
        found = _take_whole_words(bits, left >> 5, stride, taken, flat, words)
    else:
        found = False
        for row in range(taken):
            found |= _take_row(bits, row * stride, left, width, flat, row * words, words)
    if not found:
        return np.int64(0)
    for at in range(taken * words, flat.size):
        flat[at] = flat[at % words] if lists == 1 and at < height * words else 0
    return count_bits(flat)


@kernel
def _bit_number(power):
    return _BIT_NUMBERS[((power * _DE_BRUIJN) & _ONES) >> 27]


@kernel
def _list_whole(blocks, first, col, content, total):
    """Append full blocks `first` + each set bit of `blocks`; returns the new total."""
    while blocks:
        lowest = blocks & -blocks
        blocks ^= lowest
        col[total] = first + _bit_number(lowest)
        content[total] = -1
        total += 1
    return total


@kernel
def emit(band, height, tile, pool, col, content, total):
    """Append the blocks of a Q block of `height` queries, and clear the band.

    Args:
        band: filled.
        height: queries in range.
        tile: int32 [bq, words] scratch.
        pool: tile pool.
        col: int32, `content` int32: blocks so far, of which `total` count.

    Returns:
        (pool, col, content, total).
    """
    bits, whole, present, summary, shape = band
    seqlen_k, bk, lists, stride = shape
    flat, words = tile.reshape(-1), tile.shape[1]
    for upper in range(summary.size):
        if summary[upper] == 0:
            continue
        for word in range(32 * upper, min(32 * upper + 32, present.size)):
            left_over = np.int64(present[word] | whole[word]) & _ONES
            if left_over == 0:
                continue
            col, content = reserve(col, content, total + 32)
            if present[word] == 0:
                total = _list_whole(left_over, 32 * word, col, content, total)
                whole[word] = 0
                continue
            partial, complete = np.int64(present[word]), np.int64(whole[word])
            while left_over:
                lowest = left_over & -left_over
                left_over ^= lowest
                block = 32 * word + _bit_number(lowest)
                col[total] = block
                content[total] = -1
                if partial & lowest:
                    left = block * bk
                    width = min(bk, seqlen_k - left)
                    kept = _take_block(bits, lists, stride, left, width, height, flat, words)
                    if complete & lowest == 0 and kept < height * width:
                        if kept == 0:
                            continue
                        pool, content[total] = intern(pool, tile)
                total += 1
            present[word] = whole[word] = 0
        summary[upper] = 0
    return pool, col, content, total
