"""Other projects' formats, a module each: what they leave out is asked for, never guessed.

Modules are imported when they are first named, `maskplan.interop.fastvideo`, so that a program pays
for the formats it uses.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskplan.interop import (
        block_sparse_attention,
        fa4,
        fastvideo,
        fastvideo_search,
        fla_nsa,
        flashinfer,
        flashmla,
        flex,
        magi,
        minference,
        q2k,
        scipy_sparse,
        sparge,
    )

__all__ = [
    "block_sparse_attention",
    "fa4",
    "fastvideo",
    "fastvideo_search",
    "fla_nsa",
    "flashinfer",
    "flashmla",
    "flex",
    "magi",
    "minference",
    "q2k",
    "scipy_sparse",
    "sparge",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
