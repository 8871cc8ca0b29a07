"""MInference's patterns: A-shape, and vertical and slash lines as blocks and loose columns.

Source: MInference (arXiv 2407.02490), `csrc/vertical_slash_index.cu` and
`minference/modules/minference_forward.py`.
"""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.slices import ABSENT, as_slices, boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed

LINE_BLOCK = 64  # rows that share a list of blocks and columns, and keys of one of its blocks


@untransformed
def a_shape(
    seqlen: int, *, n_init: int, n_local: int, block_size: tuple[int, int] = (128, 128)
) -> Plan:
    """Query q sees key k if k <= q and (k < n_init or q - k <= n_local).

    Args:
        seqlen: SQ = SK, in tokens.
        n_init: leading keys that every later query sees.
        n_local: keys before its own position that a query sees.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanError: if a size is negative.
    """
    geometry = Geometry(seqlen_q=seqlen, seqlen_k=seqlen, block_size=block_size)
    n_init, n_local = integer(n_init, "n_init"), integer(n_local, "n_local")
    slices = [
        (0, seqlen, 0, min(n_init, seqlen), -ABSENT, 1),
        (0, seqlen, 0, seqlen, -n_local, 1),
    ]
    parameters = {"n_init": n_init, "n_local": n_local}
    provenance = Provenance(builder="a_shape", parameters=parameters)
    return plan_of_slices([as_slices(slices)], geometry, provenance)


@untransformed
def vertical_slash(
    vertical: Tensor,
    slash: Tensor,
    seqlen: int,
    *,
    lines: str,
    block_size: tuple[int, int] = (64, 64),
) -> Plan:
    """Columns and diagonals of a causal mask.

    Args:
        vertical: int32 or int64 [batch, heads, V]: keys that every later query sees; any order.
        slash: int32 or int64 [batch, heads, S]: distances q - k, from 0 up; any order.
        seqlen: SQ = SK, in tokens.
        lines: what a diagonal keeps. "exact": pairs at that distance. "blocks": as MInference's
            kernel, for each 64 queries whole stretches of keys that cover their diagonals, cut at
            the causal bound, and columns outside of them.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: if an index is out of range, shapes differ, or `lines` is neither.
    """
    if lines not in ("exact", "blocks"):
        raise PlanError(
            sentence(
                what="unknown meaning of a diagonal",
                where="lines",
                got=repr(lines),
                wanted="'exact' or 'blocks'",
                remedy="say whether a diagonal is one pair wide or covered by blocks",
            )
        )
    geometry = Geometry(seqlen_q=seqlen, seqlen_k=seqlen, block_size=block_size)
    _check(vertical, "vertical", seqlen)
    _check(slash, "slash", seqlen)
    if vertical.shape[:2] != slash.shape[:2] or 0 in vertical.shape[:2]:
        raise PlanError(
            sentence(
                what="columns and diagonals of different heads",
                where="vertical, slash",
                got=f"{list(vertical.shape[:2])} and {list(slash.shape[:2])}",
                wanted="the same [batch, heads], at least one",
                remedy="expand the smaller one",
            )
        )
    batch, heads = vertical.shape[:2]
    patterns = []
    for b in range(batch):
        for h in range(heads):
            columns = np.unique(vertical[b, h].numpy().astype(np.int64))
            distances = np.unique(slash[b, h].numpy().astype(np.int64))
            make = _exact_slices if lines == "exact" else _block_slices
            patterns.append(make(columns, distances, seqlen))
    ids = torch.arange(batch * heads, dtype=torch.int32).view(batch, heads)
    parameters = {"columns": vertical.shape[2], "diagonals": slash.shape[2], "lines": lines}
    provenance = Provenance(builder="vertical_slash", parameters=parameters)
    return plan_of_slices(patterns, geometry, provenance, ids)


def _check(indices: Tensor, name: str, seqlen: int) -> None:
    rank(index_tensor(indices, name), name, (3,), "[batch, heads, lines]", "add the axes")
    bad = ((indices < 0) | (indices >= seqlen)).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        raise PlanError(
            sentence(
                what="line out of range",
                where=f"{name}[{', '.join(map(str, place))}]",
                got=int(indices[place]),
                wanted=f"0 <= index < {seqlen}",
                remedy="pass lines of this sequence",
            )
        )


def _exact_slices(columns: np.ndarray, distances: np.ndarray, seqlen: int) -> np.ndarray:
    starts, stops = _runs(columns)
    zero = np.zeros(len(starts), dtype=np.int64)
    across = boxes(zero, zero + seqlen, starts, stops)
    across[:, 5] = 1
    near, far = _runs(distances)
    down = boxes(
        np.zeros(len(near), np.int64), *(np.full(len(near), n) for n in (seqlen, 0, seqlen))
    )
    down[:, 4], down[:, 5] = 1 - far, 1 - near
    return np.concatenate([across, down])


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) of each stretch of consecutive numbers."""
    if not len(values):
        return values, values
    begins = np.append(True, np.diff(values) > 1)
    return values[begins], values[np.append(begins[1:], True)] + 1


def _block_slices(columns: np.ndarray, distances: np.ndarray, seqlen: int) -> np.ndarray:
    from maskplan.select.line_kernel import cover_diagonals

    starts, stops = _runs(columns)
    zero = np.zeros(len(starts), dtype=np.int64)
    across = boxes(zero, zero + seqlen, starts, stops)
    found = cover_diagonals(distances, seqlen, LINE_BLOCK)
    top, ends = found[:, 0], np.minimum(found[:, 1:], seqlen)
    down = boxes(top, np.minimum(top + LINE_BLOCK, seqlen), ends[:, 0], ends[:, 1])
    slices = np.concatenate([across, down])
    slices[:, 5] = 1
    return slices
