"""Compiled reading of token lists by tiles; `maskplan.lower.token_tiles` says what they mean.

NOTE [Rows of bits]: the lists of one tile are read into a bit a key, 32 keys a word, words in the
outer and rows in the inner axis. Then a list's order, its -1 and its duplicates are gone, whatever
it was read from, and the union, the comparison of rows and the list of keys in ascending order are
loops over words. Words that no row touched are passed over, and only touched ones are cleared.
"""

import numpy as np

from maskplan.jit import kernel

_BLOCK = 128  # keys of a block, 4 words
_WORDS = 4


@kernel
def _popcount(word):
    """Set bits of an int64 in [0, 2^32)."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) & 0xFFFFFFFF) >> 24


@kernel
def _ascends(keys):
    """Whether each key is the one before it plus one; compared in their dtype, to vectorise."""
    number = keys.dtype.type
    wrong = number(0)
    for i in range(1, keys.size):
        wrong = number(wrong | number(number(keys[i] - keys[i - 1]) - number(1)))
    return wrong == 0


@kernel
def first_broken(lists, seqlen_k, start, stop, bits, touched):
    """The first list in [start, stop) that is not made of whole aligned blocks of 128 keys, or -1.

    The last block is whole with the keys there are. -1, duplicates and the order within a list do
    not matter; an index out of range breaks its list.

    Args:
        lists: int [b, heads, SQ, topk]; a list's number counts the first three, queries fastest.
        seqlen_k: SK.
        start: first list.
        stop: the list after the last.
        bits: uint32 [words of SK, 1], zeros; left so.
        touched: uint8 [words of SK] likewise.
    """
    heads, seqlen_q = lists.shape[1], lists.shape[2]
    for number in range(start, stop):
        b, rest = number // (heads * seqlen_q), number % (heads * seqlen_q)
        keys = lists[b, rest // seqlen_q, rest % seqlen_q]
        slot, scattered, inside = 0, False, True
        while slot < keys.size and inside:
            key = np.int64(keys[slot])
            if key == -1:
                slot += 1
                continue
            inside = 0 <= key < seqlen_k
            width = min(_BLOCK, seqlen_k - key)
            last = slot + width - 1
            if (
                inside
                and key % _BLOCK == 0
                and last < keys.size
                and keys[last] - key == width - 1
                and _ascends(keys[slot : last + 1])
            ):
                slot += width
                for word in range(key >> 5, (key + width + 31) >> 5):
                    touched[word] = 1
                    bits[word, 0] = np.uint32(_mask(word, seqlen_k))
            elif inside:
                touched[key >> 5] = 1
                bits[key >> 5, 0] |= np.uint32(np.int64(1) << (key & 31))
                scattered = True
                slot += 1
        whole = inside and (not scattered or _is_whole(bits, touched, 0, seqlen_k))
        _clear(bits, touched)
        if not whole:
            return number
    return np.int64(-1)


@kernel
def _mask(word, seqlen_k):
    """The bits of a word that are keys."""
    return (np.int64(1) << min(32, seqlen_k - 32 * word)) - 1


@kernel
def _is_whole(bits, touched, row, seqlen_k):
    """Whether a row has all or none of each block."""
    for first in range(0, touched.size, _WORDS):
        end = min(first + _WORDS, touched.size)
        some, every = False, True
        for word in range(first, end):
            found = np.int64(bits[word, row])
            some |= found != 0
            every &= found == _mask(word, seqlen_k)
        if some and not every:
            return False
    return True


@kernel
def _clear(bits, touched):
    for word in range(touched.size):
        if touched[word]:
            touched[word] = 0
            for row in range(bits.shape[1]):
                bits[word, row] = 0


@kernel
def _read_lists(lists, place, shape, bits, touched):
    """Set the bits of a tile's rows; (head in group, token, slot) of the first bad index, or -1.

    Args:
        lists: int [b, h, G', SQ, topk].
        place: (b, h, first token).
        shape: (SK, tokens of this tile).
        bits: uint32 [words of SK, rows], row = token * G' + head in group.
        touched: uint8 [words of SK].
    """
    b, h, first = place
    seqlen_k, tokens = shape
    group = lists.shape[2]
    for token in range(tokens):
        for g in range(group):
            keys = lists[b, h, g, first + token]
            row = token * group + g
            for slot in range(keys.size):
                key = np.int64(keys[slot])
                if key == -1:
                    continue
                if key < 0 or key >= seqlen_k:
                    return g, first + token, slot
                touched[key >> 5] = 1
                bits[key >> 5, row] |= np.uint32(np.int64(1) << (key & 31))
    return np.int64(-1), np.int64(-1), np.int64(-1)


@kernel
def _read_blocks(plan, place, shape, bits, touched):
    """`_read_lists` of a plan in blocks of (tokens of a tile, 128).

    Args:
        plan: (pattern_id int32 [b, h * G'], row_ptr, col, tile_id, tiles); tile_id is empty where
            all blocks are full.
        place: (b, h, first token).
        shape: (SK, tokens of this tile).
        bits: as there.
        touched: as there.
    """
    b, h, first = place
    seqlen_k, tokens = shape
    pattern_id, row_ptr, col, tile_id, tiles, lines = plan
    per_tile = tiles.shape[1]
    group = bits.shape[1] // per_tile
    for g in range(group):
        line = np.int64(pattern_id[b, h * group + g]) * lines + first // per_tile
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            tile = np.int64(tile_id[entry]) if tile_id.size else np.int64(-1)
            for w in range(_WORDS):
                word = np.int64(col[entry]) * _WORDS + w
                if word >= touched.size:
                    break
                touched[word] = 1
                for token in range(tokens):
                    found = _mask(word, seqlen_k)
                    if tile >= 0:
                        found = np.int64(tiles[tile, token, w]) & 0xFFFFFFFF
                    bits[word, token * group + g] = np.uint32(found)


@kernel
def _choose(bits, touched, rows, representative, chosen):
    """Fill the tile's list as bits: the union of its rows, or the first row's.

    Returns:
        (keys chosen, keys of all rows, keys of them that are chosen, whether the rows are alike).
    """
    count, wanted, kept, alike = 0, 0, 0, True
    for word in range(touched.size):
        chosen[word] = 0
        if not touched[word]:
            continue
        union = np.int64(0)
        for row in range(rows):
            union |= np.int64(bits[word, row])
        first = np.int64(bits[word, 0])
        taken = first if representative else union
        chosen[word] = np.uint32(taken)
        count += _popcount(taken)
        for row in range(rows):
            own = np.int64(bits[word, row])
            alike &= own == first
            wanted += _popcount(own)
            kept += _popcount(own & taken)
    return count, wanted, kept, alike


@kernel
def _place(tile, heads, tiles, per_tile):
    """(batch, head, first token) of a tile's number."""
    return tile // (heads * tiles), tile // tiles % heads, tile % tiles * per_tile


@kernel
def measure(lists, plan, geometry, start, stop, scratch, report, bad):
    """Measure tiles [start, stop), counted over (b, h, tile) with tiles fastest.

    Args:
        lists: int [b, h, G', SQ, topk]; of no elements where `plan` is read.
        plan: see `_read_blocks`; of no use where `lists` is read.
        geometry: (SQ, SK, tokens of a tile, h, tiles of a head, from_plan, representative).
        start: first tile.
        stop: the tile after the last.
        scratch: (bits, touched, chosen), zeros; `bits` and `touched` are left so.
        report: int64 [tiles, 4], filled with what `_choose` returns.
        bad: int64 [5], filled with (b, h, head in group, token, slot) of an index out of range.
    """
    bits, touched, chosen = scratch
    seqlen_q, seqlen_k, per_tile, heads, tiles, from_plan, representative = geometry
    group = bits.shape[1] // per_tile
    for tile in range(start, stop):
        b, h, first = _place(tile, heads, tiles, per_tile)
        tokens = min(per_tile, seqlen_q - first)
        if from_plan:
            _read_blocks(plan, (b, h, first), (seqlen_k, tokens), bits, touched)
        else:
            g, token, slot = _read_lists(lists, (b, h, first), (seqlen_k, tokens), bits, touched)
            if g >= 0:
                bad[0], bad[1], bad[2], bad[3], bad[4] = b, h, g, token, slot
                return
        count, wanted, kept, alike = _choose(bits, touched, tokens * group, representative, chosen)
        report[tile, 0], report[tile, 1], report[tile, 2] = count, wanted, kept
        report[tile, 3] = alike
        _clear(bits, touched)


@kernel
def fill(lists, plan, geometry, start, stop, scratch, table, row_bits):
    """Write the lists of tiles [start, stop), which `measure` found good.

    Args:
        lists: as in `measure`.
        plan: likewise.
        geometry: likewise.
        start: likewise.
        stop: likewise.
        scratch: likewise.
        table: int32 [tiles, L], -1 everywhere; filled with the chosen keys, ascending.
        row_bits: int32 [tiles, rows of a tile, words of L], zeros, or of no elements; bit i of a
            row is whether it sees entry i. A token's bits are written for each of its rows.
    """
    bits, touched, chosen = scratch
    seqlen_q, seqlen_k, per_tile, heads, tiles, from_plan, representative = geometry
    group = bits.shape[1] // per_tile
    for tile in range(start, stop):
        b, h, first = _place(tile, heads, tiles, per_tile)
        tokens = min(per_tile, seqlen_q - first)
        if from_plan:
            _read_blocks(plan, (b, h, first), (seqlen_k, tokens), bits, touched)
        else:
            _read_lists(lists, (b, h, first), (seqlen_k, tokens), bits, touched)
        _choose(bits, touched, tokens * group, representative, chosen)
        slot = 0
        for word in range(touched.size):
            taken = np.int64(chosen[word])
            if not taken:
                continue
            for bit in range(32):
                if not taken >> bit & 1:
                    continue
                table[tile, slot] = 32 * word + bit
                if row_bits.size:
                    _spread(bits[word], bit, tokens * group, slot, row_bits[tile])
                slot += 1
        _clear(bits, touched)


@kernel
def _spread(own, bit, rows, slot, row_bits):
    """Bit `slot` of the rows of a tile, from bit `bit` of the lists' words `own` [lists]."""
    copies = row_bits.shape[0] // own.size
    mark = np.int32(np.int64(1) << (slot & 31))
    for row in range(rows):
        if np.int64(own[row]) >> bit & 1:
            for copy in range(copies):
                row_bits[row * copies + copy, slot >> 5] |= mark
