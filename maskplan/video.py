"""Video patterns and token orders on a (T, H, W) latent grid, as `maskplan.video`."""

from maskplan.patterns import Grid, TokenOrder, sliding_tile

__all__ = ["Grid", "TokenOrder", "sliding_tile"]
