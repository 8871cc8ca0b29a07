"""Masks of tokens, from a seed: bool [PB, PH, SQ, SK]."""

import numpy as np


def by_tile(shape, topk, tokens, *, seed=0):
    """Each tile of `tokens` queries sees the same `topk` random keys."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, dtype=bool)
    for each in mask.reshape(-1, *shape[2:]):
        for start in range(0, shape[2], tokens):
            each[start : start + tokens, rng.permutation(shape[3])[:topk]] = True
    return mask


def by_query(shape, topk, pool, tokens, *, seed=0):
    """Each query sees `topk` of the `pool` random keys of its tile."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, dtype=bool)
    for each in mask.reshape(-1, *shape[2:]):
        for start in range(0, shape[2], tokens):
            keys = rng.permutation(shape[3])[:pool]
            for query in each[start : start + tokens]:
                query[rng.permutation(keys)[:topk]] = True
    return mask


def with_counts(seqlen_k, counts, tokens, *, seed=0):
    """Tile i of `tokens` queries sees `counts[i]` random keys."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((1, 1, len(counts) * tokens, seqlen_k), dtype=bool)
    for tile, count in enumerate(counts):
        rows = slice(tile * tokens, (tile + 1) * tokens)
        mask[:, :, rows, rng.permutation(seqlen_k)[:count]] = True
    return mask
