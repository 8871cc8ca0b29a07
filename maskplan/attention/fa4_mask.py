"""Mask functions of flash-attn-4 that read a plan's bits, as CuTe code.

Imports cutlass and flash-attn-4: import it through `maskplan.attention.fa4_kernels` only. How a bit
is found is NOTE [Rank] of maskplan/lower/ranked_bits.py. Everything that differs between plans of
one block size is a tensor, so plans share compiled kernels. Indices are unsigned: then a division
by a block size that is a power of two is one shift.

flash-attn-4 wraps indices into the sequence where it knows that a tile hangs over its end, and not
always for queries: past SQ they stay in the last Q block, whose tiles have rows for them.
"""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Uint32, cute
from flash_attn.cute import utils

WORD_BITS = 32


def _flat(tensor: Any) -> Any:
    """A contiguous tensor as one axis: index arithmetic of one multiply instead of one an axis."""
    return cute.make_tensor(tensor.iterator, cute.make_layout(cute.size(tensor)))


def _word(aux: Any, b: Any, h: Any, token: Any, key: Any, block_size: tuple[int, int]) -> Any:
    """Uint32 with the bits of the 32 keys of `key`'s word in its block, for query `token`."""
    first_line, words, before, content, tiles = aux
    bq, bk = block_size
    b, h = cutlass.min(b, first_line.shape[0] - 1), cutlass.min(h, first_line.shape[1] - 1)
    block = key // bk
    line = Uint32(first_line[b, h]) + token // bq
    at = Int32(line * Uint32(words.shape[1]) + block // WORD_BITS)
    listed = Uint32(_flat(words)[at])
    bit = block % WORD_BITS
    is_listed = (listed >> bit) & Uint32(1)
    below = cute.arch.popc(listed & ((Uint32(1) << bit) - Uint32(1)))
    entry = (Uint32(_flat(before)[at]) + below) * is_listed
    tile = Uint32(_flat(content)[Int32(entry)])
    row = tile * bq + token % bq
    return Uint32(_flat(tiles)[Int32(row * -(-bk // WORD_BITS) + key % bk // WORD_BITS)])


@lru_cache
def scalar_mask(block_size: tuple[int, int], rows_per_token: int) -> Any:
    """A mask_mod called for each pair: what SM90 takes, and every backward.

    Args:
        block_size: (bq, bk) of the tables, in tokens.
        rows_per_token: heads folded into rows; q counts rows.
    """

    def mask(b: Any, h: Any, q: Any, k: Any, _seqlen: Any, aux: Any) -> Any:
        key = Uint32(k[0])
        word = _word(aux, b[0], h[0], Uint32(q[0]) // rows_per_token, key, block_size)
        keep = (word >> (key % block_size[1] % WORD_BITS)) & Uint32(1)
        return utils.scalar_to_ssa(Boolean(keep), Boolean)

    return _named(cute.jit(mask), "scalar", block_size, rows_per_token)


@lru_cache
def vector_mask(block_size: tuple[int, int], rows_per_token: int) -> Any:
    """A mask_mod called for 32 neighbouring keys, which returns their bits: SM100's forward alone.

    Everywhere else it would be miscompiled without a word. The keys begin at a multiple of 32, and
    blocks are multiples of 32 keys, so all share one word.
    """

    def mask(b: Any, h: Any, q: Any, k: Any, _seqlen: Any, aux: Any) -> Any:
        word = _word(aux, b[0], h[0], Uint32(q[0]) // rows_per_token, Uint32(k[0]), block_size)
        return utils.scalar_to_ssa(word, cutlass.Uint32)

    compiled = _named(cute.jit(mask), "vector", block_size, rows_per_token)
    compiled.__vec_size__ = WORD_BITS
    return compiled


def _named(mask: Any, kind: str, block_size: tuple[int, int], rows_per_token: int) -> Any:
    """`mask` with its name in the cache of compiled kernels, which may outlive this file's text."""
    text = f"{kind} {block_size} {rows_per_token}\n{Path(__file__).read_text()}"
    getattr(mask, "__wrapped__", mask).__cute_hash__ = sha256(text.encode()).hexdigest()
    return mask
