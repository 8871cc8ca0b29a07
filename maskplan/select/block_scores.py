"""Scores of blocks, checked at the door, and the plan of those selected, empty rows told."""

from collections.abc import Callable

import torch
from torch import Tensor

from maskplan.build.block_mask import from_block_mask
from maskplan.build.host import bool_tensor, on_host, rank
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, option
from maskplan.plan import Plan

_SHOWN = 4


def checked_scores(scores: Tensor, axes: str, nan: str) -> Tensor:
    """`scores`, checked to be floats of 4 axes without NaN, or with NaN as -inf.

    Args:
        scores: floats on the CPU.
        axes: names of the axes, for the error.
        nan: "error", or "drop": a NaN is never selected.

    Raises:
        PlanTypeError: if it is no such tensor.
        PlanError: if it has a NaN and `nan` is "error".
    """
    rank(on_host(scores, "scores"), "scores", (4,), axes, "add or merge axes")
    if not scores.is_floating_point():
        raise PlanTypeError(
            sentence(
                what="scores are not floats",
                where="scores",
                got=str(scores.dtype).removeprefix("torch."),
                wanted="a floating dtype",
                remedy="pass scores.float(); masks enter through maskplan.from_block_mask",
            )
        )
    option(nan, "nan", ("error", "drop"))
    bad = scores.isnan()
    if not bool(bad.any()):
        return scores
    if nan == "drop":
        return scores.masked_fill(bad, -torch.inf)
    places = bad.nonzero()
    raise PlanError(
        sentence(
            what="scores are NaN",
            where=f"scores{places[0].tolist()}",
            got=f"{len(places)} NaN of {scores.numel()}",
            wanted="numbers, -inf for what must not be selected",
            remedy="look for rows that are all -inf before a softmax, or pass nan='drop'",
        )
    )


def selected(
    scores: Tensor,
    pick: Callable[[Tensor, int, int], Tensor],
    geometry: Geometry,
    *,
    always: Tensor | None,
    empty: str,
) -> Plan:
    """The plan of the blocks that `pick` takes, head by head.

    Args:
        scores: floats [batch, heads, M, N].
        pick: called with (scores [M, N] of one head, b, h), gives bool [M, N].
        geometry: lengths and block size, which M and N have to fit.
        always: bool, broadcast to `scores`: blocks kept besides.
        empty: "error", or "allow": rows of which no block is kept.

    Raises:
        PlanError: if a row is empty and `empty` is "error", or the shapes do not fit.
    """
    option(empty, "empty", ("error", "allow"))
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            mask[b, h] = pick(scores[b, h], b, h)
    if always is not None:
        mask |= broadcast(bool_tensor(always, "always"), scores, "always")
    plan = from_block_mask(
        mask, geometry.seqlen_q, geometry.seqlen_k, block_size=geometry.block_size
    )
    none = (~mask.any(dim=3)).nonzero()
    if len(none) and empty == "error" and geometry.num_k_blocks:
        raise_empty(none)
    return plan


def broadcast(tensor: Tensor, scores: Tensor, name: str) -> Tensor:
    """`tensor` expanded to the shape of `scores`.

    Raises:
        PlanError: if it does not broadcast.
    """
    try:
        return tensor.expand(scores.shape)
    except RuntimeError as error:
        raise PlanError(
            sentence(
                what="argument does not fit the scores",
                where=name,
                got=f"shape {list(tensor.shape)}",
                wanted=f"{list(scores.shape)}, or 1 in place of a size",
                remedy="add the axes that are missing",
            )
        ) from error


def raise_empty(rows: Tensor) -> None:
    """Report rows of which nothing was selected, int64 [rows, 3] of (b, h, row)."""
    named = ", ".join(str(tuple(row)) for row in rows[:_SHOWN].tolist())
    raise PlanError(
        sentence(
            what="rows are empty",
            where="the selection",
            got=f"{len(rows)} rows without a block, (b, h, row) = {named}"
            + (", ..." if len(rows) > _SHOWN else ""),
            wanted="a block for every row",
            remedy="select more, keep some blocks with always=, or pass empty='allow' and find "
            "them with empty_rows(plan)",
        )
    )


def empty_rows(plan: Plan) -> Tensor:
    """Rows of blocks that see nothing: int64 [rows, 3] of (b, h, Q block). Their output is 0."""
    listed = plan.canonical().row_ptr.diff().view(plan.num_patterns, -1)
    return (listed[plan.canonical().pattern_id.long()] == 0).nonzero()
