"""Compiled steps on rows of bits and on growing lists of blocks, which the builders share.

A row of bits is int32 words, bit i of word w for column 32 * w + i. A block's `content` is -1 where
it is full, else the number of its tile in a pool (`maskplan.tile_pool`).
"""

import numpy as np

from maskplan.jit import kernel

_WORD = 32


@kernel
def set_bits(flat, base, start, stop):
    """Set bits [start, stop) of the row whose first word is flat[base]."""
    for word in range(start >> 5, (stop + _WORD - 1) >> 5):
        low = max(start - word * _WORD, 0)
        high = min(stop - word * _WORD, _WORD)
        flat[base + word] |= np.int32((np.int64(1) << high) - (np.int64(1) << low))


@kernel
def reserve(col, content, need):
    """(col, content), grown to hold at least `need` blocks."""
    if need <= col.size:
        return col, content
    size = max(need, 2 * col.size)
    more_col = np.empty(size, dtype=np.int32)
    more_content = np.empty(size, dtype=np.int32)
    for i in range(col.size):
        more_col[i], more_content[i] = col[i], content[i]
    return more_col, more_content
