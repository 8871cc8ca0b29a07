"""The Triton kernel that changes rows and columns of bit tiles over."""

import triton
import triton.language as tl


@triton.jit
def turn_tiles_kernel(
    tiles, turned, tile_id, row_ptr, lines, count, height, words, width, turned_words,
    BY_BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Bit tiles with rows and columns changed over, each in its own place.

    BY_BLOCK: go through the blocks and turn the tiles they name, rather than all there is room for.
    """
    first = tl.program_id(0).to(tl.int64)
    stop = tl.load(row_ptr + lines) if BY_BLOCK else count
    bit = tl.arange(0, 32)
    for place in range(first, stop, tl.num_programs(0)):
        tile = place
        if BY_BLOCK:
            tile = tl.load(tile_id + place).to(tl.int64)
        if tile >= 0:
            for band in range(turned_words):
                row = band * 32 + bit
                for left in range(0, width, BLOCK_C):
                    column = left + tl.arange(0, BLOCK_C)
                    inside = (row < height)[:, None] & (column < width)[None, :]
                    at = (tile * height + row)[:, None] * words + (column >> 5)[None, :]
                    word = tl.load(tiles + at, mask=inside, other=0)
                    square = ((word >> (column & 31)[None, :]) & 1) << bit[:, None]
                    target = (tile * width + column) * turned_words + band
                    tl.store(turned + target, tl.sum(square, 0), mask=column < width)
