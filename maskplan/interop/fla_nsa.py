"""fla's native sparse attention (NSA): the blocks that each query selects, causal within them.

A query sees the keys of its selected blocks up to its own position, its own included. Unused slots
hold T, the number of tokens.

Source: flash-linear-attention, `fla/ops/nsa/parallel.py` and `naive.py` (block_indices
[B, T, H, S], block_counts [B, T, H] or an integer).
"""

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan
from maskplan.select.token_blocks import plan_of_token_blocks


def from_block_indices(
    block_indices: Tensor,
    block_counts: Tensor | int | None = None,
    *,
    select_block: int = 64,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """The plan of NSA's selected blocks.

    Args:
        block_indices: int32 or int64 [B, T, H, S], H the KV heads; T where a slot is unused.
        block_counts: int [B, T, H], or one number: leading slots that hold; all by default.
        select_block: keys of a selected block, 64 in NSA.
        block_size: (bq, bk) of the plan, in tokens.

    Returns:
        A plan of H heads.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: if a slot that holds is neither a block nor T, a count exceeds S, or
            counts do not have the shape of the lists.
    """
    rank(index_tensor(block_indices, "block_indices"), "block_indices", (4,), "[B, T, H, S]",
         "add the axes")  # fmt: skip
    select_block = integer(select_block, "select_block", low=1)
    seqlen = block_indices.shape[1]
    lists = block_indices.masked_fill(block_indices == seqlen, -1)
    bad = block_indices == -1
    lengths = None
    if isinstance(block_counts, Tensor):
        rank(index_tensor(block_counts, "block_counts"), "block_counts", (3,), "[B, T, H]", "add B")
        if block_counts.shape != block_indices.shape[:3]:
            raise PlanError(
                sentence(
                    what="counts do not fit the lists",
                    where="block_counts",
                    got=f"shape {list(block_counts.shape)}",
                    wanted=f"{list(block_indices.shape[:3])}, [B, T, H] of block_indices",
                    remedy="pass the counts of these lists, or one number for all",
                )
            )
        lengths = block_counts.transpose(1, 2)
    elif block_counts is not None:
        count = integer(block_counts, "block_counts")
        lengths = torch.full((1, 1, 1), count, dtype=torch.int64)
    if lengths is not None:
        slots = torch.arange(block_indices.shape[3])
        bad &= slots < lengths.transpose(1, 2)[..., None]
    if bool(bad.any()):
        b, t, h, slot = bad.nonzero()[0].tolist()
        raise PlanError(
            sentence(
                what="unused slot is not marked as fla marks it",
                where=f"block_indices[b={b}, t={t}, h={h}, slot={slot}]",
                got=-1,
                wanted=f"T = {seqlen}",
                remedy="pass block_indices as fla holds it, or maskplan.from_topk for -1",
            )
        )
    return plan_of_token_blocks(
        lists.transpose(1, 2),
        seqlen,
        select_block,
        causal=True,
        block_size=block_size,
        lengths=lengths,
    )


def to_block_indices(plan: Plan, *, select_block: int = 64) -> tuple[Tensor, Tensor]:
    """(block_indices int64 [B, T, H, S], block_counts int64 [B, T, H]) of a plan.

    Blocks ascend and S is the longest list, at least 1.

    Raises:
        PlanError: if the lengths differ, or a query does not see a block up to its own position
            whole or not at all.
    """
    select_block = integer(select_block, "select_block", low=1)
    seqlen = plan.seqlen_k
    if plan.seqlen_q != seqlen:
        _refuse(f"{plan.seqlen_q} queries and {seqlen} keys", "equal lengths")
    rows = plan.reblock((1, select_block))
    counts = rows.row_ptr.diff()
    line = torch.repeat_interleave(torch.arange(len(counts)), counts)
    slot = torch.arange(rows.num_blocks) - rows.row_ptr[:-1][line]
    patterns = len(counts) // seqlen if seqlen else 1
    width = max(int(counts.max()) if len(counts) else 0, 1)
    lists = torch.full((len(counts), width), seqlen, dtype=torch.int64)
    lists[line, slot] = rows.col.long()
    ids = plan.canonical().pattern_id if not seqlen else rows.pattern_id
    block_indices = lists.view(patterns, seqlen, width)[ids.long()].transpose(1, 2).contiguous()
    block_counts = counts.view(patterns, seqlen)[ids.long()].transpose(1, 2).contiguous()
    if (
        seqlen
        and from_block_indices(
            block_indices, block_counts, select_block=select_block, block_size=plan.block_size
        )
        != plan
    ):
        _refuse("a plan that is not made of such blocks", "whole causal blocks for every query")
    return block_indices, block_counts


def _refuse(got: str, wanted: str) -> None:
    raise PlanError(
        sentence(
            what="plan is not one of NSA's",
            where="block_indices",
            got=got,
            wanted=wanted,
            remedy="use a format that holds token masks",
        )
    )
