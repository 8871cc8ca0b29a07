"""The last step of every builder: arrays of blocks become a canonical Plan."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance


def assemble(
    geometry: Geometry,
    pattern_id: Tensor,
    row_ptr: np.ndarray[Any, Any],
    col: np.ndarray[Any, Any],
    content: np.ndarray[Any, Any] | None,
    tiles: np.ndarray[Any, Any] | None,
    provenance: Provenance,
    *,
    check: bool = False,
) -> Plan:
    """The canonical plan of these lists.

    Args:
        geometry: lengths and block size.
        pattern_id: int [batch, heads].
        row_ptr: int64 [P * M + 1].
        col: int32 [blocks], ascending in a row.
        content: int32 [blocks], -1 full or a row of `tiles`; None when all are full.
        tiles: int32 [T, bq, ceil(bk / 32)], or None.
        provenance: how it was made.
        check: whether `content` and `tiles` came from outside. Bits out of range have to be found
            before the canonical form counts them: they could make a block look full.
    """
    bq, words = geometry.block_size[0], geometry.axes.words
    no_tiles = torch.empty((0, bq, words), dtype=torch.int32, device="cpu")
    if geometry.num_q_blocks == 0:  # no rows tell patterns apart
        pattern_id = torch.zeros_like(pattern_id)
    has_tiles = tiles is not None and len(tiles) > 0 and content is not None
    plan = Plan(
        geometry=geometry,
        pattern_id=pattern_id.to(torch.int32),
        row_ptr=torch.from_numpy(row_ptr),
        col=torch.from_numpy(col),
        tile_id=torch.from_numpy(content) if has_tiles else None,
        tiles=torch.from_numpy(tiles) if has_tiles else no_tiles,
        provenance=provenance,
    )
    return (plan.validate() if check else plan).canonical()
