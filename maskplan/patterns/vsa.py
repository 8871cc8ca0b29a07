"""Video sparse attention: each tile of queries sees the tiles of keys chosen for it."""

import numpy as np
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.pattern_axes import distinct, require_heads
from maskplan.errors import PlanError, sentence
from maskplan.geometry import number
from maskplan.patterns.grid import Grid
from maskplan.patterns.groups import Groups, plan_of_groups
from maskplan.patterns.tile_map import Tiles
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def vsa(
    grid: Grid,
    selected: Tensor,
    *,
    tile: tuple[int, int, int] = (4, 4, 4),
    block_size: tuple[int, int] = (64, 64),
    pad: bool = False,
    free_rows: bool = False,
    text_tile: int | None = None,
    queries: str = "all",
) -> Plan:
    """The plan of video sparse attention: each tile of queries sees the tiles chosen for it.

    Queries and keys are laid out by `TokenOrder.tiles(grid, tile, pad=pad)`. Tiles at the far edges
    hold fewer tokens where `tile` does not divide the grid; slots that hold none are never seen.
    Text sees everything, and is seen by everything unless `text_tile` makes it compete.

    Args:
        grid: the latent grid.
        selected: int32 or int64 [batch, heads, tiles, topk], tiles of keys for each tile of
            queries, in any order, -1 for none. Tiles are numbered as `TokenOrder.tiles` lists them.
        tile: tokens of a tile along (t, h, w).
        block_size: (bq, bk), in tokens.
        pad: give every tile t * h * w slots, as kernels want whose block is a tile. A block of keys
            then is full where its tile is, as in the mapping of FlashAttention-4, given
            `free_rows`.
        free_rows: with `pad`, let query slots that hold no token see what their tile sees; their
            outputs are dropped by `TokenOrder.undo`. Else they see nothing, and their tile's blocks
            need bits.
        text_tile: cut the text into tiles of this many tokens that are chosen as others are. They
            are numbered where the text stands: before the video's tiles or after them.
        queries: "all", or "video" to leave text out of the queries.

    Returns:
        A plan of [batch, heads], each with a pattern of its own.

    Raises:
        PlanTypeError: if `selected` has another dtype or rank, or a size is no integer.
        PlanError: if it does not have one row a tile, or names a tile that does not exist.

    Source: arXiv 2505.13389; FastVideo `vsa_utils.py`.
    """
    rank(
        index_tensor(selected, "selected"),
        "selected",
        (4,),
        "[batch, heads, tiles, topk]",
        "add axes",
    )
    layout = Tiles(grid, tile, pad=pad, free_rows=free_rows, text_tile=text_tile, queries=queries)
    require_heads(selected, "selected")
    layout.check_rows(selected, "selected")
    pattern_id, (own,) = distinct(selected)
    _check_tiles(own.numpy(), layout.key_tiles)
    batch, heads = own.shape[:2]

    def groups(pattern: int) -> Groups:
        chosen = own[divmod(pattern, heads)].numpy().astype(np.int32)
        row_ptr = np.arange(len(chosen) + 1, dtype=np.int64) * chosen.shape[1]
        return layout.groups(row_ptr, chosen.reshape(-1))

    provenance = layout.sequence.provenance(
        "vsa", topk=selected.shape[3], **layout.parameters(), free_rows=free_rows
    )
    geometry = layout.sequence.geometry(block_size)
    return plan_of_groups(batch * heads, groups, geometry, provenance, pattern_id)


def vsa_topk(grid: Grid, sparsity: float, *, tile: tuple[int, int, int] = (4, 4, 4)) -> int:
    """Tiles that each tile sees: clamp(ceil((1 - sparsity) * tiles), 1, tiles), in doubles.

    Counted in tiles, those at the edges included: counted in tokens, ragged edges would lose some.

    Args:
        grid: the latent grid.
        sparsity: share of tiles left out, from 0 to 1.
        tile: tokens of a tile along (t, h, w).

    Raises:
        PlanError: if `sparsity` lies outside.
    """
    sparsity = number(sparsity, "sparsity")
    if not 0 <= sparsity <= 1:
        raise PlanError(
            sentence(
                what="sparsity out of range",
                where="sparsity",
                got=sparsity,
                wanted="0 <= sparsity <= 1",
                remedy="pass the share of tiles to leave out",
            )
        )
    tiles = len(TokenOrder.tiles(grid, tile).tile_counts)
    return int(np.clip(np.ceil((1 - sparsity) * tiles), 1, tiles))


def _check_tiles(selected: np.ndarray, tiles: int) -> None:
    # By numpy: torch's threads go on spinning after a comparison, beside those that plan.
    if not selected.size or (selected.min() >= -1 and selected.max() < tiles):
        return
    place = tuple(np.argwhere((selected < -1) | (selected >= tiles))[0].tolist())
    raise PlanError(
        sentence(
            what="no such tile",
            where=f"selected[{', '.join(map(str, place))}]",
            got=int(selected[place]),
            wanted=f"0 <= tile < {tiles}, or -1 for none",
            remedy="choose among the tiles of TokenOrder.tiles(grid, tile)",
        )
    )
