"""Triton kernels over bits of block lists, and the words that all kernels count with.

NOTE [Bits between kernels]: what passes from one kernel to the next is a bit for each pair of
blocks: for each line (pattern, row), words of 32 columns. The place of a block in its line is then
the number of bits below it, so nothing is sorted, order never depends on which thread was first,
and rows and columns change over by transposing squares of 32 x 32 bits.

Everything is addressed in 64 bits; a number of blocks or of tiles fits in 31.
"""

import triton
import triton.language as tl


@triton.jit
def popcount(word):
    """Bits set in each int32."""
    x = word.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    x = x + (x >> 16)
    return (x & 63).to(tl.int32)


@triton.jit
def below(word, lane):
    """Bits set in `word` under bit `lane`."""
    return popcount(word & ((1 << lane) - 1))


@triton.jit
def places(bits, start, words, carry, BLOCK_W: tl.constexpr):
    """Where the bits of words [start, start + BLOCK_W) stand in a list of `carry` entries so far.

    Columns lie in a row, so that neighbours write to neighbouring places; the bits set before a
    word are counted once a word and handed to its columns.

    Args:
        bits: pointer to the line's words.
        start: first word.
        words: of the line.
        carry: entries before.

    Returns:
        (column, place, whether its bit is set [32 * BLOCK_W]; entries after these words).
    """
    at = start + tl.arange(0, BLOCK_W)
    count = popcount(tl.load(bits + at, mask=at < words, other=0))
    before = tl.cumsum(count, 0) - count
    lane = tl.arange(0, BLOCK_W * 32)
    column = start * 32 + lane
    word = tl.load(bits + (column >> 5), mask=(column >> 5) < words, other=0)
    place = carry + tl.gather(before, lane >> 5, 0) + below(word, lane & 31)
    return column, place, ((word >> (lane & 31)) & 1) == 1, carry + tl.sum(count, 0)


@triton.jit
def raise_status(status, bit, when):
    """Set a bit of the status word where the scalar `when` holds."""
    tl.atomic_or(status, bit, mask=when, sem="relaxed")


@triton.jit
def ranks_kernel(
    row_ptr, col, tile_id, listed, full, before, words, steps,
    FULL: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Bits of lists, and the number of blocks before each word, counted over all lines.

    A word's first block is found by bisection, as columns ascend; FULL also gives bits of the full
    blocks among them.
    """
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    inside = at < words
    start = tl.load(row_ptr + line)
    stop = tl.load(row_ptr + line + 1)
    low = tl.zeros([BLOCK_W], tl.int64) + start
    high = tl.zeros([BLOCK_W], tl.int64) + stop
    for _ in range(steps):
        middle = (low + high) >> 1
        open_ = low < high
        column = tl.load(col + middle, mask=open_ & inside, other=0)
        right = open_ & (column < at * 32)
        low = tl.where(right, middle + 1, low)
        high = tl.where(open_ & ~right, middle, high)
    word = tl.zeros([BLOCK_W], tl.int32)
    whole = tl.zeros([BLOCK_W], tl.int32)
    for i in tl.static_range(32):  # unrolled: the loads need not wait for each other
        here = inside & (low + i < stop)
        column = tl.load(col + low + i, mask=here, other=-1)
        hit = here & ((column >> 5) == at)
        one = tl.where(hit, 1 << (column & 31), 0)
        word |= one
        if FULL:
            tile = tl.load(tile_id + low + i, mask=hit, other=0)
            whole |= tl.where(tile < 0, one, 0)
    place = line * words + at
    tl.store(listed + place, word, mask=inside)
    tl.store(before + place, low.to(tl.int32), mask=inside)
    if FULL:
        tl.store(full + place, whole, mask=inside)


@triton.jit
def prefix_kernel(
    listed, before, counts, lines, words, LINES: tl.constexpr, BLOCK_W: tl.constexpr
):  # fmt: skip
    """Blocks of each line before each word (within the line), and in the whole line."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    carry = tl.zeros([LINES], tl.int32)
    for start in range(0, words, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)
        place = line[:, None] * words + at[None, :]
        inside = (line < lines)[:, None] & (at < words)[None, :]
        count = popcount(tl.load(listed + place, mask=inside, other=0))
        tl.store(before + place, carry[:, None] + tl.cumsum(count, 1) - count, mask=inside)
        carry += tl.sum(count, 1)
    tl.store(counts + line, carry, mask=line < lines)


@triton.jit
def turn_kernel(listed, turned, rows, cols, words, turned_words, BANDS: tl.constexpr):
    """Bits of each pattern with rows and columns changed over: squares of 32 x 32 bits.

    A lane keeps a column and takes its bit of one row after another; the 32 loads of a square need
    not wait for each other.
    """
    pattern = tl.program_id(0).to(tl.int64)
    word_of = tl.program_id(1)
    band = tl.program_id(2) * BANDS + tl.arange(0, BANDS)[:, None]
    lane = tl.arange(0, 32)[None, :]
    first = pattern * rows * words + word_of
    square = tl.zeros([BANDS, 32], tl.int32)
    for i in tl.static_range(32):
        row = band * 32 + i
        word = tl.load(listed + first + row.to(tl.int64) * words, mask=row < rows, other=0)
        square |= ((word >> lane) & 1) << i
    column = word_of * 32 + lane
    target = (pattern * cols + column) * turned_words + band
    tl.store(turned + target, square, mask=(column < cols) & (band < turned_words))
