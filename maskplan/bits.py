"""Bit tiles: the kept pairs of one mask block, one bit a pair.

A tile has a row of 32-bit words for each row of the block; bit i of word w is column 32 * w + i.
Bits past the block's width, or outside the sequence, are 0. Words are int32 bit patterns.
"""

import numpy as np
import torch
from torch import Tensor

from maskplan.geometry import WORD_BITS


def pack(keep: Tensor) -> Tensor:
    """Bits of `keep`.

    Args:
        keep: bool [..., C].

    Returns:
        int32 [..., ceil(C / 32)].
    """
    array = keep.cpu().numpy()
    words = -(-array.shape[-1] // WORD_BITS)
    packed = np.packbits(array, axis=-1, bitorder="little")
    padded = np.zeros((*array.shape[:-1], words * 4), dtype=np.uint8)
    padded[..., : packed.shape[-1]] = packed
    return torch.from_numpy(padded.view("<i4").astype(np.int32, copy=False)).to(keep.device)


def unpack(tiles: Tensor, width: int) -> Tensor:
    """The bools of bit tiles.

    Args:
        tiles: int32 [..., W].
        width: columns wanted, at most 32 * W.

    Returns:
        bool [..., width].
    """
    octets = np.ascontiguousarray(tiles.cpu().numpy()).astype("<i4", copy=False).view(np.uint8)
    keep = np.unpackbits(octets, axis=-1, bitorder="little", count=width)
    return torch.from_numpy(keep.view(np.bool_)).to(tiles.device)


def popcount(tiles: Tensor) -> Tensor:
    """Kept pairs of each tile.

    Args:
        tiles: int32 [T, R, W].

    Returns:
        int64 [T].
    """
    words = np.ascontiguousarray(tiles.cpu().numpy()).view(np.uint32)
    counts = np.bitwise_count(words).sum(axis=(1, 2), dtype=np.int64)
    return torch.from_numpy(counts).to(tiles.device)
