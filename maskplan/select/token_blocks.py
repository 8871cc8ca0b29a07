"""The plan of blocks of keys that each query selects for itself, as MoBA and NSA do."""

from torch import Tensor

from maskplan.build.closed_forms import causal as causal_plan
from maskplan.build.topk import from_topk
from maskplan.geometry import block_pair
from maskplan.plan import Plan


def plan_of_token_blocks(
    indices: Tensor,
    seqlen_k: int,
    key_block: int,
    *,
    causal: bool,
    block_size: tuple[int, int],
    lengths: Tensor | None = None,
) -> Plan:
    """Each query sees the keys of the blocks it lists, up to its own position if `causal`.

    Args:
        indices: int32 or int64 [batch, heads, SQ, slots], blocks of `key_block` keys, -1 for none.
        seqlen_k: SK, in tokens.
        key_block: keys of a selected block.
        causal: cut at the diagonal; SQ = SK.
        block_size: (bq, bk) of the plan, in tokens.
        lengths: int, broadcast to [batch, heads, SQ]: leading slots that hold.

    Raises:
        PlanTypeError: as `maskplan.from_topk`.
        PlanError: as `maskplan.from_topk`, or if `causal` and the lengths differ.
    """
    bq, bk = block_pair(block_size)
    size = (bq, key_block)
    plan = from_topk(
        indices, seqlen_k, block_size=size, rows="token", unit="block", lengths=lengths
    )
    if causal:
        plan = plan & causal_plan(plan.seqlen_q, seqlen_k, block_size=size)
    return plan.reblock((bq, bk))
