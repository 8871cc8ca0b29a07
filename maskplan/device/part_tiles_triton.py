"""Triton kernels for tiles that say which parts of a block are listed."""

import triton
import triton.language as tl


@triton.jit
def number_kernel(
    row_ptr, col, tile_id, old_listed, rows, words, new_rows, new_cols, new_row, new_col,
    row_len, col_len, row_unit, col_unit, col_phases,
    ROW: tl.constexpr, COL: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """For each partial block of a new line the number of its tile, see NOTE [Tiles of parts]."""
    line = tl.program_id(0).to(tl.int64)
    row = (line % new_rows).to(tl.int32)
    old_line = line // new_rows * rows
    top = row * new_row
    last_row = (tl.minimum(top + new_row, row_len) - 1) // ROW
    row_kind = top % ROW // row_unit * 2 + (row == new_rows - 1).to(tl.int32)
    stop = tl.load(row_ptr + line + 1)
    for first in range(tl.load(row_ptr + line), stop, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        column = tl.load(col + entry, mask=entry < stop, other=0)
        partial = tl.load(tile_id + entry, mask=entry < stop, other=-1) >= 0
        left = column * new_col
        last_part = (tl.minimum(left + new_col, col_len) - 1) // COL
        col_kind = left % COL // col_unit * 2 + (column == new_cols - 1).to(tl.int32)
        number = (row_kind * (2 * col_phases) + col_kind) << (DOWN * ACROSS)
        for i in tl.static_range(DOWN):
            for j in tl.static_range(ACROSS):
                part = left // COL + j
                there = partial & (top // ROW + i <= last_row) & (part <= last_part)
                place = (old_line + top // ROW + i) * words + (part >> 5)
                listed = tl.load(old_listed + place, mask=there, other=0)
                number |= ((listed >> (part & 31)) & 1) << (i * ACROSS + j)
        tl.store(tile_id + entry, number, mask=partial)


@triton.jit
def part_tiles_kernel(
    tiles, new_row, new_col, new_words, row_unit, col_unit, col_phases, last_height, last_width,
    ROW: tl.constexpr, COL: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The tile of each number."""
    number = tl.program_id(0)
    kind = number >> (DOWN * ACROSS)
    row_kind, col_kind = kind // (2 * col_phases), kind % (2 * col_phases)
    height = tl.where(row_kind % 2 == 1, last_height, new_row)
    width = tl.where(col_kind % 2 == 1, last_width, new_col)
    size = new_row * new_words
    bit = tl.arange(0, 32)
    for start in range(0, size, CHUNK):
        at = start + tl.arange(0, CHUNK)
        token = (at // new_words)[:, None]
        key = (at % new_words)[:, None] * 32 + bit[None, :]
        i = (row_kind // 2 * row_unit + token) // ROW
        j = (col_kind // 2 * col_unit + key) // COL
        inside = (token < height) & (key < width)
        one = tl.where(inside, (number >> ((i * ACROSS + j) & 31)) & 1, 0)
        word = tl.sum(one << bit[None, :], 1)
        tl.store(tiles + number.to(tl.int64) * size + at, word, mask=at < size)
