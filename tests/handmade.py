"""Small plans by hand for tests that want one plan: dense masks in, the oracle's lists out."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import maskplan as mp
from tests.oracle import plan_of_dense


def plan_of(
    masks: Tensor,
    block_size: tuple[int, int],
    pattern_id: Sequence[Sequence[int]] = ((0,),),
    provenance: mp.Provenance | None = None,
) -> mp.Plan:
    """The plan of bool [P, SQ, SK] masks: a tile for each partial block, none shared."""
    plan = plan_of_dense(masks, torch.tensor(pattern_id), block_size)
    return replace(plan, provenance=provenance)


def transposed_of(
    masks: Tensor, block_size: tuple[int, int], pattern_id: Sequence[Sequence[int]] = ((0,),)
) -> mp.TransposedPlan:
    """The same for the lists per KV block."""
    bq, bk = block_size
    plan = plan_of(masks.transpose(1, 2), (bk, bq), pattern_id)
    _, seqlen_q, seqlen_k = masks.shape
    return mp.TransposedPlan(
        geometry=mp.Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size),
        pattern_id=plan.pattern_id,
        row_ptr=plan.row_ptr,
        col=plan.col,
        tile_id=plan.tile_id,
        tiles=plan.tiles,
    )


def causal_mask(seqlen_q: int, seqlen_k: int) -> Tensor:
    """bool [1, SQ, SK]: query i sees keys 0 to i."""
    return torch.ones(seqlen_q, seqlen_k, dtype=torch.bool).tril()[None]
