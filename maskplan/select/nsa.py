"""Native sparse attention: the blocks a query selects by the scores of compressed blocks.

Source: NSA (arXiv 2502.11089), equations 9 to 12; flash-linear-attention, `fla/ops/nsa`.
"""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan
from maskplan.select.block_scores import checked_scores
from maskplan.select.token_blocks import plan_of_token_blocks
from maskplan.untransformed import untransformed


def selection_scores(
    compressed: Tensor, *, length: int, stride: int, select_block: int, blocks: int
) -> Tensor:
    """Scores of selection blocks from probabilities of compressed ones.

    Compressed block i covers keys [i * stride, i * stride + length). The score of selection block j
    is the sum over m < select_block / stride and n < length / stride of compressed block
    select_block / stride * j + m - n, as far as there is one: each counts as often as the two share
    a stride of keys. (Equation 9 prints -m, for blocks counted from their ends.)

    Args:
        compressed: floats [batch, heads, T, compressed blocks].
        length: keys of a compressed block, a multiple of `stride`.
        stride: keys from one compressed block to the next.
        select_block: keys of a selection block, a multiple of `stride`.
        blocks: selection blocks, ceil(T / select_block).

    Returns:
        floats [batch, heads, T, blocks]; sum them over the heads of a group before selecting.

    Raises:
        PlanError: if a size is no multiple of `stride`.
    """
    stride = integer(stride, "stride", low=1)
    for name, size in (("length", length), ("select_block", select_block)):
        if integer(size, name, low=1) % stride:
            raise PlanError(
                sentence(
                    what="size is no multiple of the stride",
                    where=name,
                    got=size,
                    wanted=f"a multiple of stride = {stride}",
                    remedy="pass the sizes that the compression was made with",
                )
            )
    per_block, overlap = select_block // stride, length // stride
    count = compressed.shape[-1]
    scores = compressed.new_zeros((*compressed.shape[:-1], integer(blocks, "blocks")))
    for m in range(per_block):
        for n in range(overlap):
            at = torch.arange(blocks) * per_block + m - n
            there = (at >= 0) & (at < count)
            scores[..., there] += compressed[..., at[there]]
    return scores


def block_indices(
    scores: Tensor, k: int, *, select_block: int, initial: int, local: int, nan: str = "error"
) -> Tensor:
    """The k best blocks of each query up to its own, some of them in any case.

    Args:
        scores: floats [batch, heads, T, ceil(T / select_block)], heads the KV heads.
        k: blocks per query, at least `initial` + `local` and 1; 16 in the paper.
        select_block: keys of a block, 64 in the paper.
        initial: leading blocks always among the k; 1 in the paper.
        local: blocks up to the query's own always among the k; 2 in the paper.
        nan: "error", or "drop": a NaN is never selected.

    Returns:
        int64 [batch, heads, T, k], ascending, then -1.

    Raises:
        PlanTypeError: if scores have the wrong dtype or rank.
        PlanError: if they are NaN or do not fit the length, or k is too small.
    """
    scores = checked_scores(scores, "[batch, heads, T, blocks]", nan)
    select_block = integer(select_block, "select_block", low=1)
    fixed = integer(initial, "initial") + integer(local, "local")
    if integer(k, "k") < max(fixed, 1):
        raise PlanError(
            sentence(
                what="too few blocks to select",
                where="k",
                got=k,
                wanted=f"at least {max(fixed, 1)}, initial + local and 1",
                remedy="pass a larger k",
            )
        )
    seqlen, blocks = scores.shape[2:]
    if blocks != -(-seqlen // select_block):
        raise PlanError(
            sentence(
                what="scores do not fit the blocks",
                where="scores, last axis",
                got=f"{blocks} blocks",
                wanted=f"{-(-seqlen // select_block)}, of {select_block} keys in {seqlen}",
                remedy="pass the select_block that the scores were made for",
            )
        )
    own = torch.arange(seqlen)[:, None] // select_block
    block = torch.arange(blocks)
    sure = (block < initial) | ((block > own - local) & (block <= own))
    ranked = scores.masked_fill(sure, torch.inf).masked_fill(block > own, -torch.inf)
    values, order = ranked.sort(dim=-1, descending=True, stable=True)
    taken = order.masked_fill(values == -torch.inf, blocks)[..., :k].sort(dim=-1).values
    if blocks < k:
        taken = torch.nn.functional.pad(taken, (0, k - blocks), value=blocks)
    return taken.masked_fill(taken == blocks, -1)


@untransformed
def nsa(
    scores: Tensor,
    k: int,
    *,
    select_block: int,
    initial: int,
    local: int,
    block_size: tuple[int, int] = (128, 128),
    nan: str = "error",
) -> Plan:
    """The plan of `block_indices`: each query's blocks, up to its own position."""
    indices = block_indices(
        scores, k, select_block=select_block, initial=initial, local=local, nan=nan
    )
    return plan_of_token_blocks(
        indices, scores.shape[2], select_block, causal=True, block_size=block_size
    )
