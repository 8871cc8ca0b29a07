"""MagiAttention: a plan as slices of queries by keys, full or with diagonals, none of them twice.

`maskplan.from_ranges` reads the same arrays.

Source: MagiAttention's `flex_flash_attn_func` (q_ranges, k_ranges, attn_type_map). Heads with other
masks are laid one after another along the sequence there; here they are exported one by one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maskplan.interop.block_bits import block_bits
from maskplan.interop.whole_blocks import one_pattern
from maskplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MagiRanges:
    """Slices that cover every kept pair once.

    Attributes:
        q_ranges: int32 [R, 2], half open, in tokens.
        k_ranges: int32 [R, 2].
        attn_type_map: int32 [R]: 0 full, 1 causal, 2 inverse causal, 3 bi-causal.
    """

    q_ranges: Tensor
    k_ranges: Tensor
    attn_type_map: Tensor


def to_ranges(plan: Plan) -> MagiRanges:
    """The slices of a plan whose heads share one pattern.

    Each query's keys are runs. A slice grows from query to query while its run stays, or while one
    or both of its ends move on by one key: those are the four kinds. Exact for every plan; short
    for those made of boxes and diagonals.

    Raises:
        PlanError: if heads differ.
    """
    one_pattern(plan, "MagiAttention ranges")
    slices: list[_Slice] = []
    last: list[_Slice] = []  # those of the band before
    for top, bottom, runs in _bands(plan):
        # Runs of a query do not touch, so no two slices can go on with the same run.
        waiting = {run: piece for piece in last if piece.q1 == top for run in piece.next_runs()}
        last = []
        for run in runs:
            piece = waiting.get(run)
            if piece is None or not piece.grow(bottom, run):
                piece = _Slice(top, bottom, run)
                slices.append(piece)
            last.append(piece)
    rows = np.array([piece.as_row() for piece in slices], dtype=np.int32).reshape(-1, 5)
    return MagiRanges(
        q_ranges=torch.from_numpy(rows[:, 0:2].copy()),
        k_ranges=torch.from_numpy(rows[:, 2:4].copy()),
        attn_type_map=torch.from_numpy(rows[:, 4].copy()),
    )


class _Slice:
    """A slice that still grows: queries [q0, q1), the first and the last query's run of keys.

    `steps` is how far the run's two ends move from query to query, None until that is known.
    """

    def __init__(self, q0: int, q1: int, run: tuple[int, int]) -> None:
        self.q0, self.q1 = q0, q1
        self.first = self.last = run
        self.steps = (0, 0) if q1 - q0 > 1 else None

    def next_runs(self) -> list[tuple[int, int]]:
        """Runs of the next query with which the slice could go on."""
        steps = [(0, 0), (0, 1), (1, 0), (1, 1)] if self.steps is None else [self.steps]
        return [(self.last[0] + a, self.last[1] + b) for a, b in steps]

    def grow(self, bottom: int, run: tuple[int, int]) -> bool:
        """Go on to `bottom`; whether that was possible."""
        step = (run[0] - self.last[0], run[1] - self.last[1])
        if bottom - self.q1 > 1 and step != (0, 0):
            return False  # many queries with one run do not lie on a diagonal
        self.q1, self.last, self.steps = bottom, run, step
        return True

    def as_row(self) -> tuple[int, int, int, int, int]:
        """(q0, q1, k0, k1, kind)."""
        low, high = self.steps or (0, 0)
        return self.q0, self.q1, self.first[0], self.last[1], high + 2 * low


def _bands(plan: Plan) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """(first query, one past the last, runs of keys they all see), top to bottom."""
    bq, bk = plan.block_size
    bands = []
    row_ptr = plan.row_ptr.tolist()
    for row in range(plan.axes.rows if plan.num_blocks else 0):
        start, stop = row_ptr[row], row_ptr[row + 1]
        top, bottom = row * bq, min((row + 1) * bq, plan.seqlen_q)
        cols = plan.col[start:stop].numpy().astype(np.int64)
        tiles = None if plan.tile_id is None else plan.tile_id[start:stop]
        if tiles is None or bool((tiles < 0).all()):
            ends = np.minimum((cols + 1) * bk, plan.seqlen_k)
            bands.append((top, bottom, _joined(cols * bk, ends)))
            continue
        keep = block_bits(plan, start, stop).numpy()
        for query in range(top, bottom):
            edges = np.diff(np.pad(keep[:, query - top].astype(np.int8), ((0, 0), (1, 1))), axis=1)
            block, first = (edges == 1).nonzero()
            last = (edges == -1).nonzero()[1]
            left = cols[block] * bk
            bands.append((query, query + 1, _joined(left + first, left + last)))
    return bands


def _joined(starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
    """Runs with those that touch made one."""
    if not len(starts):
        return []
    begins = np.append(True, starts[1:] != stops[:-1])
    last = stops[np.append(begins[1:], True)]
    return list(zip(starts[begins].tolist(), last.tolist(), strict=True))
