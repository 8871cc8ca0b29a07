"""Triton kernels over block lists: counts to row pointers, bits to lists and lists to bits.

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
def raise_status(status, bit, when):
    """Set a bit of the status word where the scalar `when` holds."""
    tl.atomic_or(status, bit, mask=when, sem="relaxed")


@triton.jit
def scan_kernel(counts, row_ptr, lines, capacity, status, BLOCK: tl.constexpr):
    """row_ptr int64 [lines + 1] of counts int32 [lines], cut at the capacity.

    Each program adds up all counts before its own stretch: cheaper than a second launch.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    part = tl.zeros([BLOCK], tl.int64)
    for start in range(0, first, BLOCK):
        part += tl.load(counts + start + lane)
    own = first + lane
    inside = own < lines
    count = tl.load(counts + own, mask=inside, other=0).to(tl.int64)
    stop = tl.sum(part, 0) + tl.cumsum(count, 0)
    tl.store(row_ptr + 1 + own, tl.minimum(stop, capacity), mask=inside)
    raise_status(status, 2, tl.max(tl.where(inside, stop, 0), 0) > capacity)
    if first == 0:
        tl.store(row_ptr, tl.zeros([], tl.int64))


@triton.jit
def fill_spare(used, col, tile_id, capacity, TILES: tl.constexpr, FILL: tl.constexpr):
    """-1 in what room the lists leave, shared out among all programs."""
    lane = tl.arange(0, FILL)
    none = tl.full([FILL], -1, tl.int32)
    first = used + tl.program_id(0).to(tl.int64) * FILL
    step = tl.num_programs(0).to(tl.int64) * FILL
    for start in range(first, capacity, step):
        spare = start + lane
        tl.store(col + spare, none, mask=spare < capacity)
        if TILES:
            tl.store(tile_id + spare, none, mask=spare < capacity)


