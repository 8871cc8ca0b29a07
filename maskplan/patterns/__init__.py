"""Patterns on the latent grid of a video, and the orders of its tokens."""

from maskplan.patterns.grid import Grid
from maskplan.patterns.sliding_tile import sliding_tile
from maskplan.patterns.token_order import TokenOrder

__all__ = ["Grid", "TokenOrder", "sliding_tile"]
