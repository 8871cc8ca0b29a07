"""A table from phases to block contents, for kernels that make one block at a time.

A phase is what decides a block's bits, as a fixed count of numbers. Equal phases have equal bits,
so bits are made once a phase. A table is the tuple (keys int64 [capacity, numbers], contents int32
[capacity], slots int32 [power of two], count int64 [2] = how many, how many numbered). It is
emptied when it is full: it saves work and decides nothing, because tiles are interned by their
bits.
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
        np.zeros(2, dtype=np.int64),
    )


@kernel
def _slot(keys, slots, key):
    """Slot of `key`: that of its number, or the free one where it belongs."""
    numbers = keys.shape[1]
    code = np.uint64(numbers)
    for i in range(numbers):
        code = (code ^ np.uint64(key[i])) * _MIX
        code ^= code >> _FOLD
    mask = np.uint64(slots.size - 1)
    at = code & mask
    while slots[at] >= 0:
        other = slots[at]
        same = True
        for i in range(numbers):
            if keys[other, i] != key[i]:
                same = False
                break
        if same:
            break
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def content_of(keys, contents, slots, key):
    """What a block of phase `key` holds, or UNKNOWN.

    NOTE [Flat]: this runs for each block. Unpacking a tuple and calling on with arrays count
    references, which costs more than the look-up: so it takes a table's arrays, and says again
    what `_slot` says.
    """
    numbers = keys.shape[1]
    code = np.uint64(numbers)
    for i in range(numbers):
        code = (code ^ np.uint64(key[i])) * _MIX
        code ^= code >> _FOLD
    mask = np.uint64(slots.size - 1)
    at = code & mask
    while slots[at] >= 0:
        other = slots[at]
        same = True
        for i in range(numbers):
            if keys[other, i] != key[i]:
                same = False
                break
        if same:
            return contents[other]
        at = (at + np.uint64(1)) & mask
    return UNKNOWN


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
def number_of(table, key):
    """(table, number of `key`): different keys have different numbers, equal ones mostly equal."""
    keys, contents, slots, count = table
    found = content_of(keys, contents, slots, key)
    if found == UNKNOWN:
        found = np.int32(count[1])
        count[1] += 1  # goes on counting where the table is emptied
        table = remember(table, key, found)
    return table, found


@kernel
def content_of_bits(pool, tile, pairs):
    """(pool, content) of a block of `pairs` in-range pairs with the bits of `tile`."""
    bits = count_bits(tile.reshape(-1))
    if bits == 0:
        return pool, EMPTY
    if bits == pairs:
        return pool, FULL
    return intern(pool, tile)
