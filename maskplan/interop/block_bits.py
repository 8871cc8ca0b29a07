"""The kept pairs of listed blocks, as bools."""

import torch
from torch import Tensor

from maskplan.bits import unpack
from maskplan.plan import Plan


def block_bits(plan: Plan, start: int = 0, stop: int | None = None) -> Tensor:
    """Kept pairs of listed blocks [start, stop), full ones included: bool [blocks, bq, bk].

    Pairs outside (SQ, SK) are False.
    """
    (bq, bk), axes = plan.block_size, plan.axes
    stop = plan.num_blocks if stop is None else stop
    keep = torch.ones((stop - start, bq, bk), dtype=torch.bool)
    if plan.tile_id is not None:
        content = plan.tile_id[start:stop]
        masked = content >= 0
        keep[masked] = unpack(plan.tiles[content[masked].long()], bk)
    entries = torch.arange(start, stop)
    row = (torch.searchsorted(plan.row_ptr, entries, right=True) - 1) % max(axes.rows, 1)
    keep[row == axes.rows - 1, plan.seqlen_q - (axes.rows - 1) * bq :] = False
    keep[plan.col[start:stop] == axes.cols - 1, :, plan.seqlen_k - (axes.cols - 1) * bk :] = False
    return keep
