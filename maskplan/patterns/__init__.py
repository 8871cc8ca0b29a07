"""Patterns on the latent grid of a video, and the orders of its tokens."""

from maskplan.patterns.draft import draft, draft_kept
from maskplan.patterns.grid import Grid
from maskplan.patterns.neighborhood import neighborhood
from maskplan.patterns.radial import radial
from maskplan.patterns.radial_shrunk import radial_shrunk
from maskplan.patterns.sliding_tile import sliding_tile
from maskplan.patterns.tile_map import tile_map
from maskplan.patterns.token_order import TokenOrder
from maskplan.patterns.vsa import vsa, vsa_topk

__all__ = [
    "Grid",
    "TokenOrder",
    "draft",
    "draft_kept",
    "neighborhood",
    "radial",
    "radial_shrunk",
    "sliding_tile",
    "tile_map",
    "vsa",
    "vsa_topk",
]
