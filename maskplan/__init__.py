"""maskplan: exact sparse-attention plans, and the block lists that attention kernels walk."""

from maskplan import interop, select, video
from maskplan.attention import BackendStatus, VerifyReport, attention, backends, verify
from maskplan.book import PlanBook, PlanKeyError
from maskplan.build import (
    causal,
    documents,
    from_block_lists,
    from_block_mask,
    from_bsr,
    from_cu_seqlens,
    from_mask_fn,
    from_ranges,
    from_token_mask,
    from_topk,
    full,
    sliding_window,
)
from maskplan.errors import (
    MaskplanError,
    PlanError,
    PlanFileError,
    PlanTypeError,
    UnsupportedError,
)
from maskplan.geometry import Geometry
from maskplan.io import load
from maskplan.lower.direction import BackwardChoice
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.lowering import backward_choice
from maskplan.lower.plan_cache import CacheStats, PlanCache
from maskplan.lower.target import Target, target
from maskplan.lower.tensors import BlockSparseTensors
from maskplan.lower.token_tiles import TokenTiles
from maskplan.pairs import amplification
from maskplan.plan import Plan, TransposedPlan
from maskplan.provenance import Provenance
from maskplan.quality import PlanQuality, quality, recall
from maskplan.stats import PlanStats

__all__ = [
    "BackendStatus",
    "BackwardChoice",
    "BlockSparseTensors",
    "CacheStats",
    "Geometry",
    "LoweredPlan",
    "MaskplanError",
    "Plan",
    "PlanBook",
    "PlanCache",
    "PlanError",
    "PlanFileError",
    "PlanKeyError",
    "PlanQuality",
    "PlanStats",
    "PlanTypeError",
    "Provenance",
    "Target",
    "TokenTiles",
    "TransposedPlan",
    "UnsupportedError",
    "VerifyReport",
    "amplification",
    "attention",
    "backends",
    "backward_choice",
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
    "interop",
    "load",
    "quality",
    "recall",
    "select",
    "sliding_window",
    "target",
    "verify",
    "video",
]

__version__ = "0.1.0"