@triton.jit
def emit_kernel(
    listed, full, counts, row_ptr, col, tile_id, lines, cols, words, capacity, status,
    TILES: tl.constexpr, SCAN: tl.constexpr, BLOCK: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """col and tile_id of lists given as bits, and -1 in what room is left.

    TILES: 0, there is no tile_id. 1, a partial block of line and column has tile line * cols +
    column. 2, it has the tile of its own place in `col`. SCAN: row_ptr is made here, every program
    adding up all counts, SCAN at a time.
    """
    line = tl.program_id(0).to(tl.int64)
    if SCAN:
        lane = tl.arange(0, SCAN)
        own = tl.zeros([SCAN], tl.int64)
        every = tl.zeros([SCAN], tl.int64)
        for at in range(0, lines, SCAN):
            count = tl.load(counts + at + lane, mask=at + lane < lines, other=0).to(tl.int64)
            every += count
            own += tl.where(at + lane < line, count, 0)
        total = tl.sum(every, 0)
        carry = tl.sum(own, 0)
        used = tl.minimum(total, capacity)
        raise_status(status, 2, (total > capacity) & (line == 0))
        if line == 0:
            tl.store(row_ptr, tl.zeros([], tl.int64))
    else:
        carry = tl.load(row_ptr + line)
        used = tl.load(row_ptr + lines)
    if line < lines:
        if SCAN:
            stop = tl.minimum(carry + tl.load(counts + line), capacity)
            tl.store(row_ptr + line + 1, stop)
        else:
            stop = tl.load(row_ptr + line + 1)
        for start in range(0, cols, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < cols
            word = tl.load(listed + line * words + (column >> 5), mask=inside, other=0)
            one = (word >> (column & 31)) & 1
            entry = carry + (tl.cumsum(one, 0) - one)
            carry += tl.sum(one, 0)
            keep = (one == 1) & (entry < stop)
            tl.store(col + entry, column, mask=keep)
            if TILES > 0:
                whole = tl.load(full + line * words + (column >> 5), mask=inside, other=0)
                slot = entry if TILES == 2 else line * cols + column
                is_full = ((whole >> (column & 31)) & 1) == 1
                tl.store(tile_id + entry, tl.where(is_full, -1, slot).to(tl.int32), mask=keep)
    fill_spare(used, col, tile_id, capacity, TILES > 0, FILL)


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
    """Bits of each pattern with rows and columns changed over: squares of 32 x 32 bits."""
    pattern = tl.program_id(0).to(tl.int64)
    word_of = tl.program_id(1)
    band = tl.program_id(2) * BANDS + tl.arange(0, BANDS)
    bit = tl.arange(0, 32)
    row = band[:, None] * 32 + bit[None, :]
    place = (pattern * rows + row) * words + word_of
    word = tl.load(listed + place, mask=row < rows, other=0)
    square = ((word[:, :, None] >> bit[None, None, :]) & 1) << bit[None, :, None]
    column = word_of * 32 + bit
    target = (pattern * cols + column)[None, :] * turned_words + band[:, None]
    inside = (column < cols)[None, :] & (band < turned_words)[:, None]
    tl.store(turned + target, tl.sum(square, 1), mask=inside)


@triton.jit
def turned_lists_kernel(
    turned, row_ptr, old_before, old_listed, old_tile_id, col, tile_id,
    lines, cols, words, old_cols, old_words, capacity,
    TILES: tl.constexpr, BLOCK: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """col and tile_id of transposed lists: a block has the tile that it had before.

    Here a line is (pattern, one of old_cols columns), and `cols` is the number of old rows.
    """
    line = tl.program_id(0).to(tl.int64)
    if line < lines:
        carry = tl.load(row_ptr + line)
        stop = tl.load(row_ptr + line + 1)
        pattern = line // old_cols
        old_column = (line % old_cols).to(tl.int32)
        for start in range(0, cols, BLOCK):
            row = start + tl.arange(0, BLOCK)
            word = tl.load(turned + line * words + (row >> 5), mask=row < cols, other=0)
            one = (word >> (row & 31)) & 1
            entry = carry + (tl.cumsum(one, 0) - one)
            carry += tl.sum(one, 0)
            keep = (one == 1) & (entry < stop)
            tl.store(col + entry, row, mask=keep)
            if TILES:
                place = (pattern * cols + row) * old_words + (old_column >> 5)
                old_word = tl.load(old_listed + place, mask=keep, other=0)
                source = tl.load(old_before + place, mask=keep, other=0)
                source += below(old_word, old_column & 31)
                tile = tl.load(old_tile_id + source, mask=keep, other=-1)
                tl.store(tile_id + entry, tile, mask=keep)
    fill_spare(tl.load(row_ptr + lines), col, tile_id, capacity, TILES, FILL)


@triton.jit
def padded_kernel(
    row_ptr, col, tile_id, pattern_id,
    mask_cnt, full_cnt, mask_idx, full_idx, mask_tile, mask_order, full_order,
    turned, turned_before, lengths,
    rows, cols, turned_words, mask_width, full_width, status,
    TILES: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Padded lists of one (batch, head, row) a program.

    ORDER: 0 none; 1, also the rank of this row among the rows that list the same column, which is
    read from the bits of the transposed lists; 2, the same in descending order.
    """
    out = tl.program_id(0).to(tl.int64)
    row = (out % rows).to(tl.int32)
    pattern = tl.load(pattern_id + out // rows).to(tl.int64)
    line = pattern * rows + row
    start = tl.load(row_ptr + line)
    stop = tl.load(row_ptr + line + 1)
    masks = tl.zeros([], tl.int32)
    fulls = tl.zeros([], tl.int32)
    mask_base = out * mask_width
    full_base = out * full_width
    for first in range(start, stop, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        inside = entry < stop
        column = tl.load(col + entry, mask=inside, other=0)
        if ORDER:
            other = pattern * cols + column
            word_at = other * turned_words + (row >> 5)
            word = tl.load(turned + word_at, mask=inside, other=0)
            order = tl.load(turned_before + word_at, mask=inside, other=0) + below(word, row & 31)
            if ORDER == 2:
                order = tl.load(lengths + other, mask=inside, other=0) - 1 - order
        if TILES:
            tile = tl.load(tile_id + entry, mask=inside, other=0)
            is_mask = inside & (tile >= 0)
            is_full = inside & (tile < 0)
            place = masks + tl.cumsum(is_mask.to(tl.int32), 0) - 1
            masks += tl.sum(is_mask.to(tl.int32), 0)
            keep = is_mask & (place < mask_width)
            tl.store(mask_idx + mask_base + place, column, mask=keep)
            tl.store(mask_tile + mask_base + place, tile, mask=keep)
            if ORDER:
                tl.store(mask_order + mask_base + place, order, mask=keep)
            place = fulls + tl.cumsum(is_full.to(tl.int32), 0) - 1
            fulls += tl.sum(is_full.to(tl.int32), 0)
        else:
            is_full = inside
            place = (entry - start).to(tl.int32)
            fulls += tl.sum(is_full.to(tl.int32), 0)
        keep = is_full & (place < full_width)
        tl.store(full_idx + full_base + place, column, mask=keep)
        if ORDER:
            tl.store(full_order + full_base + place, order, mask=keep)
    raise_status(status, 2, (masks > mask_width) | (fulls > full_width))
    masks = tl.minimum(masks, mask_width)
    fulls = tl.minimum(fulls, full_width)
    tl.store(mask_cnt + out, masks)
    tl.store(full_cnt + out, fulls)
    lane = tl.arange(0, BLOCK)
    none = tl.full([BLOCK], -1, tl.int32)
    for first in range((masks // BLOCK) * BLOCK, mask_width, BLOCK):
        spare = first + lane
        keep = (spare >= masks) & (spare < mask_width)
        tl.store(mask_idx + mask_base + spare, none, mask=keep)
        tl.store(mask_tile + mask_base + spare, none, mask=keep)
        if ORDER:
            tl.store(mask_order + mask_base + spare, none, mask=keep)
    for first in range((fulls // BLOCK) * BLOCK, full_width, BLOCK):
        spare = first + lane
        keep = (spare >= fulls) & (spare < full_width)
        tl.store(full_idx + full_base + spare, none, mask=keep)
        if ORDER:
            tl.store(full_order + full_base + spare, none, mask=keep)


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
