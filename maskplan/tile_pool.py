"""A growing set of distinct bit tiles, for kernels that make tiles one at a time.

A pool is the tuple (words, hashes, slots, count): `words` int32 [capacity, R, W] holds the tiles in
the order they were first met, `hashes` uint64 [capacity] theirs, `slots` int32 [power of two] an
open-addressing table of tile numbers (-1 free), `count` int64 [1] how many there are. Kernels take
and return the tuple, because growing replaces its arrays.
"""

import numpy as np

from maskplan.jit import kernel

_LANES = 4
_PRIME_A = np.uint64(0x9E3779B97F4A7C15)
_PRIME_B = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)


@kernel
def hash_words(words):
    """A 64-bit hash of a flat int32 array, in four lanes so that multiplies overlap."""
    size = words.size
    lane0, lane1, lane2, lane3 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    i = 0
    while i + _LANES <= size:
        lane0 = (lane0 ^ np.uint64(np.uint32(words[i]))) * _PRIME_A
        lane1 = (lane1 ^ np.uint64(np.uint32(words[i + 1]))) * _PRIME_A
        lane2 = (lane2 ^ np.uint64(np.uint32(words[i + 2]))) * _PRIME_A
        lane3 = (lane3 ^ np.uint64(np.uint32(words[i + 3]))) * _PRIME_A
        i += _LANES
    while i < size:
        lane0 = (lane0 ^ np.uint64(np.uint32(words[i]))) * _PRIME_A
        lane0 ^= lane0 >> _SHIFT
        i += 1
    total = (lane0 ^ (lane0 >> _SHIFT)) * _PRIME_B
    total = (total ^ lane1 ^ (lane1 >> _SHIFT)) * _PRIME_B
    total = (total ^ lane2 ^ (lane2 >> _SHIFT)) * _PRIME_B
    total = (total ^ lane3 ^ (lane3 >> _SHIFT)) * _PRIME_B
    return total ^ (total >> _SHIFT)


@kernel
def new_pool(rows, words, capacity):
    """An empty pool for tiles of int32 [rows, words]."""
    slots = 16
    while slots < 2 * capacity:
        slots *= 2
    return (
        np.empty((max(capacity, 1), rows, words), dtype=np.int32),
        np.empty(max(capacity, 1), dtype=np.uint64),
        np.full(slots, -1, dtype=np.int32),
        np.zeros(1, dtype=np.int64),
    )


# Loops over flat arrays, not array expressions: numba takes seconds to compile each of those.
@kernel
def _copy(target, source, count):
    for i in range(count):
        target[i] = source[i]


@kernel
def _equal(one, other):
    for i in range(one.size):  # noqa: SIM110 - numba has no generators
        if one[i] != other[i]:
            return False
    return True


@kernel
def _grown(pool):
    words, hashes, _, count = pool
    capacity = 2 * words.shape[0]
    more_words = np.empty((capacity, words.shape[1], words.shape[2]), dtype=np.int32)
    _copy(more_words.reshape(-1), words.reshape(-1), words.size)
    more_hashes = np.empty(capacity, dtype=np.uint64)
    _copy(more_hashes, hashes, hashes.size)
    size = 16
    while size < 2 * capacity:
        size *= 2
    slots = np.full(size, -1, dtype=np.int32)
    mask = np.uint64(size - 1)
    for tile in range(count[0]):
        at = more_hashes[tile] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = tile
    return more_words, more_hashes, slots, count


@kernel
def intern(pool, tile):
    """The number of `tile` (int32 [R, W], C order) in the pool, put there if it was new.

    Returns:
        (pool, number).
    """
    words, hashes, slots, count = pool
    flat = tile.reshape(-1)
    code = hash_words(flat)
    mask = np.uint64(slots.size - 1)
    at = code & mask
    while slots[at] >= 0:
        other = slots[at]
        if hashes[other] == code and _equal(words[other].reshape(-1), flat):
            return pool, other
        at = (at + np.uint64(1)) & mask
    number = count[0]
    if number == words.shape[0]:
        pool = _grown(pool)
        words, hashes, slots, count = pool
        mask = np.uint64(slots.size - 1)
        at = code & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
    _copy(words[number].reshape(-1), flat, flat.size)
    hashes[number] = code
    slots[at] = number
    count[0] = number + 1
    return pool, np.int32(number)


@kernel
def count_bits(tile):
    """Set bits of a flat int32 array."""
    total = 0
    for i in range(tile.size):
        word = np.uint32(tile[i])
        word = word - ((word >> np.uint32(1)) & np.uint32(0x55555555))
        word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
        word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        total += np.int64(np.uint32(word * np.uint32(0x01010101)) >> np.uint32(24))
    return total
