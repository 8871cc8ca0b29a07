"""`RankedBits`: the bits of a plan for mask functions, which are not told the place in a list.

NOTE [Rank]: FlexAttention and FlashAttention-4 call a mask function with (b, h, q, k). For each row
of blocks there are words with a bit for every listed KV block, and the number of entries listed
before each word; a block's entry is that number plus the bits set below its own. So a table costs
one bit a block pair and 4 bytes for 32 of them, never a number a pair. Entry 0 stands for "not
listed" and tile rows 0 and 1 for "no pair" and "every pair": what is not listed or full then takes
the same path as everything else, and a mask function has no branches and no sizes in it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.errors import UnsupportedError, sentence
from maskplan.geometry import WORD_BITS
from maskplan.lower.packing import pack, unpack
from maskplan.plan import Plan

NOTHING, EVERYTHING = 0, 1  # rows of `tiles`, before those of the plan
_INDEX_LIMIT = 1 << 31  # engines index tiles in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankedBits:
    """Tables by which a mask function finds the bit of a pair; see NOTE [Rank].

    Attributes:
        first_line: int32 [batch, heads]: the line of Q block 0 of each (batch, head).
        words: int32 [lines, W]: bit i of word w is set if KV block 32 * w + i is listed.
        before: int32 [lines, W]: the entry of the first block listed in that word, if any.
        content: int32 [entries + 1]: the row of `tiles` of each entry; entry 0 is no block's.
        tiles: int32 [T + 2, bq, words of a tile].
        block_size: (bq, bk), in tokens.
    """

    first_line: Tensor
    words: Tensor
    before: Tensor
    content: Tensor
    tiles: Tensor
    block_size: tuple[int, int]

    def to(self, device: torch.device | str) -> "RankedBits":
        """The same with every tensor on `device`."""
        packed = pack(self)
        bits: RankedBits = unpack([x.to(device) for x in packed.tensors], packed.spec)
        return bits


def ranked_bits(plan: Plan) -> RankedBits:
    """The tables of a plan, exact for every pair in range, listed or not.

    Raises:
        UnsupportedError: if the tiles hold 2^31 words or more, which no engine can index.
    """
    tiles = _with_constants(plan.tiles)
    if tiles.numel() >= _INDEX_LIMIT:
        raise UnsupportedError(
            sentence(
                what="too many bit tiles",
                where="the mask function of an engine",
                got=f"{len(plan.tiles)} tiles, {tiles.numel()} words",
                wanted=f"fewer than {_INDEX_LIMIT} words",
                remedy="take larger parts of the mask as whole blocks, or shard the plan by heads",
            )
        )
    rows, width = plan.axes.rows, max(-(-plan.axes.cols // WORD_BITS), 1)
    words, before = _ranks(plan, width)
    held = torch.full_like(plan.col, -1) if plan.tile_id is None else plan.tile_id
    rows_of_tiles = torch.where(held < 0, EVERYTHING, held + 2).to(torch.int32)
    return RankedBits(
        first_line=plan.pattern_id * rows,
        words=words.view(-1, width),
        before=before.view(-1, width),
        content=torch.cat([rows_of_tiles.new_zeros(1), rows_of_tiles]),
        tiles=tiles,
        block_size=plan.block_size,
    )


def _with_constants(tiles: Tensor) -> Tensor:
    """The tiles behind one with no pair and one with every pair."""
    # Filled where it lies: numbers from the host would keep a CUDA graph from being captured.
    behind = tiles.new_empty(len(tiles) + 2, *tiles.shape[1:])
    behind[NOTHING].zero_()
    behind[EVERYTHING].fill_(-1)
    behind[2:].copy_(tiles)
    return behind


def _ranks(plan: Plan, width: int) -> tuple[Tensor, Tensor]:
    """(words, before) of the listed blocks, int32 of lines * W numbers each."""
    if plan.status is not None:
        from maskplan.device.lists import ranks

        found = ranks(plan)
        return found.listed, found.before + 1
    lines = len(plan.row_ptr) - 1
    line = torch.repeat_interleave(torch.arange(lines, device="cpu"), plan.row_ptr.diff())
    at = line * width + plan.col // WORD_BITS
    words = torch.zeros(lines * width, dtype=torch.int64, device="cpu")
    words.index_add_(0, at, 1 << (plan.col.long() % WORD_BITS))
    counts = torch.zeros_like(words).index_add_(0, at, torch.ones_like(at))
    before = counts.cumsum(0) - counts + 1
    signed = torch.where(words >= 1 << 31, words - (1 << WORD_BITS), words)
    return signed.to(torch.int32), before.to(torch.int32)
