"""Masks that plans are made of, from a seed: bool [PB, PH, SQ, SK]."""

import numpy as np

from tests.kernels.forward.walks import TILE


def blocks(shape, density, *, seed=0, tokens=TILE, keep=(0.02, 0.5, 0.98)):
    """Random blocks of `tokens` x 128: half of them full, the rest random bits."""
    rng = np.random.default_rng(seed)
    masks = np.zeros(shape, dtype=bool)
    for mask in masks.reshape(-1, *shape[2:]):
        for i in range(0, shape[2], tokens):
            for j in range(0, shape[3], TILE):
                if rng.random() < density:
                    block = mask[i : i + tokens, j : j + TILE]
                    full = rng.random() < 0.5
                    block[:] = full or rng.random(block.shape) < rng.choice(keep)
    return masks


def causal(seqlen_q, seqlen_k):
    """Each query sees the keys up to its own place, ends aligned."""
    return np.tri(seqlen_q, seqlen_k, seqlen_k - seqlen_q, dtype=bool)[None, None]


def skewed(seqlen_q, seqlen_k, *, seed=0):
    """One row of tiles sees everything, the others one block each."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((1, 1, seqlen_q, seqlen_k), dtype=bool)
    for i in range(0, seqlen_q, TILE):
        j = int(rng.integers(-(-seqlen_k // TILE))) * TILE
        mask[..., i : i + TILE, j : j + TILE] = True
    mask[..., :TILE, :] = True
    return mask
