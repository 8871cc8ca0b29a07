"""maskplan: exact sparse-attention plans, and the block lists that attention kernels walk."""

from maskplan.errors import (
    MaskplanError,
    PlanError,
    PlanFileError,
    PlanTypeError,
    UnsupportedError,
)
from maskplan.geometry import Geometry
from maskplan.io import load
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.target import Target, target
from maskplan.lower.tensors import BlockSparseTensors
from maskplan.pairs import amplification
from maskplan.plan import Plan, TransposedPlan
from maskplan.provenance import Provenance

__all__ = [
    "BlockSparseTensors",
    "Geometry",
    "LoweredPlan",
    "MaskplanError",
    "Plan",
    "PlanError",
    "PlanFileError",
    "PlanTypeError",
    "Provenance",
    "Target",
    "TransposedPlan",
    "UnsupportedError",
    "amplification",
    "load",
    "target",
]

__version__ = "0.1.0"
