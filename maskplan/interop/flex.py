"""FlexAttention's BlockMask, both ways.

Out: block lists, and a `mask_mod` that reads the plan's bits. A mask_mod sees (b, h, q, k) and not
the place in a list, so it finds a block's entry by rank: for each row of blocks, words with a bit
for every listed KV block, and the number of entries before each word; the entry is that number plus
the bits set below the block's own. At most 1 bit a block pair, plus 4 bytes for 32 of them. It is
right for every pair, listed or not, because eager FlexAttention asks it for all of them.

Tiles are read as octets: compiled FlexAttention stages wider gathers in shared memory, where they
do not fit beside K and V. Partial blocks cost several times as much as with a mask_mod of
comparisons; kernel_options={"num_stages": 1} makes them cheaper where a plan has many.

In: mask_mod is evaluated in the partial blocks only.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.build.block_lists import from_block_lists
from maskplan.build.mask_fn import MaskFn
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import WORD_BITS, integer
from maskplan.plan import FULL, Plan


def to_block_mask(plan: Plan, *, device: torch.device | str | None = None) -> Any:
    """The BlockMask of a plan, for `flex_attention`.

    Args:
        plan: with batch 1 or B, heads 1 or HQ: FlexAttention numbers query heads, so a plan of KV
            heads takes plan.with_heads(HQ) first.
        device: where its tensors go; the plan's device by default.

    Returns:
        torch.nn.attention.flex_attention.BlockMask of [batch, heads, SQ, SK].

    Raises:
        PlanError: if a length is 0, which a BlockMask cannot have.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not plan.seqlen_q or not plan.seqlen_k:
        raise PlanError(
            sentence(
                what="block masks have no length 0",
                where="to_block_mask",
                got=str(plan.geometry),
                wanted="at least one query and one key",
                remedy="skip the call: there is nothing to attend to",
            )
        )
    lists = plan.block_sparse_tensors(width="dense")
    place = plan.device if device is None else torch.device(device)
    counts = (lists.mask_block_cnt, lists.full_block_cnt)
    # FlexAttention gathers by these lists, so their unused slots have to be in range.
    blocks = tuple(idx.clamp(min=0) for idx in (lists.mask_block_idx, lists.full_block_idx))
    return BlockMask.from_kv_blocks(
        counts[0].to(place),
        blocks[0].to(place),
        counts[1].to(place),
        blocks[1].to(place),
        BLOCK_SIZE=plan.block_size,
        mask_mod=mask_mod_of(plan, device=place),
        seq_lengths=(plan.seqlen_q, plan.seqlen_k),
    )


