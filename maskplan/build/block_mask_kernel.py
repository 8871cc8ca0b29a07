"""Compiled lists of a block mask."""

import numpy as np

from maskplan.jit import kernel


@kernel
def count_rows(mask, counts):
    """Blocks of each row.

    Args:
        mask: uint8 [rows, N], 0 or 1.
        counts: int64 [rows], filled.
    """
    for row in range(mask.shape[0]):
        line = mask[row]
        total = np.int64(0)
        for block in range(line.size):
            total += line[block]
        counts[row] = total


@kernel
def list_rows(mask, row_ptr, col):
    """Write the blocks of row r to col[row_ptr[r] : row_ptr[r + 1]].

    Every block is written, and kept by moving on: a branch on random bits would cost more. The
    last write of a row may fall one past its end, so rows go through a scratch row.
    """
    scratch = np.empty(mask.shape[1] + 1, dtype=np.int32)
    for row in range(mask.shape[0]):
        line = mask[row]
        found = 0
        for block in range(line.size):
            scratch[found] = block
            found += line[block]
        start = row_ptr[row]
        col[start : start + found] = scratch[:found]
