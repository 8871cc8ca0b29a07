"""Plans as blocks without bits, for formats that list a block or do not."""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.pairs import kept_pairs
from maskplan.plan import Plan


def whole_blocks(
    plan: Plan, block_size: tuple[int, int], where: str, *, superset: bool = False
) -> Plan:
    """`plan` in blocks of `block_size`, every one of them full.

    Args:
        plan: the plan.
        block_size: (bq, bk) of the format, in tokens.
        where: what the error calls the format.
        superset: keep whole blocks where the plan keeps a part of one: more pairs than it says.

    Raises:
        PlanError: if some block is kept in part and `superset` is False.
    """
    moved = plan.reblock(block_size, superset=superset)
    if moved.tile_id is None:
        return moved
    partial = int((moved.tile_id >= 0).sum())
    whole = kept_pairs(plan.reblock(block_size, superset=True))
    raise PlanError(
        sentence(
            what="format cannot hold blocks that are kept in part",
            where=where,
            got=f"{partial} mask blocks of {block_size[0]} x {block_size[1]} tokens",
            wanted="whole blocks",
            remedy=f"pass superset=True to keep {whole} pairs instead of {kept_pairs(plan)}, or "
            "use a format with masks",
        )
    )


def pattern_masks(plan: Plan) -> Tensor:
    """Which blocks each pattern lists, full or in part: bool [P, M, N]."""
    rows, cols = plan.axes.rows, plan.axes.cols
    listed = torch.zeros(plan.num_patterns * rows * cols, dtype=torch.bool)
    line = torch.repeat_interleave(torch.arange(len(plan.row_ptr) - 1), plan.row_ptr.diff())
    listed[line * cols + plan.col] = True
    return listed.view(plan.num_patterns, rows, cols)


def block_mask_of(plan: Plan) -> Tensor:
    """The same by head: bool [batch, heads, M, N]."""
    return pattern_masks(plan)[plan.pattern_id.long()]


def one_pattern(plan: Plan, where: str) -> Plan:
    """`plan`, checked to hold one pattern for all of its (batch, head).

    Raises:
        PlanError: if it holds several.
    """
    if plan.num_patterns == 1:
        return plan
    raise PlanError(
        sentence(
            what="format holds one mask for all heads",
            where=where,
            got=f"{plan.num_patterns} distinct patterns over {plan.heads} heads",
            wanted="one",
            remedy="export each head by itself, as plan.shard('heads', head, plan.heads) cuts it",
        )
    )
