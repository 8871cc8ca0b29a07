"""Masks between groups of tokens, where each group of queries sees whole groups of keys.

Tiles chosen by VSA or Draft, clusters of SVG2 and text are such groups. Work grows with the blocks
listed and the pairs of groups, whatever their sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.geometry import Geometry
from maskplan.patterns.sequence import IntArray
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.threads import run_ranges

# Fewer rows of blocks are not worth a thread, which finds tiles of its own.
ROWS_A_THREAD = 64
# (row_ptr, col, content, tiles) as kernels return them.
Part: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """One pattern between groups.

    Attributes:
        q_runs: int64 [query groups, 2], slots [start, stop), ascending and disjoint; may be empty.
        k_runs: int64 [key groups, 2], likewise.
        row_ptr: int64 [query groups + 1].
        seen: int32 [row_ptr[-1]], key groups that query group g sees from row_ptr[g] up to
            row_ptr[g + 1]: in any order, repeats and -1 allowed.
    """

    q_runs: IntArray
    k_runs: IntArray
    row_ptr: IntArray
    seen: np.ndarray[Any, np.dtype[np.int32]]


def plan_of_groups(
    patterns: int,
    groups: Callable[[int], Groups],
    geometry: Geometry,
    provenance: Provenance,
    pattern_id: Tensor,
) -> Plan:
    """The canonical plan of patterns made one at a time, side by side on the threads torch uses.

    Args:
        patterns: how many, at least 1.
        groups: pattern number to its groups.
        geometry: lengths and block size.
        provenance: how it was made.
        pattern_id: int [batch, heads] into the patterns.
    """
    from maskplan.patterns.groups_kernel import plan_groups

    axes = np.array([geometry.seqlen_q, geometry.seqlen_k, *geometry.block_size], dtype=np.int64)
    parts: dict[tuple[int, int], Part] = {}

    def rows_of(own: Groups, pattern: int, start: int, stop: int) -> None:
        arrays = (own.q_runs, own.k_runs, own.row_ptr, own.seen, axes)
        parts[pattern, start] = plan_groups(*arrays, (start, stop))

    def work(start: int, stop: int) -> None:
        for pattern in range(start, stop):
            rows_of(_without_empty(groups(pattern)), pattern, 0, geometry.num_q_blocks)

    if patterns == 1:
        own = _without_empty(groups(0))
        one = partial(rows_of, own, 0)
        run_ranges(one, geometry.num_q_blocks, smallest=ROWS_A_THREAD)
    else:
        run_ranges(work, patterns)
    ordered = [parts[place] for place in sorted(parts)]
    return stacked(ordered, geometry, provenance, pattern_id)


def stacked(
    parts: Sequence[Part], geometry: Geometry, provenance: Provenance, pattern_id: Tensor
) -> Plan:
    """The canonical plan of lists that were made apart: of patterns, or of a pattern's rows.

    Args:
        parts: (row_ptr, col, content, tiles), blocks and tiles of each numbered from 0.
        geometry: lengths and block size.
        provenance: how it was made.
        pattern_id: int [batch, heads] into the parts.
    """
    blocks = np.cumsum([0, *(len(part[1]) for part in parts)])
    tiles = np.cumsum([0, *(len(part[3]) for part in parts)])
    row_ptr = [np.zeros(1, np.int64), *(p[0][1:] + n for p, n in zip(parts, blocks, strict=False))]
    content = [
        np.where(p[2] < 0, p[2], p[2] + np.int32(n)) for p, n in zip(parts, tiles, strict=False)
    ]
    return assemble(
        geometry,
        pattern_id,
        np.concatenate(row_ptr),
        np.concatenate([part[1] for part in parts]),
        np.concatenate(content).astype(np.int32, copy=False),
        np.concatenate([part[3] for part in parts]),
        provenance,
    )


def _without_empty(groups: Groups) -> Groups:
    """The same with groups of no tokens left out."""
    q_keep = groups.q_runs[:, 0] < groups.q_runs[:, 1]
    k_keep = groups.k_runs[:, 0] < groups.k_runs[:, 1]
    q_runs = np.ascontiguousarray(groups.q_runs, dtype=np.int64)
    k_runs = np.ascontiguousarray(groups.k_runs, dtype=np.int64)
    row_ptr, seen = groups.row_ptr, np.ascontiguousarray(groups.seen, dtype=np.int32)
    if not q_keep.all():
        lengths = np.diff(row_ptr)
        seen = seen[np.repeat(q_keep, lengths)]
        row_ptr = np.concatenate([[0], lengths[q_keep].cumsum()]).astype(np.int64)
        q_runs = q_runs[q_keep]
    if not k_keep.all():
        number = np.where(k_keep, np.cumsum(k_keep) - 1, -1).astype(np.int32)
        seen = np.where(seen >= 0, number[seen], np.int32(-1)) if len(number) else seen
        k_runs = k_runs[k_keep]
    return Groups(q_runs=q_runs, k_runs=k_runs, row_ptr=row_ptr, seen=seen)


def own_patterns(batch: int, heads: int) -> Tensor:
    """pattern_id int32 [batch, heads] of one pattern each."""
    return torch.arange(batch * heads, dtype=torch.int32, device="cpu").view(batch, heads)
