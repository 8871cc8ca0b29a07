"""FlexAttention's BlockMask, both ways.

Out: block lists, and a `mask_mod` that reads the plan's bits. A mask_mod sees (b, h, q, k) and not
the place in a list, so it finds a block by rank: see NOTE [Rank] of maskplan/lower/ranked_bits.py.
Partial blocks cost several times as much as with a mask_mod of comparisons;
kernel_options={"num_stages": 1} makes them cheaper where a plan has many.

In: mask_mod is evaluated in the partial blocks only.
"""

from typing import Any

import torch

from maskplan.attention.flex_mask import mask_of
from maskplan.build.block_lists import from_block_lists
from maskplan.build.mask_fn import MaskFn
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import integer
from maskplan.lower.ranked_bits import ranked_bits
from maskplan.plan import Plan


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
    return mask_of(ranked_bits(plan).to(plan.device if device is None else device))


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
