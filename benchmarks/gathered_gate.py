"""The gate of gradients of gathered attention: an error budget, against float64, by the lists.

The budget of the block-sparse backward's tests, computed over lists of keys instead of masks of all
pairs, so that it serves full sizes. P and dS are rounded to the dtype once, q, k and dO are exact:
an element of a product may be off by a unit of the dtype times the root of the sum of its squared
terms. Each (gradient, batch, head, 128 tokens) has three such standard deviations, plus a unit of
its largest element.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 128  # tokens that are judged together
UNIT = 2.0**-8  # half a unit of a bfloat16 near 1
_CHUNK = 64  # queries at a time


class Inputs(NamedTuple):
    """Of a call of batch 1: q, dO [1, SQ, HQ, D], k, v [1, SK, HK, D], dLSE [1, HQ, SQ]."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    dlse: Tensor


def budget_used(
    given: Inputs, out: Tensor, lists: NDArray[np.int32], found: tuple[Tensor, ...]
) -> float:
    """Largest part of its budget that any (gradient, head, 128 tokens) used.

    Args:
        given: what attention was called with.
        out: the O that it gave, which its backward goes by.
        lists: int32 [HK, SQ, topk]: keys of each query, none twice.
        found: dQ, dK, dV.

    Raises:
        AssertionError: if a gradient is not finite, not 0 where no pair touches it, or its norm
            off by more than 16 units.
    """
    wanted, squares = exact(given, out, torch.from_numpy(lists).long())
    used = 0.0
    for name, got, right, square in zip(("dq", "dk", "dv"), found, wanted, squares, strict=True):
        values = got[0].double()
        assert torch.isfinite(values).all(), name
        assert (values[(square == 0).all(-1)] == 0).all(), name
        for start in range(0, len(values), TILE):
            tile = slice(start, start + TILE)
            error = (values - right)[tile].abs().amax((0, 2))
            size, spread = right[tile].abs().amax((0, 2)), square[tile].sqrt().amax((0, 2))
            used = max(used, float((error / (UNIT * (3 * spread + size) + 1e-30)).max()))
            norms = values[tile].norm(), right[tile].norm()
            assert norms[0] == norms[1] or abs(norms[0] / norms[1] - 1) < 16 * UNIT, name
    return used


def exact(given: Inputs, out: Tensor, lists: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients [S, H, D] in float64, and the sums of the squares of their terms."""
    q, k, v, do, o = (x[0].double() for x in (given.q, given.k, given.v, given.do, out))
    group, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
    delta = (o * do).sum(2) - given.dlse[0].double().T
    sums = [[torch.zeros_like(x) for x in (q, k, v)] for _ in range(2)]
    for kv, some in _pieces(k.shape[1], q.shape[0]):
        heads = slice(kv * group, (kv + 1) * group)
        listed = lists[kv, some]
        near_k, near_v = k[listed, kv], v[listed, kv]
        rows, grads = q[some, heads], do[some, heads]
        p = (rows @ near_k.mT * scale).softmax(2)
        ds = scale * p * (grads @ near_v.mT - delta[some, heads, None])
        for (dq, dk, dv), power in zip(sums, (1, 2), strict=True):
            dq[some, heads] = ds**power @ near_k**power
            for total, terms in (
                (dk, (ds**power).mT @ rows**power),
                (dv, (p**power).mT @ grads**power),
            ):
                total[:, kv].index_add_(0, listed.flatten(), terms.flatten(0, 1))
    return sums[0], sums[1]


def _pieces(kv_heads: int, queries: int) -> Iterator[tuple[int, slice]]:
    for kv in range(kv_heads):
        for start in range(0, queries, _CHUNK):
            yield kv, slice(start, start + _CHUNK)
