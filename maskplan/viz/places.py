"""Where a plan's tokens lie in the latent video, as far as its provenance says.

Provenance may come from a stranger's file. A picture of the plan is right without it, so what does
not fit is not drawn, and said beside the picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maskplan.geometry import Geometry
from maskplan.patterns.grid import Grid
from maskplan.patterns.token_order import TokenOrder
from maskplan.provenance import Provenance
from maskplan.viz.raster import Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Places:
    """Tokens of queries and keys on a latent grid.

    Attributes:
        grid: frames, rows and columns, and text.
        slots: raster number of the token in each slot of the sequence, or -1: int64 [slots].
        query_start: slot of the first query.
        in_frames: whether slots are in raster order without padding, so that a frame is a stretch.
    """

    grid: Grid
    slots: Ints
    query_start: int
    in_frames: bool

    def name(self, slot: int) -> str:
        """What lies in a slot: "(t, h, w)", "text 3" or "pad"."""
        token = int(self.slots[slot])
        if token < 0:
            return "pad"
        grid = self.grid
        if not 0 <= token - grid.video_start < grid.video_tokens:
            return f"text {token - grid.text_start}"
        t, rest = divmod(token - grid.video_start, grid.frame_tokens)
        h, w = divmod(rest, grid.w)
        return f"({t}, {h}, {w})"


def places_of(provenance: Provenance | None, geometry: Geometry) -> tuple[Places | None, str]:
    """(the places of a plan's tokens or None, why there are none: "" if no grid is stated)."""
    if provenance is None or provenance.grid is None:
        return None, ""
    try:
        return _placed(provenance.grid, provenance.token_order, geometry)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        # Errors of ours are sentences; of others the type says most.
        return None, f"no latent grid: provenance is not usable ({type(error).__name__}: {error})"


def _placed(
    fields: Mapping[str, Any], order_fields: Mapping[str, Any] | None, geometry: Geometry
) -> tuple[Places | None, str]:
    grid = Grid.from_json(fields)
    # Before anything of the grid's size is made: what a file claims may be very large.
    if grid.seqlen > geometry.seqlen_k:
        return None, _unfit(grid, geometry)
    order = TokenOrder.raster(grid)
    if order_fields is not None:
        if int(order_fields["multiple"]) > geometry.seqlen_k:
            return None, _unfit(grid, geometry)
        order = TokenOrder.from_json(grid, order_fields)
    video = int(order.tile_starts[-1] - order.tile_starts[0])
    starts = {order.seqlen: 0, video: int(order.tile_starts[0])}
    if order.seqlen != geometry.seqlen_k or geometry.seqlen_q not in starts:
        return None, _unfit(grid, geometry)
    start = 0 if geometry.seqlen_q == order.seqlen else starts[video]
    whole = order.tile[0] == 1 and order.tile[1] >= grid.h and order.tile[2] >= grid.w
    in_frames = whole and order.is_compact
    return Places(grid=grid, slots=order.slots.numpy(), query_start=start, in_frames=in_frames), ""


def _unfit(grid: Grid, geometry: Geometry) -> str:
    return (
        f"no latent grid: provenance names {grid.t} x {grid.h} x {grid.w} and {grid.text} text "
        f"tokens, which is not {geometry.seqlen_q} queries and {geometry.seqlen_k} keys"
    )
