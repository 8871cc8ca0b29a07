"""Masks from bits: a thread owns a row of S, and reads its 128 keep-bits in one load.

NOTE [Tail on every step]: keys past the end of a ragged sequence are cleared in every block that
reaches it, whatever the order of the list and whether or not the block has bits of its own. A
kernel that masks the tail on the first step alone lets padding into the softmax once a list has
another order.

NOTE [Bits of packed rows]: with PackGQA a Q tile holds 128 / G tokens, G rows each, and a bit
stands for all rows of its token. A bit tile of S^T has a line of 128 / G bits for each key.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, const_expr, cute

from kernels_sm100.config import MASK_WORDS
from kernels_sm100.walk import Walk

HALF_ROWS = 64  # rows of half a Q tile


@cute.jit
def keep_words(walk: Walk, tile: Int32, row: Int32) -> cute.Tensor:
    """Keep-bits of one row of a block, four words in registers.

    Args:
        walk: holds the bit tiles.
        tile: a row of them; negative where the block has none, and all keys are kept.
        row: the thread's row of that tile.
    """
    return _row_words(walk, tile, row, MASK_WORDS)


@cute.jit
def keep_half(
    walk: Any,
    tile: Int32,
    key: Int32,
    half: Int32,
    pack: cutlass.Constexpr[int] = 1,
) -> cute.Tensor:
    """Keep-bits of a key and a half of a Q tile: a bit a token, one or two words.

    See NOTE [Bits of packed rows].

    Args:
        walk: holds the bit tiles of S^T, [T, 128 keys, words].
        tile: one of them; negative where the block has none, and all queries are kept.
        key: the thread's.
        half: 0 for the first 64 rows of the Q tile, 1 for the others.
        pack: rows of a token.
    """
    tokens = max(HALF_ROWS // pack, 1)
    words = _all_kept(max(tokens // 32, 1))
    if tile >= 0:
        per_key, number = walk.tiles.shape[2], cute.size(words)
        first = key * per_key
        if const_expr(tokens >= 32):
            first += half * number
        of_key = walk.tiles.iterator + cute.assume(first, divby=number)  # the same in every step
        before = cute.assume(Int64(tile) * (walk.tiles.shape[1] * per_key), divby=number)
        cute.autovec_copy(cute.make_tensor(of_key + before, cute.make_layout(number)), words)
        if const_expr(tokens < 32 and pack <= HALF_ROWS):
            words[0] = words[0] >> (half * tokens)
    return words


@cute.jit
def _row_words(walk: Any, tile: Int32, row: Int32, number: cutlass.Constexpr[int]) -> cute.Tensor:
    words = _all_kept(number)
    if tile >= 0:
        _copy_words(
            walk.tiles, Int64(tile) * walk.tiles.shape[1] * MASK_WORDS + row * number, words
        )
    return words


@cute.jit
def _all_kept(number: cutlass.Constexpr[int]) -> cute.Tensor:
    words = cute.make_rmem_tensor(number, Int32)
    for w in cutlass.range_constexpr(number):
        words[w] = Int32(-1)
    return words


@cute.jit
def _copy_words(tiles: cute.Tensor, first: Int64, words: cute.Tensor) -> None:
    number = cute.size(words)
    source = tiles.iterator + cute.assume(first, divby=number)
    cute.autovec_copy(cute.make_tensor(source, cute.make_layout(number)), words)


@cute.jit
def apply_repeated(scores: cute.Tensor, words: cute.Tensor, repeat: cutlass.Constexpr[int]) -> None:
    """Set 64 scores to -inf whose bit is clear, each for `repeat` scores in a row; a select."""
    for w in cutlass.range_constexpr(HALF_ROWS // 32):
        for i in cutlass.range_constexpr(32 * w, 32 * w + 32):
            at = i // repeat
            keep = Boolean(Uint32(words[at // 32]) & (Uint32(1) << (at % 32)))
            scores[i] = scores[i] if keep else -Float32.inf


@cute.jit
def apply(scores: cute.Tensor, words: cute.Tensor, keys_left: Int32) -> None:
    """Set scores to -inf whose bit is clear or whose key is past the end.

    A select, so that NaN scores go too. Each bit is tested by a constant mask, which ptxas turns
    into predicates seven at a time (R2P).

    Args:
        scores: of a row, 32 a word.
        words: its keep-bits.
        keys_left: keys from the block's first to the end.
    """
    for w in cutlass.range_constexpr(cute.size(words)):
        inside = cutlass.min(cutlass.max(keys_left - 32 * w, 0), 32)
        # In 64 bits, because a shift of 32 bits by 32 is undefined.
        word = Uint32(words[w]) & Uint32((Int64(1) << Int64(inside)) - 1)
        for i in cutlass.range_constexpr(32):
            keep = Boolean(word & (Uint32(1) << i))
            scores[32 * w + i] = scores[32 * w + i] if keep else -Float32.inf
