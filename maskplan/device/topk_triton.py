"""Triton kernels that read top-k lists and block masks into bits, and say what the bits hold.

NOTE [Bits of lists]: a list becomes bits of its own, in the layout of tiles: for each line
(pattern, Q block) and KV block, the words of every list of that Q block. So the bits of a partial
block are its tile where they stand, and what is full or listed is a sum over a block's words. Lists
of KV blocks take one bit a block.
"""

import triton
import triton.language as tl

from maskplan.device.bits_triton import popcount, raise_status


@triton.jit
def read_kernel(
    indices, batch_stride, head_stride, list_stride, lane_stride,
    lengths, length_batch, length_head, length_list,
    bits, heads, lists, topk, limit, batch_origin, blocks, lists_a_line, lines, status,
    UNIT_BLOCK: tl.constexpr, LENGTHS: tl.constexpr, BLOCK_K: tl.constexpr, WORDS: tl.constexpr,
    RUNS: tl.constexpr,
):  # fmt: skip
    """Set the bits of RUNS * 32 lanes of one list, in memory that was 0.

    32 lanes that hold a word's keys in order set it at once, so that lists of whole blocks cost one
    atomic operation a word.
    """
    number = tl.program_id(0).to(tl.int64)
    own = (number % lists).to(tl.int64)
    pattern = number // lists
    head = pattern % heads
    batch = pattern // heads
    lane = tl.program_id(1) * (RUNS * 32) + tl.arange(0, RUNS)[:, None] * 32
    lane = lane + tl.arange(0, 32)[None, :]
    length = topk
    if LENGTHS:
        held = batch * length_batch + head * length_head + own * length_list
        given = tl.load(lengths + held).to(tl.int64)
        raise_status(status, 16, (given < 0) | (given > topk))
        length = tl.minimum(tl.maximum(given, 0), topk)
    start = indices + batch * batch_stride + head * head_stride + own * list_stride
    index = tl.load(start + lane.to(tl.int64) * lane_stride, mask=lane < length, other=-1)
    key = index.to(tl.int64) - batch * batch_origin
    valid = (lane < length) & (index >= 0) & (key >= 0) & (key < limit)
    bad = (lane < length) & (index != -1) & ~valid
    raise_status(status, 1, tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0)
    key = tl.where(valid, key, 0).to(tl.int32)
    if UNIT_BLOCK:
        place = number * ((blocks + 31) // 32) + (key >> 5)
        tl.atomic_or(bits + place, 1 << (key & 31), mask=valid, sem="relaxed")
    else:
        block = key // BLOCK_K
        column = key - block * BLOCK_K
        line = pattern * lines + own // lists_a_line
        place = (line * blocks + block) * lists_a_line + own % lists_a_line
        place = place * WORDS + (column >> 5)
        nth = tl.arange(0, 32)[None, :]
        first = tl.sum(tl.where(nth == 0, key, 0), 1)
        left = tl.sum(tl.where(nth == 0, column, 0), 1)
        follows = valid & (key == first[:, None] + nth)
        whole = tl.min(follows.to(tl.int32), 1) == 1
        whole = whole & ((left & 31) == 0) & (left + 32 <= BLOCK_K)
        word = tl.where(whole[:, None], -1, 1 << (column & 31))
        keep = valid & (~whole[:, None] | (nth == 0))
        tl.atomic_or(bits + place, word, mask=keep, sem="relaxed")


@triton.jit
def classify_kernel(
    bits, listed, full, seqlen_q, seqlen_k, blocks, lines, status,
    LISTS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WORDS: tl.constexpr,
    WHOLE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Bits of the listed and of the full among 32 blocks of a line, from all bits of its lists."""
    line = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = (line % lines).to(tl.int32)
    height = tl.minimum(BLOCK_Q, seqlen_q - row * BLOCK_Q) if LISTS > 1 else 1
    bit = tl.arange(0, 32)
    block = group * 32 + bit
    width = tl.minimum(BLOCK_K, seqlen_k - block * BLOCK_K)  # 0 or less past the last block
    some = tl.zeros([32], tl.int32)
    lacking = tl.zeros([32], tl.int32)
    for start in range(0, LISTS * WORDS, CHUNK):
        at = start + tl.arange(0, CHUNK)
        left = width[:, None] - (at % WORDS)[None, :] * 32
        inside = (at // WORDS < height)[None, :] & (at < LISTS * WORDS)[None, :] & (left > 0)
        place = (line * blocks + block)[:, None] * (LISTS * WORDS) + at[None, :]
        word = tl.load(bits + place, mask=inside, other=0)
        wanted = tl.where(left >= 32, -1, (1 << tl.minimum(left, 31)) - 1)
        some |= tl.max((inside & (word != 0)).to(tl.int32), 1)
        lacking |= tl.max((inside & (word != wanted)).to(tl.int32), 1)
    is_full = (some == 1) & (lacking == 0)
    if WHOLE:
        partial = (some == 1) & (lacking == 1)
        raise_status(status, 8, tl.max(partial.to(tl.int32), 0) > 0)
        some = is_full.to(tl.int32)
    words = (blocks + 31) // 32
    tl.store(listed + line * words + group, tl.sum(some << bit, 0))
    tl.store(full + line * words + group, tl.sum(is_full.to(tl.int32) << bit, 0))


@triton.jit
def classify_blocks_kernel(
    marks, listed, full, seqlen_q, words, lists, lines, status,
    LISTS: tl.constexpr, WHOLE: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Bits of the listed and of the full blocks of a line, from marks of blocks in its lists."""
    line = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    row = (line % lines).to(tl.int32)
    height = tl.minimum(LISTS, seqlen_q - row * LISTS)
    first = (line // lines) * lists + row * LISTS
    some = tl.zeros([BLOCK_W], tl.int32)
    every = tl.full([BLOCK_W], -1, tl.int32)
    for i in range(height):
        word = tl.load(marks + (first + i) * words + at, mask=at < words, other=0)
        some |= word
        every &= word
    if WHOLE:
        raise_status(status, 8, tl.max((some != every).to(tl.int32), 0) > 0)
        some = every
    tl.store(listed + line * words + at, some, mask=at < words)
    tl.store(full + line * words + at, every, mask=at < words)


@triton.jit
def tiles_kernel(
    bits, tiles, listed, full, seqlen_q, seqlen_k, blocks, lists, lines,
    MARKS: tl.constexpr, LISTS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Tiles of the partial among 32 blocks of a line.

    MARKS: from lists' marks of whole blocks; else from the bits of one list, shared by its rows.
    """
    line = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = (line % lines).to(tl.int32)
    height = tl.minimum(BLOCK_Q, seqlen_q - row * BLOCK_Q)
    words = (blocks + 31) // 32
    place = line * words + group
    partial = tl.load(listed + place) & ~tl.load(full + place)
    if partial != 0:
        for bit in range(32):
            if ((partial >> bit) & 1) == 1:
                block = group * 32 + bit
                slot = line * blocks + block
                width = tl.minimum(BLOCK_K, seqlen_k - block * BLOCK_K)
                for start in range(0, BLOCK_Q * WORDS, CHUNK):
                    at = start + tl.arange(0, CHUNK)
                    i = at // WORDS
                    inside = (at < BLOCK_Q * WORDS) & (i < height)
                    if MARKS:
                        own = (line // lines) * lists + row * LISTS + i
                        mark = tl.load(bits + own * words + group, mask=inside, other=0)
                        left = width - (at % WORDS) * 32
                        span = tl.where(left >= 32, -1, (1 << tl.maximum(left, 0)) - 1)
                        word = tl.where(((mark >> bit) & 1) == 1, span, 0)
                    else:
                        word = tl.load(bits + slot * WORDS + at % WORDS, mask=inside, other=0)
                    target = tiles + slot * (BLOCK_Q * WORDS) + at
                    tl.store(target, tl.where(inside, word, 0), mask=at < BLOCK_Q * WORDS)


@triton.jit
def mask_kernel(
    mask, batch_stride, head_stride, row_stride, column_stride,
    listed, counts, heads, rows, cols, words, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Bits of one row of a block mask, and how many are set."""
    line = tl.program_id(0).to(tl.int64)
    pattern = line // rows
    start = mask + (pattern // heads) * batch_stride + (pattern % heads) * head_stride
    start += (line % rows) * row_stride
    bit = tl.arange(0, 32)
    total = tl.zeros([], tl.int32)
    for first in range(0, words, BLOCK_W):
        at = first + tl.arange(0, BLOCK_W)
        column = at[:, None] * 32 + bit[None, :]
        kept = tl.load(start + column.to(tl.int64) * column_stride, mask=column < cols, other=0)
        word = tl.sum((kept != 0).to(tl.int32) << bit[None, :], 1)
        tl.store(listed + line * words + at, word, mask=at < words)
        total += tl.sum(popcount(word), 0)
    tl.store(counts + line, total)
