"""Selection: from scores of blocks to plans, with every rounding and every tie named."""

from maskplan.select.block_scores import empty_rows
from maskplan.select.budget import budget, tile_total
from maskplan.select.minference import a_shape, vertical_slash
from maskplan.select.moba import chunk_scores, moba, vmoba
from maskplan.select.nsa import block_indices, nsa, selection_scores
from maskplan.select.pooling import (
    mean_pool,
    pooled_scores,
    similar_blocks,
    size_weighted_softmax,
)
from maskplan.select.ranking import threshold, top_k, top_p
from maskplan.select.vertical_slash_lines import vertical_slash_lines
from maskplan.select.xattention import antidiagonal_mass, sink_and_diagonal

__all__ = [
    "a_shape",
    "antidiagonal_mass",
    "block_indices",
    "budget",
    "chunk_scores",
    "empty_rows",
    "mean_pool",
    "moba",
    "nsa",
    "pooled_scores",
    "selection_scores",
    "similar_blocks",
    "sink_and_diagonal",
    "size_weighted_softmax",
    "threshold",
    "tile_total",
    "top_k",
    "top_p",
    "vertical_slash",
    "vertical_slash_lines",
    "vmoba",
]
