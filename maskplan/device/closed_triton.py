"""Triton kernels that write down plans given by a few numbers: bands, and windows of tiles.

Nothing is read but the numbers, so a plan costs what it takes to write.
"""

import triton
import triton.language as tl

from maskplan.device.bits_triton import popcount


@triton.jit
def span(count):
    """A word whose lowest `count` bits are set: none from 0 down, all from 32 up."""
    some = (1 << tl.minimum(tl.maximum(count, 0), 31).to(tl.int32)) - 1
    return tl.where(count >= 32, -1, some)


@triton.jit
def ceil_div(number, by):
    """Quotient rounded up, for numbers of either sign."""
    return -floor_div(-number, by)


@triton.jit
def floor_div(number, by):
    """Quotient rounded down: Triton's own is rounded towards zero."""
    quotient = number // by
    return tl.where(quotient * by > number, quotient - 1, quotient)


@triton.jit
def band_of(row, seqlen_q, seqlen_k, low, high, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """(first, first full, past the full, past the last) KV block of Q blocks in a band.

    Query q sees keys [q + low, q + high). A block is listed if the differences key - query that it
    holds reach into [low, high), and full if they all lie inside.
    """
    top = row * BLOCK_Q
    bottom = tl.minimum(top + BLOCK_Q, seqlen_q)
    blocks = (seqlen_k + BLOCK_K - 1) // BLOCK_K
    first = tl.maximum(floor_div(low + top, BLOCK_K), 0)
    stop = tl.minimum(tl.maximum(ceil_div(high + bottom - 1, BLOCK_K), 0), blocks)
    stop = tl.where((low + top > seqlen_k - 1) | (low >= high), first, tl.maximum(stop, first))
    full = tl.minimum(tl.maximum(ceil_div(low + bottom - 1, BLOCK_K), first), stop)
    full_stop = floor_div(high + top, BLOCK_K)
    full_stop = tl.where(seqlen_k - 1 < high + top, blocks, full_stop)
    full_stop = tl.minimum(tl.maximum(full_stop, full), stop)
    return first, full, full_stop, stop


@triton.jit
def count_band_kernel(
    counts, partial, rows, seqlen_q, seqlen_k, low, high,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Blocks of each Q block, and how many of them are partial."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first, full, full_stop, stop = band_of(row, seqlen_q, seqlen_k, low, high, BLOCK_Q, BLOCK_K)
    tl.store(counts + row, (stop - first).to(tl.int32), mask=row < rows)
    tl.store(partial + row, (stop - first - (full_stop - full)).to(tl.int32), mask=row < rows)


@triton.jit
def band_kernel(
    row_ptr, tile_ptr, col, tile_id, tiles, seqlen_q, seqlen_k, low, high,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WORDS: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Lists and tiles of one Q block of a band."""
    row = tl.program_id(0).to(tl.int64)
    first, full, full_stop, stop = band_of(row, seqlen_q, seqlen_k, low, high, BLOCK_Q, BLOCK_K)
    entry = tl.load(row_ptr + row)
    tile = tl.load(tile_ptr + row)
    for start in range(first, stop, BLOCK):
        block = start + tl.arange(0, BLOCK)
        inside = block < stop
        place = entry + block - first
        tl.store(col + place, block.to(tl.int32), mask=inside)
        number = tile + tl.where(block < full, block - first, full - first + block - full_stop)
        whole = (block >= full) & (block < full_stop)
        tl.store(tile_id + place, tl.where(whole, -1, number).to(tl.int32), mask=inside)
    for number in range(stop - first - (full_stop - full)):
        block = first + number
        block = tl.where(block < full, block, block + (full_stop - full))
        left = block * BLOCK_K
        for offset in range(0, BLOCK_Q * WORDS, CHUNK):
            at = offset + tl.arange(0, CHUNK)
            query = row * BLOCK_Q + at // WORDS
            key = left + (at % WORDS) * 32
            width = tl.minimum(left + BLOCK_K, seqlen_k) - key
            word = span(tl.minimum(query + high - key, width)) & ~span(query + low - key)
            word = tl.where(query < seqlen_q, word, 0)
            target = (tile + number) * (BLOCK_Q * WORDS) + at
            tl.store(tiles + target, word, mask=at < BLOCK_Q * WORDS)


@triton.jit
def tile_of(
    slot, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded,
):  # fmt: skip
    """(number of the tile, its first slot, its tokens) of slots of the video, in tile order.

    Tiles at the far edges are smaller; `padded` says how many slots each takes up, 0 for as many as
    it has tokens.
    """
    slab = tile_t * H * W
    t = slot // slab
    deep = tl.maximum(tl.minimum(tile_t, T - t * tile_t), 1)  # slots past the video divide too
    rest = slot - t * slab
    strip = deep * tile_h * W
    h = rest // strip
    high = tl.maximum(tl.minimum(tile_h, H - h * tile_h), 1)
    rest = rest - h * strip
    run = deep * high * tile_w
    w = rest // run
    number = (t * tiles_h + h) * tiles_w + w
    start = slot - (rest - w * run)
    if padded > 0:
        number = slot // padded
        start = number * padded
        t = number // (tiles_h * tiles_w)
        h = (number // tiles_w) % tiles_h
        w = number % tiles_w
        deep = tl.minimum(tile_t, T - t * tile_t)
        high = tl.minimum(tile_h, H - h * tile_h)
    tokens = deep * high * tl.minimum(tile_w, W - w * tile_w)
    return number, start, tokens


@triton.jit
def tile_start(number, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded):
    """(first slot, tokens) of tiles by their number."""
    t = number // (tiles_h * tiles_w)
    h = (number // tiles_w) % tiles_h
    w = number % tiles_w
    deep = tl.minimum(tile_t, T - t * tile_t)
    high = tl.minimum(tile_h, H - h * tile_h)
    start = t * tile_t * H * W + h * deep * tile_h * W + w * deep * high * tile_w
    start = tl.where(padded > 0, number * padded, start)
    return start, deep * high * tl.minimum(tile_w, W - w * tile_w)


@triton.jit
def sees(query, key, tiles_t, tiles_h, tiles_w, window_t, window_h, window_w):
    """Whether tile `query` sees tile `key`: on each axis, in a window moved inwards at edges."""
    t = query // (tiles_h * tiles_w)
    h = (query // tiles_w) % tiles_h
    w = query % tiles_w
    t = tl.minimum(tl.maximum(t - window_t // 2, 0), tiles_t - window_t)
    h = tl.minimum(tl.maximum(h - window_h // 2, 0), tiles_h - window_h)
    w = tl.minimum(tl.maximum(w - window_w // 2, 0), tiles_w - window_w)
    t = key // (tiles_h * tiles_w) - t
    h = (key // tiles_w) % tiles_h - h
    w = key % tiles_w - w
    inside = (t >= 0) & (t < window_t) & (h >= 0) & (h < window_h)
    return inside & (w >= 0) & (w < window_w)


@triton.jit
def count_windows_kernel(
    listed, full, counts, query_start, seqlen_q, seqlen_k, video_start, video_stop, words, blocks,
    T, H, W, tile_t, tile_h, tile_w, tiles_t, tiles_h, tiles_w,
    window_t, window_h, window_w, padded,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Bits of the blocks that one Q block lists, and of the full ones, tile by tile.

    Slots outside [video_start, video_stop) are text, which sees all tokens and is seen by all. A
    block with a slot that holds no token is not full.
    """
    row = tl.program_id(0)
    top = query_start + row * BLOCK_Q
    bottom = tl.minimum(top + BLOCK_Q, query_start + seqlen_q)
    text_q = (top < video_start) | (bottom > video_stop)
    q_start = tl.maximum(top, video_start) - video_start
    q_stop = tl.minimum(bottom, video_stop) - video_start
    q_first, _, _ = tile_of(q_start, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded)
    q_last, _, _ = tile_of(q_stop - 1, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded)
    q_last = tl.where(q_start < q_stop, q_last, q_first - 1)
    bit = tl.arange(0, 32)
    total = tl.zeros([], tl.int32)
    for group in range(0, words, BLOCK_W):
        at = group + tl.arange(0, BLOCK_W)
        block = at[:, None] * 32 + bit[None, :]
        inside = block < blocks
        left = block * BLOCK_K
        right = tl.minimum(left + BLOCK_K, seqlen_k)
        text_k = (left < video_start) | (right > video_stop)
        k_start = tl.maximum(left, video_start) - video_start
        k_stop = tl.minimum(right, video_stop) - video_start
        has_video = inside & (k_start < k_stop)
        k_start = tl.where(has_video, k_start, 0)
        k_stop = tl.where(has_video, k_stop, 1)
        k_first, k_begin, k_tokens = tile_of(
            k_start, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
        )
        k_last, k_begin, k_tokens = tile_of(
            k_stop - 1, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
        )
        most = tl.max(tl.max(tl.where(has_video, k_last - k_first, -1), 1), 0)
        some = tl.zeros([BLOCK_W, 32], tl.int32)
        lacking = tl.zeros([BLOCK_W, 32], tl.int32)
        token_k = text_k.to(tl.int32)
        token_q = text_q.to(tl.int32)
        for step in range(most + 1):
            key = k_first + step
            there = has_video & (key <= k_last)
            k_begin, k_tokens = tile_start(
                key, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
            )
            held = there & (tl.maximum(k_begin, k_start) < tl.minimum(k_begin + k_tokens, k_stop))
            token_k |= held.to(tl.int32)
            short = there & (padded > 0) & (k_stop > k_begin + k_tokens)
            short = short & (tl.maximum(k_begin + k_tokens, k_start) < k_begin + padded)
            lacking |= short.to(tl.int32)
        for query in range(q_first, q_last + 1):
            start, tokens = tile_start(
                query, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
            )
            has = tl.maximum(start, q_start) < tl.minimum(start + tokens, q_stop)
            token_q |= has.to(tl.int32)
            short = (padded > 0) & (q_stop > start + tokens)
            short = short & (tl.maximum(start + tokens, q_start) < start + padded)
            lacking |= short.to(tl.int32)
            for step in range(most + 1):
                key = k_first + step
                k_begin, k_tokens = tile_start(
                    key, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
                )
                held = has_video & (key <= k_last)
                held = held & (
                    tl.maximum(k_begin, k_start) < tl.minimum(k_begin + k_tokens, k_stop)
                )
                seen = sees(query, key, tiles_t, tiles_h, tiles_w, window_t, window_h, window_w)
                some |= (has & held & seen).to(tl.int32)
                lacking |= (has & held & ~seen).to(tl.int32)
        some |= tl.where(text_q, token_k, 0) | tl.where(text_k, token_q, 0)
        some = tl.where(inside, some, 0)
        word = tl.sum(some << bit[None, :], 1)
        tl.store(listed + row * words + at, word, mask=at < words)
        total += tl.sum(popcount(word), 0)
        word = tl.sum((some & (1 - lacking)) << bit[None, :], 1)
        tl.store(full + row * words + at, word, mask=at < words)
    tl.store(counts + row, total)


@triton.jit
def window_tiles_kernel(
    row_ptr, col, tile_id, tiles, query_start, seqlen_q, seqlen_k, video_start, video_stop,
    T, H, W, tile_t, tile_h, tile_w, tiles_t, tiles_h, tiles_w,
    window_t, window_h, window_w, padded,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Tiles of the partial blocks of one Q block, token by token."""
    row = tl.program_id(0).to(tl.int64)
    bit = tl.arange(0, 32)
    first = tl.load(row_ptr + row) + tl.program_id(1)
    for entry in range(first, tl.load(row_ptr + row + 1), tl.num_programs(1)):
        tile = tl.load(tile_id + entry).to(tl.int64)
        if tile >= 0:
            left = tl.load(col + entry) * BLOCK_K
            for top in range(0, BLOCK_Q, CHUNK):
                i = top + tl.arange(0, CHUNK)
                slot = (query_start + row * BLOCK_Q + i).to(tl.int32)
                real_q = (i < BLOCK_Q) & (row * BLOCK_Q + i < seqlen_q)
                video_q = (slot >= video_start) & (slot < video_stop)
                place_q = tl.where(video_q, slot - video_start, 0)
                query, start_q, tokens_q = tile_of(
                    place_q, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
                )
                real_q = real_q & (~video_q | (place_q < start_q + tokens_q))
                for word_of in range(WORDS):
                    within = word_of * 32 + bit
                    place = left + within
                    real_k = (within < BLOCK_K) & (place < seqlen_k)
                    video_k = (place >= video_start) & (place < video_stop)
                    place_k = tl.where(video_k, place - video_start, 0)
                    key, start_k, tokens_k = tile_of(
                        place_k, T, H, W, tile_t, tile_h, tile_w, tiles_h, tiles_w, padded
                    )
                    real_k = real_k & (~video_k | (place_k < start_k + tokens_k))
                    seen = sees(
                        query[:, None], key[None, :], tiles_t, tiles_h, tiles_w,
                        window_t, window_h, window_w,
                    )  # fmt: skip
                    seen = seen | ~video_q[:, None] | ~video_k[None, :]
                    seen = seen & real_q[:, None] & real_k[None, :]
                    word = tl.sum(seen.to(tl.int32) << bit[None, :], 1)
                    target = (tile * BLOCK_Q + i) * WORDS + word_of
                    tl.store(tiles + target, word, mask=i < BLOCK_Q)
