"""Bits of single blocks, from a mask function evaluated in those blocks only."""

import torch
from torch import Tensor

from maskplan.bits import pack
from maskplan.build.mask_fn import MaskFn, vectorised
from maskplan.geometry import Geometry
from maskplan.untransformed import transformed

# Pairs evaluated at a time, as in `maskplan.build.mask_fn`.
_PIECE_PAIRS = 1 << 20


def evaluated_tiles(
    fn: MaskFn, line: Tensor, block: Tensor, heads: int, geometry: Geometry
) -> Tensor:
    """The bit tile of each block.

    Positions out of range are evaluated at the last one in range and cleared, so that `fn` may
    index tensors of SQ or SK entries.

    Args:
        fn: FlexAttention's mask_mod.
        line: int64 [blocks], row (batch, head, Q block), Q block fastest.
        block: int64 [blocks], KV block.
        heads: heads per batch in `line`.
        geometry: lengths and block size.

    Returns:
        int32 [blocks, bq, ceil(bk / 32)].
    """
    bq, bk = geometry.block_size
    pattern, row = line // geometry.num_q_blocks, line % geometry.num_q_blocks
    step = max(1, _PIECE_PAIRS // (bq * bk))
    evaluate = transformed(torch.vmap(vectorised(fn)))
    tiles = torch.empty((len(line), bq, geometry.axes.words), dtype=torch.int32, device="cpu")
    for at in range(0, len(line), step):
        part = slice(at, at + step)
        q = row[part, None] * bq + torch.arange(bq, device="cpu")
        k = block[part, None] * bk + torch.arange(bk, device="cpu")
        keep = evaluate(
            (pattern[part] // heads)[:, None],
            (pattern[part] % heads)[:, None],
            q.clamp(max=geometry.seqlen_q - 1),
            k.clamp(max=geometry.seqlen_k - 1),
        )[:, 0, 0]
        keep &= (q < geometry.seqlen_q)[:, :, None] & (k < geometry.seqlen_k)[:, None, :]
        tiles[part] = pack(keep)
    return tiles
