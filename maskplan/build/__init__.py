"""Builders: the only ways into a plan. Each returns a canonical Plan on the CPU."""

from maskplan.build.block_lists import from_block_lists, from_bsr
from maskplan.build.block_mask import from_block_mask
from maskplan.build.closed_forms import causal, documents, full, sliding_window
from maskplan.build.mask_fn import from_mask_fn
from maskplan.build.ranges import from_cu_seqlens, from_ranges
from maskplan.build.token_mask import from_token_mask
from maskplan.build.topk import from_topk

__all__ = [
    "causal",
    "documents",
    "from_block_lists",
    "from_block_mask",
    "from_bsr",
    "from_cu_seqlens",
    "from_mask_fn",
    "from_ranges",
    "from_token_mask",
    "from_topk",
    "full",
    "sliding_window",
]
