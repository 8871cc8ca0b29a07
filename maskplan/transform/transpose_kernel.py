"""Compiled transposes: of block lists by counting sort, of bit tiles by 32 x 32 butterflies."""

import numpy as np

from maskplan.jit import kernel


@kernel
def count_columns(row_ptr, col, rows, cols, first, last, new_ptr):
    """Blocks of each column of patterns [first, last) into new_ptr[pattern * cols + column + 1]."""
    for pattern in range(first, last):
        for entry in range(row_ptr[pattern * rows], row_ptr[(pattern + 1) * rows]):
            new_ptr[pattern * cols + col[entry] + 1] += 1


@kernel
def scatter(row_ptr, col, rows, cols, first, last, new_ptr, new_col, source):
    """Fill the transposed lists of patterns [first, last).

    `source`, the block that each came from, may be empty: it is not wanted then.
    """
    for pattern in range(first, last):
        fill = new_ptr[pattern * cols : (pattern + 1) * cols].copy()
        for row in range(rows):
            line = pattern * rows + row
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                column = col[entry]
                at = fill[column]
                fill[column] = at + 1
                new_col[at] = row
                if source.size:
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
