"""Masks made of slices: one engine for every pattern whose rows see intervals of keys.

A slice is (q0, q1, k0, k1, low, high): query q in [q0, q1) sees keys
[max(k0, q + low), min(k1, q + high)). Slices that overlap are a union.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance

# An offset that no pair of 31-bit tokens can reach, and that stays inside 64 bits when added to.
ABSENT = 1 << 40

Slices: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def as_slices(rows: Sequence[Sequence[int]]) -> Slices:
    """Rows of six numbers as int64 [S, 6]."""
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def boxes(
    q0: np.ndarray[Any, Any],
    q1: np.ndarray[Any, Any],
    k0: np.ndarray[Any, Any],
    k1: np.ndarray[Any, Any],
) -> Slices:
    """Slices without diagonals: each query of [q0, q1) sees all keys of [k0, k1)."""
    absent = np.full(len(q0), ABSENT)
    return np.stack([q0, q1, k0, k1, -absent, absent], axis=1).astype(np.int64)


def plan_of_slices(
    patterns: Sequence[Slices],
    geometry: Geometry,
    provenance: Provenance,
    pattern_id: Tensor | None = None,
) -> Plan:
    """The canonical plan of one list of slices a pattern.

    Work and memory grow with the blocks listed and the slices that touch each row of blocks.

    Args:
        patterns: int64 [S, 6] each; ranges lie inside the lengths.
        geometry: lengths and block size.
        provenance: how it was made.
        pattern_id: int [batch, heads] into `patterns`; one (batch, head) of pattern 0 by default.
    """
    from maskplan.build.slices_kernel import plan_slices

    ordered = [part[np.argsort(part[:, 0], kind="stable")] for part in patterns]
    first = np.cumsum([0, *map(len, ordered)], dtype=np.int64)
    axes = np.array([geometry.seqlen_q, geometry.seqlen_k, *geometry.block_size], dtype=np.int64)
    row_ptr, col, content, tiles = plan_slices(
        np.ascontiguousarray(np.concatenate(ordered)), first, axes
    )
    if pattern_id is None:
        pattern_id = torch.zeros((1, 1), dtype=torch.int32, device="cpu")
    return assemble(geometry, pattern_id, row_ptr, col, content, tiles, provenance)
