"""Triton kernels of token tables: what each Q tile gathers, from the bits of its lists.

NOTE [Tables from bits]: each list of a tile is a row of bits over all keys. The tile's list is the
OR of its rows (or its first row), in words; a key's slot is the number of bits below it. A tile is
shared out among programs of CHUNK words: the first pass leaves behind what each chunk counts, and
the second adds up the chunks before its own, so nothing depends on which program came first.
"""

import triton
import triton.language as tl

from maskplan.device.bits_triton import places, popcount, raise_status
from maskplan.device.lists_triton import fill_none


@triton.jit
def place_of(tile, seqlen_q, tiles, group, per_tile):
    """(number of the first list of a tile, tokens of the tile); lists of a group lie SQ apart."""
    head = tile // tiles
    first = ((tile % tiles) * per_tile).to(tl.int32)
    return head * group * seqlen_q + first, tl.minimum(per_tile, seqlen_q - first)


@triton.jit
def choose_kernel(
    bits, chosen, parts, seqlen_q, words, tiles, group, per_tile,
    FIRST: tl.constexpr, ALONE: tl.constexpr, AHEAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The list of a tile as bits, and what a chunk of it counts.

    `parts` int32 [tiles, chunks, 4]: keys of the list, keys of all rows, those of them that the
    list has, and whether the rows are alike. FIRST: the list is the first row's, else the union.
    ALONE: a tile has one row, whose bits are not written again.
    """
    tile = tl.program_id(0).to(tl.int64)
    first, tokens = place_of(tile, seqlen_q, tiles, group, per_tile)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < words
    start = tl.load(bits + first * words + at, mask=inside, other=0)
    union = start
    wanted = popcount(start)
    kept = wanted
    differ = start ^ start
    for g in range(0 if ALONE else group):
        own = bits + (first + g * seqlen_q) * words + at
        for token in range(0, tokens, AHEAD):
            for i in tl.static_range(AHEAD):  # loads that need not wait for each other
                there = (token + i < tokens) & (token + i + g > 0)
                far = (tile - tile + token + i) * words
                word = tl.load(own + far, mask=inside & there, other=0)
                union |= word
                differ |= tl.where(there, word ^ start, 0)
                count = popcount(word)
                wanted += count
                kept += popcount(word & start) if FIRST else count
    taken = start if FIRST else union
    if not ALONE:
        tl.store(chosen + tile * words + at, taken, mask=inside)
    part = parts + (tile * tl.num_programs(1) + tl.program_id(1)) * 4
    tl.store(part, tl.sum(popcount(taken), 0))
    tl.store(part + 1, tl.sum(wanted, 0))
    tl.store(part + 2, tl.sum(kept, 0))
    tl.store(part + 3, 1 - tl.max((differ != 0).to(tl.int32), 0))


@triton.jit
def table_kernel(
    chosen, parts, table, counts, report, status, words, width, most,
    UNIFORM: tl.constexpr, UNION: tl.constexpr, CHUNK: tl.constexpr, BLOCK_W: tl.constexpr,
    PARTS: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """A tile's list of keys from its bits, its count, and its report int64 [tiles, 4]: see `parts`.

    UNIFORM: a tile whose rows differ has no list. UNION: one whose rows differ and which has more
    than `most` keys is recorded.
    """
    tile = tl.program_id(0).to(tl.int64)
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    own = parts + tile * chunks * 4
    lane = tl.arange(0, PARTS)
    keys = tl.zeros([PARTS], tl.int64)
    before = tl.zeros([PARTS], tl.int64)
    wanted = tl.zeros([PARTS], tl.int64)
    kept = tl.zeros([PARTS], tl.int64)
    alike = tl.full([PARTS], 1, tl.int32)
    for first in range(0, chunks, PARTS):
        other = first + lane
        there = other < chunks
        count = tl.load(own + other * 4, mask=there, other=0)
        keys += count
        before += tl.where(other < chunk, count, 0)
        wanted += tl.load(own + other * 4 + 1, mask=there, other=0)
        kept += tl.load(own + other * 4 + 2, mask=there, other=0)
        alike &= tl.load(own + other * 4 + 3, mask=there, other=1)
    total = tl.sum(keys, 0)
    same = tl.min(alike, 0)
    held = tl.minimum(total, width)
    if UNIFORM:
        held = tl.where(same == 1, held, 0)
    if chunk == 0:
        tl.store(counts + tile, held.to(tl.int32))
        tl.store(report + tile * 4, total)
        tl.store(report + tile * 4 + 1, tl.sum(wanted, 0))
        tl.store(report + tile * 4 + 2, tl.sum(kept, 0))
        tl.store(report + tile * 4 + 3, same.to(tl.int64))
        if UNIFORM:
            raise_status(status, 32, same == 0)
            raise_status(status, 2, (same == 1) & (total > width))
        else:
            raise_status(status, 2, total > width)
        if UNION:
            raise_status(status, 64, (same == 0) & (total > most))
    carry = tl.sum(before, 0)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK_W):
        key, entry, set_, carry = places(chosen + tile * words, start, words, carry, BLOCK_W)
        tl.store(table + tile * width + entry, key, mask=set_ & (entry < held))
    fill_none(table + tile * width, held, width, chunk, chunks, FILL)


@triton.jit
def row_bits_kernel(
    bits, table, counts, row_bits, every, seqlen_q, words, tiles, group, per_tile, copies, rows,
    width, AHEAD: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Which entries of its tile's list each row sees, as bits; and which all rows see.

    row_bits int32 [tiles, rows, width / 32] in memory that was 0: row = (token * group + head in
    group) * copies + copy. `every` int32 [tiles, width / 32].
    """
    tile = tl.program_id(0).to(tl.int64)
    first, tokens = place_of(tile, seqlen_q, tiles, group, per_tile)
    at = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    lane = tl.arange(0, 32)[None, :]
    out_words = width // 32
    entry = at[:, None] * 32 + lane
    count = tl.load(counts + tile)
    seen = entry < count
    key = tl.load(table + tile * width + entry, mask=seen, other=0)
    shared = tl.full([BLOCK_W], -1, tl.int32)
    if tl.program_id(1) * BLOCK_W * 32 < count:
        for g in range(group):
            own = bits + (first + g * seqlen_q) * words + (key >> 5)
            for start in range(0, tokens, AHEAD):
                for i in tl.static_range(AHEAD):
                    token = start + i
                    there = token < tokens
                    far = (tile - tile + token) * words
                    word = tl.load(own + far, mask=seen & there, other=0)
                    out = tl.sum(((word >> (key & 31)) & 1) << lane, 1)
                    shared &= tl.where(there, out, -1)
                    row = (token * group + g) * copies
                    target = row_bits + (tile * rows + row) * out_words + at
                    for copy in range(copies):
                        tl.store(target + copy * out_words, out, mask=there & (at < out_words))
    tl.store(every + tile * out_words + at, shared, mask=at < out_words)


@triton.jit
def blocks_kernel(
    counts, every, mask_cnt, mask_idx, full_cnt, full_idx, width,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lists of the logical blocks of a tile's list, `width` slots each: full, or with a mask.

    A block is full where it has all 128 keys, and with BITS if every row sees them all.
    """
    tile = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + tile)
    lane = tl.arange(0, BLOCK)
    masks = tl.zeros([], tl.int32)
    fulls = tl.zeros([], tl.int32)
    for start in range(0, (count + 127) // 128, BLOCK):
        block = start + lane
        listed = block * 128 < count
        full = block * 128 + 128 <= count
        if BITS:
            for word in tl.static_range(4):
                at = (tile * width + block) * 4 + word
                full = full & (tl.load(every + at, mask=listed, other=0) == -1)
        one = (listed & full).to(tl.int32)
        nth = fulls + tl.cumsum(one, 0) - one
        tl.store(full_idx + tile * width + nth, block, mask=one == 1)
        fulls += tl.sum(one, 0)
        one = (listed & ~full).to(tl.int32)
        nth = masks + tl.cumsum(one, 0) - one
        tl.store(mask_idx + tile * width + nth, block, mask=one == 1)
        masks += tl.sum(one, 0)
    tl.store(mask_cnt + tile, masks)
    tl.store(full_cnt + tile, fulls)
    fill_none(mask_idx + tile * width, masks, width, 0, 1, BLOCK)
    fill_none(full_idx + tile * width, fulls, width, 0, 1, BLOCK)
