"""Masks between the tiles of a grid, from a map of which tile sees which."""

from typing import Any

import numpy as np
from torch import Tensor

from maskplan.build.host import bool_tensor, rank
from maskplan.build.pattern_axes import distinct, require_heads
from maskplan.errors import PlanError, sentence
from maskplan.geometry import flag, integer
from maskplan.patterns.grid import Grid
from maskplan.patterns.groups import Groups, plan_of_groups
from maskplan.patterns.sequence import IntArray, Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def tile_map(
    grid: Grid,
    kept: Tensor,
    *,
    tile: tuple[int, int, int],
    block_size: tuple[int, int] = (128, 128),
    pad: bool = False,
    free_rows: bool = False,
    text_tile: int | None = None,
    queries: str = "all",
    builder: str = "tile_map",
) -> Plan:
    """The plan in which each tile of queries sees the tiles marked for it.

    Queries and keys are laid out by `TokenOrder.tiles(grid, tile, pad=pad)`. Tiles at the far edges
    hold fewer tokens where `tile` does not divide the grid; slots that hold none are never seen.
    Text sees everything, and is seen by everything unless `text_tile` makes it compete.

    Args:
        grid: the latent grid.
        kept: bool [batch, heads, tiles, tiles], tiles of queries by tiles of keys, any strides.
            Tiles are numbered as `TokenOrder.tiles` lists them.
        tile: tokens of a tile along (t, h, w).
        block_size: (bq, bk), in tokens.
        pad: give every tile t * h * w slots, as kernels want whose block is a tile.
        free_rows: with `pad`, let query slots that hold no token see what their tile sees; their
            outputs are dropped by `TokenOrder.undo`. Else they see nothing, and their tile's blocks
            need bits.
        text_tile: cut the text into tiles of this many tokens that are chosen as others are. They
            are numbered where the text stands: before the video's tiles or after them.
        queries: "all", or "video" to leave text out of the queries.
        builder: name for the plan's provenance.

    Raises:
        PlanTypeError: if `kept` has another dtype or rank, or a size is no integer.
        PlanError: if it does not have one row and one column a tile.
    """
    rank(bool_tensor(kept, "kept"), "kept", (4,), "[batch, heads, tiles, tiles]", "add the axes")
    layout = Tiles(grid, tile, pad=pad, free_rows=free_rows, text_tile=text_tile, queries=queries)
    require_heads(kept, "kept")
    layout.check_rows(kept, "kept")
    if kept.shape[3] != layout.key_tiles:
        raise count_error("kept, axis 3", kept.shape[3], layout.key_tiles)
    pattern_id, (own,) = distinct(kept)
    batch, heads = own.shape[:2]

    def groups(pattern: int) -> Groups:
        here = own[divmod(pattern, heads)].numpy()
        row_ptr = np.concatenate([[0], here.sum(axis=1, dtype=np.int64).cumsum()])
        return layout.groups(row_ptr, here.nonzero()[1].astype(np.int32))

    provenance = layout.sequence.provenance(builder, **layout.parameters(), free_rows=free_rows)
    geometry = layout.sequence.geometry(block_size)
    return plan_of_groups(batch * heads, groups, geometry, provenance, pattern_id)


class Tiles:
    """Tiles and text of a sequence as groups.

    Attributes:
        sequence: slots of tiles and text.
        key_tiles: tiles that can be chosen: the video's, and the text's where it competes.
    """

    def __init__(
        self,
        grid: Grid,
        tile: tuple[int, int, int],
        *,
        pad: bool,
        free_rows: bool,
        text_tile: int | None,
        queries: str,
    ) -> None:
        self.sequence = Sequence(TokenOrder.tiles(grid, tile, pad=pad), queries)
        self._pad, self._text_tile = pad, text_tile
        order = self.sequence.order
        starts, stops = self.sequence.tiles()
        video = np.stack([starts, stops], axis=1)
        length = grid.text if text_tile is None else integer(text_tile, "text_tile", low=1)
        text_starts = order.text_start + np.arange(0, grid.text, max(length, 1), dtype=np.int64)
        text_stops = np.minimum(text_starts + length, order.text_start + grid.text)
        text = np.stack([text_starts, text_stops], axis=1)
        self._k_runs = np.concatenate([text, video] if grid.text_first else [video, text])
        ends = order.tile_starts[1:].numpy() if flag(free_rows, "free_rows") else stops
        whole_text = np.array([[order.text_start, order.text_start + grid.text]])
        self._q_video = np.stack([starts, ends], axis=1) - self.sequence.query_start
        self._q_text = whole_text[: int(self.sequence.text_queries)] - self.sequence.query_start
        self._first = len(text) if grid.text_first else 0
        self._video, self._text = len(video), len(text)
        self.key_tiles = self._video + (0 if text_tile is None else self._text)

    def parameters(self) -> dict[str, Any]:
        """What provenance says of the tiles."""
        order, text_tile = self.sequence.order, self._text_tile
        competing = {} if text_tile is None else {"text_tile": text_tile}
        return {"tile": order.tile, "pad": self._pad, **competing}

    def check_rows(self, rows: Tensor, name: str) -> None:
        """Check that axis 2 has a row for each tile of the video.

        Raises:
            PlanError: if it has not.
        """
        if rows.shape[2] != self._video:
            raise count_error(f"{name}, axis 2", rows.shape[2], self._video)

    def groups(self, row_ptr: IntArray, chosen: np.ndarray[Any, np.dtype[np.int32]]) -> Groups:
        """Rows of chosen tiles, with the text's rows and columns."""
        grid = self.sequence.order.grid
        if grid.text and self._text_tile is None:
            shift = np.where(chosen >= 0, chosen + self._first, -1)
            text = self._first - 1 if grid.text_first else self._video
            chosen = np.insert(shift, row_ptr[1:], text).astype(np.int32)
            row_ptr = row_ptr + np.arange(len(row_ptr))
        q_runs = self._q_video
        if len(self._q_text):
            every = np.arange(len(self._k_runs), dtype=np.int32)
            if grid.text_first:
                q_runs = np.concatenate([self._q_text, q_runs])
                chosen = np.concatenate([every, chosen])
                row_ptr = np.append(0, row_ptr + len(every))
            else:
                q_runs = np.concatenate([q_runs, self._q_text])
                chosen = np.concatenate([chosen, every])
                row_ptr = np.append(row_ptr, row_ptr[-1] + len(every))
        return Groups(q_runs=q_runs, k_runs=self._k_runs, row_ptr=row_ptr, seen=chosen)


def count_error(where: str, got: int, wanted: int) -> PlanError:
    """The error of a map that has another number of tiles than its grid."""
    return PlanError(
        sentence(
            what="tiles do not fit the grid",
            where=where,
            got=got,
            wanted=f"{wanted} tiles, ragged ones at the edges included",
            remedy="count tiles by ceil on each axis, as TokenOrder.tiles does",
        )
    )
