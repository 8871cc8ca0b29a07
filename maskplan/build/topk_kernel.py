"""Compiled reading of top-k lists; `maskplan.build.topk` says what they mean.

NOTE [Runs]: lists made from whole blocks hold bk consecutive keys that start on a multiple of bk.
Such a stretch is recognised by a comparison that vectorises, and sets whole words at once; all
other keys are set one by one. Both leave the same bits, so the order of a list decides its speed
and nothing else.
"""

import numpy as np

from maskplan.build.band_kernel import emit, mark
from maskplan.build.bit_rows_kernel import set_bits
from maskplan.jit import kernel


@kernel
def _is_run(keys):
    """Whether the keys ascend by one, given that the first and the last are width - 1 apart.

    Indexing a slice from 0, and staying in the dtype of the keys, is what lets LLVM vectorise it.
    """
    number = keys.dtype.type
    wrong = number(0)
    for i in range(1, keys.size):
        wrong = number(wrong | number(number(keys[i] - keys[i - 1]) - number(1)))
    return wrong == 0


@kernel
def _read_list(keys, origin, unit_is_block, shift, bits, base, whole, present, summary, shape):
    """Put one list of keys into a band at bits[base]; returns the first bad slot, or -1.

    The band's arrays come one by one: unpacking a tuple counts references, which costs more here
    than reading a block.

    Args:
        keys: the lanes that hold.
        origin: what is taken from each index.
        unit_is_block: indices are KV blocks, not tokens.
        shift: log2 of bk, or -1 where bk is no power of two.
    """
    seqlen_k, bk, lists = shape[0], shape[1], shape[2]
    limit = (seqlen_k + bk - 1) // bk if unit_is_block else seqlen_k
    slot = 0
    while slot < keys.size:
        given = np.int64(keys[slot])
        key = given - origin
        if given == -1:
            slot += 1
        elif key < 0 or key >= limit:
            return slot
        elif unit_is_block:
            if lists == 1:
                mark(whole, summary, key)
            else:
                set_bits(bits, base, key * bk, min((key + 1) * bk, seqlen_k))
                mark(present, summary, key)
            slot += 1
        else:
            block = key >> shift if shift >= 0 else key // bk
            width = min(bk, seqlen_k - key)
            last = slot + width - 1
            if (
                key == block * bk
                and last < keys.size
                and keys[last] - given == width - 1
                and _is_run(keys[slot : last + 1])
            ):
                if lists == 1:
                    mark(whole, summary, block)
                else:
                    set_bits(bits, base, key, key + width)
                    mark(present, summary, block)
                slot += width
            else:
                bits[base + (key >> 5)] |= np.int32(np.int64(1) << (key & 31))
                if present[block >> 5] & np.int32(np.int64(1) << (block & 31)) == 0:
                    mark(present, summary, block)
                slot += 1
    return -1


@kernel
def read_blocks(indices, lengths, mode, band, tile, pool, col, content, total, counts):
    """Append the blocks of successive Q blocks.

    Args:
        indices: int32 or int64 [rows, topk], C order: the lists of these Q blocks.
        lengths: int64 [rows]: lanes of each that hold.
        mode: int64 [5] = origin, unit_is_block, shift, first Q block, SQ; see `_read_list`.
        band: an empty band with one list for each query of a Q block, or one for all.
        tile: int32 [bq, words] scratch.
        pool: tile pool.
        col: int32, `content` int32: blocks so far, of which `total` count.
        counts: int64 [Q blocks], filled with the blocks of each.

    Returns:
        (pool, col, content, total, row, slot), the last two of the first bad index, or -1.
    """
    origin, unit_is_block, shift, first, seqlen_q = mode
    bits, whole, present, summary, shape = band
    lists, words, bq = shape[2], shape[3], tile.shape[0]
    for q_block in range(counts.size):
        top = q_block * lists
        for row in range(top, min(top + lists, indices.shape[0])):
            keys = indices[row, : lengths[row]]
            base = (row - top) * words
            bad = _read_list(
                keys, origin, unit_is_block, shift, bits, base, whole, present, summary, shape
            )
            if bad >= 0:
                return pool, col, content, total, row, bad
        height = min(bq, seqlen_q - (first + q_block) * bq)
        before = total
        pool, col, content, total = emit(band, height, tile, pool, col, content, total)
        counts[q_block] = total - before
    return pool, col, content, total, np.int64(-1), np.int64(-1)
