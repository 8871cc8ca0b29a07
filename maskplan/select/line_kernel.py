"""Compiled cover of diagonals by stretches of keys; `maskplan.select.minference` says for what."""

import numpy as np

from maskplan.jit import kernel


@kernel
def cover_diagonals(distances, seqlen, side):
    """Stretches of keys that each `side` queries read to cover their diagonals.

    A query block that ends at `end` needs [end - d - side, end - d) for each distance d below it,
    moved up to start at 0. As MInference's kernel merges them: an end up to `side` keys past a
    stretch makes that one `side` keys longer, one further away begins another.

    Args:
        distances: int64 [S], ascending, from 0 up.
        seqlen: tokens.
        side: queries of a block, and keys of a step.

    Returns:
        int64 [stretches, 3]: first query of the block, first key, one past the last key.
    """
    found = np.empty((1024, 3), dtype=np.int64)
    count = 0
    for top in range(0, seqlen, side):
        end = top + side
        open_stretch = False
        for at in range(distances.size - 1, -1, -1):
            if distances[at] >= end:
                continue
            stop = max(end - distances[at], side)
            if open_stretch and stop <= found[count - 1, 2] + side:
                if stop > found[count - 1, 2]:
                    found[count - 1, 2] += side
                continue
            if count == found.shape[0]:
                more = np.empty((2 * count, 3), dtype=np.int64)
                more[:count] = found
                found = more
            found[count, 0], found[count, 1], found[count, 2] = top, stop - side, stop
            count += 1
            open_stretch = True
    return found[:count].copy()
