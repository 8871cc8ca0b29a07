"""FlexAttention's mask function that reads a plan's bits.

How a bit is found is NOTE [Rank] of maskplan/lower/ranked_bits.py. Tiles are read as octets:
compiled FlexAttention stages wider gathers in shared memory, where they do not fit beside K and V.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from maskplan.geometry import WORD_BITS
from maskplan.lower.ranked_bits import RankedBits

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def octets_of(tiles: Tensor) -> Tensor:
    """The bytes of bit tiles, uint8 [T, R, 4 * W], bit i of octet o for column 8 * o + i."""
    octets = tiles.contiguous().view(torch.uint8)
    if sys.byteorder == "big":
        octets = octets.view(*tiles.shape, 4).flip(-1).flatten(-2)
    return octets


def bit_mask(
    first_line: Tensor,
    words: Tensor,
    before: Tensor,
    content: Tensor,
    octets: Tensor,
    block_size: tuple[int, int],
) -> MaskMod:
    """A mask_mod (b, h, q, k) -> bool that is True exactly where the plan keeps the pair.

    Right for every pair inside (SQ, SK), listed or not: eager FlexAttention asks for all of them.
    It reads five numbers a pair, and nothing in it depends on how many blocks or tiles there are.

    Args:
        first_line: int32 [batch, heads], as in `RankedBits`.
        words: int32 [lines, W].
        before: int32 [lines, W].
        content: int32 [entries + 1].
        octets: uint8 [T + 2, bq, 4 * words of a tile].
        block_size: (bq, bk).
    """
    (bq, bk), batched, headed = block_size, first_line.shape[0] > 1, first_line.shape[1] > 1

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        first = first_line[b if batched else b * 0, h if headed else h * 0]
        line, block = first + q // bq, k // bk
        word, bit = block // WORD_BITS, block % WORD_BITS
        present = words[line, word]
        listed = (present >> bit) & 1
        entry = (before[line, word] + _bits_set(present & ((1 << bit) - 1))) * listed
        column = k % bk
        bits = octets[content[entry], q % bq, column // 8]
        return ((bits >> (column % 8)) & 1) == 1

    return mask_mod


def mask_of(bits: RankedBits) -> MaskMod:
    """The mask_mod of a plan's tables."""
    return bit_mask(
        bits.first_line, bits.words, bits.before, bits.content, octets_of(bits.tiles),
        bits.block_size,
    )  # fmt: skip


def _bits_set(word: Tensor) -> Tensor:
    """Bits set in words of which bit 31 is not."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 0xFF
