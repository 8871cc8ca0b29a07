"""Other projects' formats, a module each: what they leave out is asked for, never guessed."""

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
    "scipy_sparse",
    "sparge",
]
