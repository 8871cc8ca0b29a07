"""Masks from bits: a thread owns a row of S, and reads its 128 keep-bits in one load."""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32

from kernels_sm100.config import MASK_WORDS, TILE_K
from kernels_sm100.walk import Walk

_ALL = 0xFFFFFFFF


@cute.jit
def keep_words(walk: Walk, tile: Int32, row: Int32, keys_left: Int32) -> cute.Tensor:
    """Keep-bits of one row of a block, four words in registers.

    NOTE [Tail on every step]: the ragged end of the keys is folded in here, whatever the order of
    the list and whether or not the block has bits of its own. Where only the first step masks the
    tail, a list in another order lets padding into the softmax.

    Args:
        walk: holds the bit tiles.
        tile: a row of them, or negative where the block has none.
        row: the thread's row of that tile.
        keys_left: keys from the block's first to the end; below 128 in the last block alone.
    """
    words = cute.make_rmem_tensor(MASK_WORDS, Int32)
    for w in cutlass.range_constexpr(MASK_WORDS):
        words[w] = Int32(-1)
    if tile >= 0:
        offset = (Int64(tile) * walk.tiles.shape[1] + row) * MASK_WORDS
        source = cute.make_tensor(
            walk.tiles.iterator + cute.assume(offset, divby=MASK_WORDS), cute.make_layout(MASK_WORDS)
        )
        cute.autovec_copy(source, words)
    if keys_left < TILE_K:
        for w in cutlass.range_constexpr(MASK_WORDS):
            inside = cutlass.min(cutlass.max(keys_left - 32 * w, 0), 32)
            # A shift by 32 is undefined, so the word of no keys is made by a select.
            tail = Uint32(_ALL) >> Uint32((32 - inside) & 31)
            words[w] = words[w] & (Int32(tail) if inside > 0 else Int32(0))
    return words


@cute.jit
def apply(scores: cute.Tensor, words: cute.Tensor):
    """Set scores whose bit is clear to -inf. A select, so that NaN scores go too.

    Bits are tested by constant masks, which compile to predicates seven at a time.
    """
    for w in cutlass.range_constexpr(MASK_WORDS):
        word = Uint32(words[w])
        for i in cutlass.range_constexpr(32):
            keep = Boolean(word & (Uint32(1) << i))
            scores[32 * w + i] = scores[32 * w + i] if keep else -Float32.inf
