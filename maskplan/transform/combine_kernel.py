"""Compiled merge of two plans' rows."""

import numpy as np

from maskplan.jit import kernel

AND, OR, SUB = 0, 1, 2
# Content of a merged block: a number of the left plan's tiles as it is, of the right's shifted by
# the left's count, or, past both, a pair of tiles that is still to be combined.
FULL, DROP = -1, -2


@kernel
def _combined(op, left, right, offsets, edge):
    """Content of a block listed by both; `left`, `right` are -1 or tile numbers."""
    tiles_a, tiles_b, pairs_from = offsets
    if op == AND:
        if left < 0:
            return np.int64(FULL) if right < 0 else tiles_a + right
        if right < 0:
            return left
    elif op == OR:
        if left < 0 or right < 0:
            return np.int64(FULL)
    elif right < 0:
        return np.int64(DROP)
    # What a full block loses depends on where the sequence ends in it, so the edge is in the code.
    return pairs_from + ((left + 1) * tiles_b + right) * 4 + (edge if left < 0 else 0)


@kernel
def merge(op, a, b, pairs, offsets, sizes, out_ptr, out_col, out_content):
    """Merge rows of plans `a` and `b` = (row_ptr, col, tile_id) for each pair of patterns.

    With `out_col` empty only out_ptr is made. `sizes` = (rows, ragged_row, ragged_col): the numbers
    of the last row and column if they are cut by the sequence end, else -1.
    """
    ptr_a, col_a, tile_a = a
    ptr_b, col_b, tile_b = b
    rows, ragged_row, ragged_col = sizes
    tiles_a = offsets[0]
    at = 0
    for place in range(pairs.shape[0]):
        for row in range(rows):
            i, i_stop = ptr_a[pairs[place, 0] * rows + row], ptr_a[pairs[place, 0] * rows + row + 1]
            j, j_stop = ptr_b[pairs[place, 1] * rows + row], ptr_b[pairs[place, 1] * rows + row + 1]
            while i < i_stop or j < j_stop:
                has_a = i < i_stop and (j == j_stop or col_a[i] <= col_b[j])
                has_b = j < j_stop and (i == i_stop or col_b[j] <= col_a[i])
                column = col_a[i] if has_a else col_b[j]
                left = np.int64(tile_a[i]) if has_a and tile_a.size else np.int64(FULL)
                right = np.int64(tile_b[j]) if has_b and tile_b.size else np.int64(FULL)
                if has_a and has_b:
                    edge = 2 * (row == ragged_row) + (column == ragged_col)
                    content = _combined(op, left, right, offsets, np.int64(edge))
                elif has_a:
                    content = np.int64(DROP) if op == AND else left
                elif op == OR:
                    content = right if right < 0 else tiles_a + right
                else:
                    content = np.int64(DROP)
                if content != DROP:
                    if out_col.size:
                        out_col[at] = column
                        out_content[at] = content
                    at += 1
                i += has_a
                j += has_b
            out_ptr[place * rows + row + 1] = at
    return at
