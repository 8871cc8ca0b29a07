"""Compiled transposes: of block lists by counting sort, of bit tiles by 32 x 32 butterflies."""

import numpy as np

from maskplan.jit import kernel


@kernel
def transpose_lists(row_ptr, col, rows, cols, first, last, new_ptr, new_col, source):
    """Transposed lists of patterns [first, last), by counting sort.

    A pattern has as many blocks either way, so each starts where it started and none waits for
    another. `source`, the block that each came from, may be empty: it is not wanted then.
    """
    fill = np.empty(cols, dtype=np.int64)
    wanted = source.size > 0
    for pattern in range(first, last):
        start, stop = row_ptr[pattern * rows], row_ptr[(pattern + 1) * rows]
        fill[:] = 0
        for entry in range(start, stop):
            fill[np.uint32(col[entry])] += 1
        for column in range(cols):
            count = fill[column]
            fill[column] = start
            start += count
            new_ptr[pattern * cols + column + 1] = start
        for row in range(rows):
            # Unsigned numbers: a signed index costs a test for counting from the end.
            first_entry = np.uint64(row_ptr[pattern * rows + row])
            for entry in range(first_entry, np.uint64(row_ptr[pattern * rows + row + 1])):
                column = np.uint32(col[entry])
                at = np.uint64(fill[column])
                fill[column] = at + np.uint64(1)
                new_col[at] = row
                if wanted:
                    source[at] = entry


@kernel
def transpose_tiles(tiles, first, last, width, out):
    """Bits of tiles[first:last] [R, ceil(width / 32)] transposed into out [width, ceil(R / 32)]."""
    height = tiles.shape[1]
    square = np.empty(32, dtype=np.uint32)
    for tile in range(first, last):
        for band in range(out.shape[2]):
            for word in range(tiles.shape[2]):
                rows = min(32, height - band * 32)
                for i in range(32):
                    square[i] = np.uint32(tiles[tile, band * 32 + i, word]) if i < rows else 0
                _transpose_square(square)
                for i in range(min(32, width - word * 32)):
                    out[tile, word * 32 + i, band] = np.int32(square[i])


@kernel
def _transpose_square(square):
    """In place: bit j of word i becomes bit i of word j (H. S. Warren, Hacker's Delight, 7-3)."""
    step = 16
    mask = np.uint32(0x0000FFFF)
    while step:
        shift = np.uint32(step)
        i = 0
        while i < 32:
            swap = ((square[i] >> shift) ^ square[i + step]) & mask
            square[i + step] ^= swap
            square[i] ^= np.uint32(swap << shift)
            i = (i + step + 1) & ~step
        step >>= 1
        mask = np.uint32(mask ^ np.uint32(mask << np.uint32(step)))
