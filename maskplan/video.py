"""Video patterns and token orders on a (T, H, W) latent grid, as `maskplan.video`."""

from maskplan.patterns.advice import Advice, SizeCost, advise
from maskplan.patterns.block_causal import block_causal
from maskplan.patterns.draft import draft, draft_kept
from maskplan.patterns.grid import Grid
from maskplan.patterns.label_order import LabelOrder
from maskplan.patterns.magi import magi
from maskplan.patterns.neighborhood import neighborhood
from maskplan.patterns.nested_neighborhood import nested_neighborhood
from maskplan.patterns.permutation_cost import PermutationCost, permutation_cost
from maskplan.patterns.radial import radial
from maskplan.patterns.radial_shrunk import radial_shrunk
from maskplan.patterns.sliding_tile import sliding_tile
from maskplan.patterns.svg import svg, svg_frames
from maskplan.patterns.svg2 import svg2
from maskplan.patterns.tile_map import tile_map
from maskplan.patterns.token_order import TokenOrder
from maskplan.patterns.vsa import vsa, vsa_topk

__all__ = [
    "Advice",
    "Grid",
    "LabelOrder",
    "PermutationCost",
    "SizeCost",
    "TokenOrder",
    "advise",
    "block_causal",
    "draft",
    "draft_kept",
    "magi",
    "neighborhood",
    "nested_neighborhood",
    "permutation_cost",
    "radial",
    "radial_shrunk",
    "sliding_tile",
    "svg",
    "svg2",
    "svg_frames",
    "tile_map",
    "vsa",
    "vsa_topk",
]
