"""The best blocks of a row that make a share of its mass, without sorting the row.

NOTE [Buckets of mass]: numbers from 0 up are in the order of their bits, so their upper bits are
buckets in descending order of mass, whose sums say in which of them a row's share is crossed. Only
that bucket is sorted. Sums of buckets are rounded otherwise than a sum in order, by parts in 1e16:
a bucket is passed by whole only where it stays clear of the share by much more than that.
"""

import numpy as np

from maskplan.jit import kernel

_CLEAR = 1e-12
_FRACTION = 3  # bits of the fraction among the upper bits

SPARGE, XATTENTION, SVG2 = 0, 1, 2


@kernel
def pick_share(weights, bits, first, share, rule, least, start, stop, taken):
    """Mark what rows [start, stop) keep.

    Args:
        weights: floats [M, N], from +0 up.
        bits: the same as integers of their size.
        first: float64 [M], what each row's sum starts with.
        share: float64 [M], what it is compared with.
        rule: one of the three above.
        least: blocks kept in any case, of those with mass.
        start: first row.
        stop: the row after the last.
        taken: bool [M, N], False; True for the blocks kept.
    """
    shift = 23 - _FRACTION if bits.itemsize == 4 else 52 - _FRACTION
    size = 1 << (8 * bits.itemsize - 1 - shift)
    sums, counts = np.zeros(size), np.zeros(size, np.int64)
    members = np.empty(weights.shape[1], np.int64)
    for row in range(start, stop):
        low, high = size, -1
        for n in range(weights.shape[1]):
            bucket = np.int64(bits[row, n]) >> shift
            sums[bucket] += weights[row, n]
            counts[bucket] += 1
            low, high = min(low, bucket), max(high, bucket)
        total, kept, bucket = first[row], 0, high
        while bucket >= low:
            after = total + sums[bucket]
            if after > share[row] * (1 - _CLEAR) and counts[bucket]:
                break
            total, kept = after, kept + counts[bucket]
            bucket -= 1
        whole, going = bucket, True
        for n in range(weights.shape[1]):
            taken[row, n] = (np.int64(bits[row, n]) >> shift) > whole and weights[row, n] > 0
        while going and bucket >= low:
            if counts[bucket]:
                total, kept, going = _walk(
                    weights[row], bits[row], bucket, shift, members, (total, kept, share[row]),
                    rule, least, taken[row],
                )  # fmt: skip
            bucket -= 1
        for one in range(low, high + 1):
            sums[one], counts[one] = 0, 0


@kernel
def _walk(weights, bits, bucket, shift, members, state, rule, least, taken):
    """Take the blocks of one bucket in order of mass while they are kept.

    Returns:
        (sum so far, how many were kept, whether all of them were).
    """
    total, kept, share = state
    count = 0
    for n in range(weights.size):
        if (np.int64(bits[n]) >> shift) == bucket:
            members[count] = n
            count += 1
    order = np.argsort(-weights[members[:count]], kind="mergesort")
    for place in order:
        block = members[place]
        weight = np.float64(weights[block])
        inside = total < share
        if rule == SPARGE:
            inside = total + weight <= share
        elif rule == SVG2:
            inside = total <= share
        if weight <= 0 or not (inside or kept < least):
            return total, kept, False
        taken[block] = True
        total += weight
        kept += 1
    return total, kept, True
