"""Draft attention: regions of a frame that see regions chosen on a pooled, draft resolution."""

import torch
from torch import Tensor

from maskplan.build.host import on_host, rank
from maskplan.errors import PlanError, sentence
from maskplan.geometry import number
from maskplan.patterns.grid import Grid
from maskplan.patterns.tile_map import tile_map
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def draft(
    grid: Grid,
    kept: Tensor,
    *,
    tile: tuple[int, int, int] = (1, 8, 16),
    block_size: tuple[int, int] = (128, 128),
    pad: bool = False,
    free_rows: bool = False,
    queries: str = "all",
) -> Plan:
    """The plan of draft attention: regions of a frame, 8 rows by 16 columns, see chosen regions.

    Tokens are laid out by `TokenOrder.strips(grid)`, which is tile order with this tile; canvases
    that 8 x 16 does not divide have smaller regions at their edges. Text sees and is seen.

    Args:
        grid: the latent grid.
        kept: bool [batch, heads, regions, regions]; `draft_kept` makes it from scores.
        tile: tokens of a region along (t, h, w).
        block_size: (bq, bk), in tokens.
        pad: as in `vsa`.
        free_rows: as in `vsa`.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if `kept` has another dtype or rank.
        PlanError: if it does not have one row and one column a region.

    Source: arXiv 2505.14708, where 8 divides H and 16 divides W.
    """
    return tile_map(
        grid,
        kept,
        tile=tile,
        block_size=block_size,
        pad=pad,
        free_rows=free_rows,
        queries=queries,
        builder="draft",
    )


def draft_kept(scores: Tensor, sparsity: float) -> Tensor:
    """Regions kept: those above the `int(sparsity * n)` smallest scores of each (batch, head).

    The threshold is the largest of those smallest scores, and scores equal to it are kept, so that
    at least n - int(sparsity * n) + 1 of n are.

    Args:
        scores: float [batch, heads, regions, regions], the softmax of pooled q against pooled k.
        sparsity: share of pairs of regions to drop, from 0 up to but not including 1.

    Returns:
        bool, as `scores`.

    Raises:
        PlanTypeError: if `scores` is not a float tensor of 4 axes.
        PlanError: if a score is NaN, or `sparsity` is out of range.

    Source: draft-attention, `k = int((1 - r) * n)`, with its ties.
    """
    rank(
        on_host(scores, "scores"),
        "scores",
        (4,),
        "[batch, heads, regions, regions]",
        "add the axes",
    )
    sparsity = number(sparsity, "sparsity")
    if not 0 <= sparsity < 1:
        raise PlanError(
            sentence(
                what="sparsity out of range",
                where="sparsity",
                got=sparsity,
                wanted="0 <= sparsity < 1",
                remedy="pass the share of pairs to drop",
            )
        )
    if bool(scores.isnan().any()):
        place = tuple(scores.isnan().nonzero()[0].tolist())
        raise PlanError(
            sentence(
                what="score is not a number",
                where=f"scores[{', '.join(map(str, place))}]",
                got="nan",
                wanted="numbers that can be ranked",
                remedy="find out where the NaN comes from, or give it -inf",
            )
        )
    flat = scores.flatten(2)
    smallest = int(sparsity * flat.shape[2])
    if smallest == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = flat.kthvalue(smallest, dim=2).values
    return scores >= threshold[:, :, None, None]
