"""Compiled grouping of block rows: several rows of a plan walked as one."""

import numpy as np

from maskplan.jit import kernel

FULL, SKIP = -1, -2


@kernel
def group_rows(row_ptr, col, tile_id, rows, factor, new_ptr, new_col, new_tile, rank):
    """Merge each `factor` consecutive rows of a pattern into one walk; returns its entries.

    An entry has a tile number for each of its rows: -1 full, -2 this row skips the block. `rank` is
    the place of the block in that row's own list, -1 where the row skips. With `new_col` empty only
    new_ptr is made.
    """
    groups = -(-rows // factor)
    patterns = (new_ptr.size - 1) // groups
    at = np.empty(factor, dtype=np.int64)
    stop = np.empty(factor, dtype=np.int64)
    count = 0
    for pattern in range(patterns):
        for group in range(groups):
            for part in range(factor):
                at[part], stop[part] = 0, 0
                row = group * factor + part
                if row < rows:
                    at[part] = row_ptr[pattern * rows + row]
                    stop[part] = row_ptr[pattern * rows + row + 1]
            while True:
                column = np.int64(2**31)
                for part in range(factor):
                    if at[part] < stop[part]:
                        column = min(column, np.int64(col[at[part]]))
                if column == 2**31:
                    break
                for part in range(factor):
                    present = at[part] < stop[part] and col[at[part]] == column
                    if new_col.size:
                        new_tile[count, part], rank[count, part] = SKIP, -1
                        if present:
                            first = row_ptr[pattern * rows + group * factor + part]
                            rank[count, part] = at[part] - first
                            new_tile[count, part] = FULL
                            if tile_id.size:
                                new_tile[count, part] = tile_id[at[part]]
                    at[part] += present
                if new_col.size:
                    new_col[count] = column
                count += 1
            new_ptr[pattern * groups + group + 1] = count
    return count
