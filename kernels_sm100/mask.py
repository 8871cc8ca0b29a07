"""Masks from bits: a thread owns a row of S, and reads its 128 keep-bits in one load.

NOTE [Tail on every step]: keys past the end of a ragged sequence are cleared in every block that
reaches it, whatever the order of the list and whether or not the block has bits of its own. A
kernel that masks the tail on the first step alone lets padding into the softmax once a list has
another order.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, cute

from kernels_sm100.config import MASK_WORDS
from kernels_sm100.walk import Walk


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
def keep_half(walk: Any, tile: Int32, row: Int32, half: Int32) -> cute.Tensor:
    """Keep-bits of a half of a row, two words; else as `keep_words`."""
    return _row_words(walk, tile, row * 2 + half, MASK_WORDS // 2)


@cute.jit
def _row_words(walk: Any, tile: Int32, row: Int32, number: cutlass.Constexpr[int]) -> cute.Tensor:
    words = cute.make_rmem_tensor(number, Int32)
    for w in cutlass.range_constexpr(number):
        words[w] = Int32(-1)
    if tile >= 0:
        offset = Int64(tile) * walk.tiles.shape[1] * MASK_WORDS + row * number
        source = cute.make_tensor(
            walk.tiles.iterator + cute.assume(offset, divby=number), cute.make_layout(number)
        )
        cute.autovec_copy(source, words)
    return words


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
