"""Radial attention in whole blocks, as published code makes it, with loss."""

import numpy as np
import torch

from maskplan.build.assembly import assemble
from maskplan.geometry import integer
from maskplan.patterns.grid import Grid
from maskplan.patterns.radial import RadialRule
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def radial_shrunk(
    grid: Grid,
    *,
    decay: float,
    block: int = 128,
    split: int = 128,
    adjacent: float = 1.0,
    sink: bool = True,
    queries: str = "all",
) -> Plan:
    """Radial attention with each block on or off: neither less nor more than the token rule.

    Each pair of frames is cut into blocks by itself, from the block that the frame starts in, and
    a block is on if more than 0.6 of its columns that keep a pair keep more than a third of the
    block's rows. A frame that starts late in a block loses what reaches past its count of blocks.
    Blocks on for any pair of frames are on; blocks with text, or past the last whole block of
    video, see all and are seen by all.

    Args:
        grid: the latent grid. Published code stops where a frame is no whole number of blocks.
        decay: factor of the widths: 0.2 in published runs of Wan, 0.95 of HunyuanVideo.
        block: tokens of a block, of queries and of keys; also the rule's `least` width.
        split: as in `radial`.
        adjacent: as in `radial`.
        sink: as in `radial`.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if `block` or `split` is no integer.
        PlanError: if a size is below 1, or a factor not above 0.

    Source: arXiv 2506.19852, `gen_log_mask_shrinked` and `shrinkMaskStrict` of
    `radial_attn/attn_mask.py`.
    """
    block = integer(block, "block", low=1)
    rule = RadialRule(decay=decay, least=block, split=split, adjacent=adjacent, sink=sink)
    whole, sequence = Sequence(TokenOrder.raster(grid)), Sequence(TokenOrder.raster(grid), queries)
    row_ptr, col = _lists(grid, rule, block)
    provenance = whole.provenance(
        "radial_shrunk", decay=decay, block=block, split=split, adjacent=adjacent, sink=sink
    )
    one = torch.zeros((1, 1), dtype=torch.int32, device="cpu")
    plan = assemble(whole.geometry((block, block)), one, row_ptr, col, None, None, provenance)
    if queries == "all":
        return plan
    return plan.crop(q=(sequence.query_start, sequence.query_stop))


def _lists(grid: Grid, rule: RadialRule, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, col) of the blocks that are on, a strip of one frame's blocks at a time."""
    rows = -(-grid.seqlen // block)
    size, count = grid.frame_tokens, -(-grid.frame_tokens // block)
    starts = grid.video_start + np.arange(grid.t) * size
    first = starts // block
    lies = np.arange(count)[None] * block - (starts % block)[:, None]  # frame tokens, by block
    low, high = lies.clip(0, size), (lies + block).clip(0, size)
    widths = rule.widths(grid.t, size)
    dense = np.ones(rows, dtype=bool)
    text_blocks = -(-grid.text // block) if grid.text_first else 0
    video_stop = (grid.video_start + grid.video_tokens) // block
    dense[text_blocks:video_stop] = False
    strip = np.zeros((count + 1, rows + count), dtype=bool)
    lists: list[np.ndarray] = [np.arange(rows)] * int(first[0])
    for frame in range(grid.t):
        on = _on(widths[frame], (low[frame], high[frame]), (low, high), block)
        for other in range(grid.t):
            strip[:count, first[other] : first[other] + count] |= on[other]
        done = count if frame + 1 == grid.t else int(first[frame + 1] - first[frame])
        for at in range(done):
            row = first[frame] + at
            if row < rows:
                lists.append(np.flatnonzero(strip[at, :rows] | dense | dense[row]))
        strip[: count + 1 - done] = strip[done:]
        strip[count + 1 - done :] = False
    lists += [np.arange(rows)] * (rows - len(lists))
    row_ptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return row_ptr, np.concatenate(lists).astype(np.int32)


def _on(
    widths: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
    columns: tuple[np.ndarray, np.ndarray],
    block: int,
) -> np.ndarray:
    """Which blocks of one frame's queries by each frame's keys are on: bool [frames, n, n].

    A column c keeps min(c + w + 1, r1) - max(c - w, r0) of the rows [r0, r1): at least k of them
    for c from r0 + k - 1 - w to r1 - k + w, if there are so many. So columns are counted, not made.

    Args:
        widths: int64 [frames]; -1 keeps nothing.
        rows: int64 [n] each, first row of each block and one past its last, in the frame.
        columns: int64 [frames, n] each, the same of columns.
        block: tokens of a block.
    """
    w = widths[:, None, None]
    r0, r1 = rows[0][None, :, None], rows[1][None, :, None]
    c0, c1 = columns[0][:, None, :], columns[1][:, None, :]

    def columns_with(least: int) -> np.ndarray:
        count = np.minimum(c1, r1 - least + w + 1) - np.maximum(c0, r0 + least - 1 - w)
        possible = (r1 - r0 >= least) & (2 * w + 1 >= least)
        counted: np.ndarray = np.where(possible, count.clip(0), 0)
        return counted

    on: np.ndarray = 5 * columns_with(block // 3 + 1) > 3 * columns_with(1)
    return on