def mask_mod_of(plan: Plan, *, device: torch.device | str | None = None) -> MaskFn:
    """A mask_mod (b, h, q, k) -> bool that is True exactly where the plan keeps the pair.

    It captures tensors on `device`, of O(M * N / 32 + blocks + tiles) numbers a pattern, and reads
    five numbers for each pair. Pairs must lie inside (SQ, SK).
    """
    place = plan.device if device is None else torch.device(device)
    words, before = _ranks(plan)
    content = torch.full_like(plan.col, FULL) if plan.tile_id is None else plan.tile_id
    content = torch.cat([content, content.new_full((1,), FULL)])  # never empty to index
    tiles = torch.cat([plan.tiles, plan.tiles.new_zeros((1, *plan.tiles.shape[1:]))])
    octets = torch.from_numpy(tiles.numpy().astype("<i4", copy=False).view(np.uint8))
    (bq, bk), rows = plan.block_size, plan.axes.rows
    batched, headed = plan.batch > 1, plan.heads > 1
    ids, words, before, content, octets = (
        part.to(place) for part in (plan.pattern_id, words, before, content, octets)
    )

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        pattern = ids[b if batched else b * 0, h if headed else h * 0]
        line, block = pattern * rows + q // bq, k // bk
        word, bit = block // WORD_BITS, block % WORD_BITS
        present = words[line, word]
        listed = ((present >> bit) & 1) == 1
        below = _bits_set(present & ((1 << bit) - 1))
        entry = torch.where(listed, before[line, word] + below, content.shape[0] - 1)
        tile, column = content[entry], k % bk
        bits = octets[torch.where(tile < 0, octets.shape[0] - 1, tile), q % bq, column // 8]
        kept = ((bits >> (column % 8)) & 1) == 1
        return listed & ((tile < 0) | kept)

    return mask_mod


def _ranks(plan: Plan) -> tuple[Tensor, Tensor]:
    """(int32 [P * M, ceil(N / 32)] words of listed blocks, int32 entries before each word)."""
    lines, width = len(plan.row_ptr) - 1, max(-(-plan.axes.cols // WORD_BITS), 1)
    line = torch.repeat_interleave(torch.arange(lines), plan.row_ptr.diff())
    at = line * width + plan.col // WORD_BITS
    words = torch.zeros(lines * width, dtype=torch.int64)
    words.index_add_(0, at, 1 << (plan.col.long() % WORD_BITS))
    counts = torch.bincount(at, minlength=lines * width)
    before = counts.cumsum(0) - counts
    signed = torch.where(words >= 1 << 31, words - (1 << WORD_BITS), words).to(torch.int32)
    return signed.view(lines, width), before.view(lines, width).to(torch.int32)


def _bits_set(word: Tensor) -> Tensor:
    """Bits set in words of which bit 31 is not."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 0xFF


def from_block_mask_object(
    block_mask: Any, *, batch: int | None = None, heads: int | None = None
) -> Plan:
    """The plan of a BlockMask on the CPU.

    A BlockMask made with B=None or H=None holds one list for all, while its mask_mod may still tell
    them apart: `batch` and `heads` say how many to evaluate.

    Args:
        block_mask: torch.nn.attention.flex_attention.BlockMask.
        batch: number of samples, by default as many as the lists have.
        heads: number of query heads, likewise.

    Raises:
        PlanTypeError: if it is no BlockMask, or its tensors are not on the CPU.
        PlanError: if `batch` or `heads` do not fit the lists, or a list is not valid.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(block_mask, BlockMask):
        raise PlanTypeError(
            sentence(
                what="argument is not a BlockMask",
                where="block_mask",
                got=type(block_mask).__name__,
                wanted="torch.nn.attention.flex_attention.BlockMask",
                remedy="make one with create_block_mask, or pass a mask_mod to from_mask_fn",
            )
        )
    mask_idx, mask_cnt = block_mask.kv_indices, block_mask.kv_num_blocks
    full_idx, full_cnt = block_mask.full_kv_indices, block_mask.full_kv_num_blocks
    if full_idx is None or full_cnt is None:
        full_cnt, full_idx = torch.zeros_like(mask_cnt), mask_idx[..., :0]
    sizes = []
    for axis, (name, wanted) in enumerate((("batch", batch), ("heads", heads))):
        own = mask_cnt.shape[axis]
        size = own if wanted is None else integer(wanted, name, low=1)
        if own not in (1, size):
            raise PlanError(
                sentence(
                    what=f"{name} does not fit the block mask",
                    where=name,
                    got=size,
                    wanted=f"{own}, as its lists",
                    remedy="leave it out, or make the BlockMask for as many",
                )
            )
        sizes.append(size)
    lists = [
        part.expand(*sizes, *part.shape[2:]) for part in (full_cnt, full_idx, mask_cnt, mask_idx)
    ]
    seqlen_q, seqlen_k = block_mask.seq_lengths
    return from_block_lists(
        lists[0],
        lists[1],
        seqlen_q,
        seqlen_k,
        block_size=(block_mask.BLOCK_SIZE[0], block_mask.BLOCK_SIZE[1]),
        mask_cnt=lists[2],
        mask_idx=lists[3],
        mask_fn=block_mask.mask_mod,
        sort=True,
    )
