"""MagiAttention: a plan as slices of queries by keys, full or with diagonals, none of them twice.

`maskplan.from_ranges` reads the same arrays.

Source: MagiAttention's `flex_flash_attn_func` (q_ranges, k_ranges, attn_type_map). Heads with other
masks are laid one after another along the sequence there; here they are exported one by one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maskplan.interop.whole_blocks import one_pattern
from maskplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MagiRanges:
    """Slices that cover every kept pair once.

    Attributes:
        q_ranges: int32 [R, 2], half open, in tokens.
        k_ranges: int32 [R, 2].
        attn_type_map: int32 [R]: 0 full, 1 causal, 2 inverse causal, 3 bi-causal.
    """

    q_ranges: Tensor
    k_ranges: Tensor
    attn_type_map: Tensor


def to_ranges(plan: Plan) -> MagiRanges:
    """The slices of a plan whose heads share one pattern.

    Each query's keys are runs. A slice grows from query to query while its run stays, or while one
    or both of its ends move on by one key: those are the four kinds. Exact for every plan; short
    for those made of boxes and diagonals.

    Raises:
        PlanError: if heads differ.
    """
    from maskplan.interop.magi_kernel import slices_of_lists

    one_pattern(plan, "MagiAttention ranges")
    content = torch.empty(0, dtype=torch.int32) if plan.tile_id is None else plan.tile_id
    axes = np.array([plan.seqlen_q, plan.seqlen_k, *plan.block_size], dtype=np.int64)
    lists = (plan.row_ptr, plan.col, content, plan.tiles)
    found = slices_of_lists(*(part.numpy() for part in lists), axes)
    low, high = found[:, 5].clip(min=0), found[:, 6].clip(min=0)
    parts = (found[:, 0:2], found[:, [2, 4]], high + 2 * low)
    q_ranges, k_ranges, kinds = (torch.from_numpy(part.astype(np.int32)) for part in parts)
    return MagiRanges(q_ranges=q_ranges, k_ranges=k_ranges, attn_type_map=kinds)
