"""A table from phases to block contents, for kernels that make one block at a time.

A phase is what decides a block's bits, as a fixed count of numbers. Equal phases have equal bits,
so bits are made once a phase. A table is the tuple (keys int64 [capacity, numbers], contents int32
[capacity], slots int32 [power of two], count int64 [1]). It is emptied when it is full: it saves
work and decides nothing, because tiles are interned by their bits.
"""

import numpy as np

from maskplan.jit import kernel
from maskplan.tile_pool import count_bits, intern

EMPTY = np.int32(-2)
FULL = np.int32(-1)
UNKNOWN = np.int32(-3)
_FIRST = 1 << 9
_MOST = 1 << 16
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)


@kernel
def new_phases(numbers):
    """An empty table of phases of `numbers` numbers."""
    return (
        np.empty((_FIRST, numbers), dtype=np.int64),
        np.empty(_FIRST, dtype=np.int32),
        np.full(2 * _FIRST, -1, dtype=np.int32),
        np.zeros(1, dtype=np.int64),
    )


@kernel
def _slot(keys, slots, key):
    code = np.uint64(key.size)
    for i in range(key.size):
        code = (code ^ np.uint64(key[i])) * _MIX
        code ^= code >> _FOLD
    at = np.int64(code & np.uint64(slots.size - 1))
    while slots[at] >= 0:
        other = slots[at]
        same = True
        for i in range(key.size):
            same = same and keys[other, i] == key[i]
        if same:
            break
        at = (at + 1) & (slots.size - 1)
    return at


@kernel
def content_of(phases, key):
    """What a block of phase `key` holds, or UNKNOWN."""
    keys, contents, slots, _ = phases
    at = _slot(keys, slots, key)
    return contents[slots[at]] if slots[at] >= 0 else UNKNOWN


@kernel
def remember(phases, key, content):
    """The table with `key` in it, grown where it was full."""
    keys, contents, slots, count = phases
    number = count[0]
    if number == keys.shape[0] and number < _MOST:
        more_keys = np.empty((2 * number, keys.shape[1]), dtype=np.int64)
        more_contents = np.empty(2 * number, dtype=np.int32)
        more_keys[:number] = keys
        more_contents[:number] = contents
        keys, contents = more_keys, more_contents
        slots = np.full(4 * number, -1, dtype=np.int32)
        for known in range(number):
            slots[_slot(keys, slots, keys[known])] = known
    elif number == keys.shape[0]:
        slots[:] = -1
        number = 0
    keys[number] = key
    contents[number] = content
    slots[_slot(keys, slots, keys[number])] = number
    count[0] = number + 1
    return keys, contents, slots, count


@kernel
def content_of_bits(pool, tile, pairs):
    """(pool, content) of a block of `pairs` in-range pairs with the bits of `tile`."""
    bits = count_bits(tile.reshape(-1))
    if bits == 0:
        return pool, EMPTY
    if bits == pairs:
        return pool, FULL
    return intern(pool, tile)
