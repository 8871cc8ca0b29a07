"""Pictures of plans. Each module draws for one medium and imports what that medium needs."""

from maskplan.viz.density import density_map
from maskplan.viz.difference import compare
from maskplan.viz.heads import gallery
from maskplan.viz.matrix import plot
from maskplan.viz.page import explore

__all__ = ["compare", "density_map", "explore", "gallery", "plot"]
