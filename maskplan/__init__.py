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
from maskplan.plan import Plan, TransposedPlan
from maskplan.provenance import Provenance

__all__ = [
    "Geometry",
    "MaskplanError",
    "Plan",
    "PlanError",
    "PlanFileError",
    "PlanTypeError",
    "Provenance",
    "TransposedPlan",
    "UnsupportedError",
    "load",
]

__version__ = "0.1.0"
