"""The box of the grid that a block of queries reaches, and the blocks of keys in a box.

Runs are those of `axis_windows_kernel`: (first slot, one past the last, t, h, w of the first).
"""

from maskplan.jit import kernel


@kernel
def reach(runs, first, count, left, right, axes, hull):
    """The box of keys that a block's queries may see, as hull[axis] = (low, high).

    Returns whether the block has text, which sees everything.
    """
    hull[:, 0], hull[:, 1] = 1 << 40, 0
    t_axis, h_axis, w_axis = axes
    for run in range(first, first + count):
        start, stop, t, h, w = runs[run]
        if t < 0:
            return True
        hull[0, 0], hull[0, 1] = min(hull[0, 0], t_axis[0, t]), max(hull[0, 1], t_axis[1, t])
        hull[1, 0], hull[1, 1] = min(hull[1, 0], h_axis[0, h]), max(hull[1, 1], h_axis[1, h])
        for x in range(w + max(left - start, 0), w + min(stop, right) - start):
            hull[2, 0], hull[2, 1] = min(hull[2, 0], w_axis[0, x]), max(hull[2, 1], w_axis[1, x])
    return False


@kernel
def mark(found, total, first, last):
    """Append blocks first..last that lie past the last one found; returns how many there are."""
    if total:
        first = max(first, found[total - 1] + 1)
    for block in range(first, last + 1):
        found[total] = block
        total += 1
    return total


@kernel
def candidates(hull, grid, tile, starts, text, block, found):
    """Blocks of keys that a box of the grid reaches, ascending; returns how many.

    Args:
        hull: int64 [3, 2] = low and high of t, h, w.
        grid: (T, H, W).
        tile: tokens of a tile along (t, h, w).
        starts: first slot of each tile.
        text: int64 [2] = first slot of the text, one past its last.
        block: bk.
        found: int64 [N], filled.
    """
    total = 0
    if text[0] < text[1] and text[0] < starts[0]:
        total = mark(found, total, text[0] // block, (text[1] - 1) // block)
    wide, high = -(-grid[2] // tile[2]), -(-grid[1] // tile[1])
    for t_tile in range(hull[0, 0] // tile[0], (hull[0, 1] - 1) // tile[0] + 1):
        t0, t1 = t_tile * tile[0], min((t_tile + 1) * tile[0], hull[0, 1])
        for h_tile in range(hull[1, 0] // tile[1], (hull[1, 1] - 1) // tile[1] + 1):
            h0, h1 = h_tile * tile[1], min((h_tile + 1) * tile[1], hull[1, 1])
            rows = min(tile[1], grid[1] - h0)
            for w_tile in range(hull[2, 0] // tile[2], (hull[2, 1] - 1) // tile[2] + 1):
                w0 = w_tile * tile[2]
                columns = min(tile[2], grid[2] - w0)
                w_from, w_to = max(hull[2, 0] - w0, 0), min(hull[2, 1] - w0, columns)
                start = starts[(t_tile * high + h_tile) * wide + w_tile]
                h_from, h_to = max(hull[1, 0] - h0, 0), h1 - h0
                for t in range(max(t0, hull[0, 0]), t1):
                    # Rows no longer than a block: none lies between them untouched.
                    step = h_to - h_from if columns <= block else 1
                    for h in range(h_from, h_to, step):
                        row = start + ((t - t0) * rows + h) * columns
                        last = row + (step - 1) * columns + w_to - 1
                        total = mark(found, total, (row + w_from) // block, last // block)
    if text[0] < text[1] and text[0] >= starts[0]:
        total = mark(found, total, text[0] // block, (text[1] - 1) // block)
    return total
