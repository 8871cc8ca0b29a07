"""MAGI-1: chunks of frames at different stages of denoising, each seeing so many chunks back."""

from collections.abc import Sequence as Numbers

import numpy as np

from maskplan.build.host import int_array
from maskplan.build.slices import boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.patterns.grid import Grid
from maskplan.patterns.sequence import IntArray, Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def magi(
    grid: Grid,
    *,
    reach: int | Numbers[int],
    chunk: int = 6,
    active: tuple[int, int] | None = None,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan of one pass of MAGI-1, in raster order: chunk c sees chunks c + 1 - reach[c] to c.

    In tokens, the range of queries of a chunk ends where its range of keys ends, at k_end, which
    starts at max(0, k_end - reach[c] chunks). Text sees everything, and everything sees text.

    Args:
        grid: the latent grid.
        reach: chunks that each chunk sees, itself included: one number, or one a chunk. It follows
            from how far a chunk is denoised.
        chunk: frames of a chunk; the last has fewer where chunks do not divide the video.
        active: (first, last): the queries are those of chunks first to last - 1, of which MAGI-1
            denoises `window_size` at a time, and keys end with them; None is all. Excludes text.
        block_size: (bq, bk), in tokens.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if a size is no integer.
        PlanError: if a reach is below 1, there is not one a chunk, or `active` is no range of
            chunks, or given with text.

    Source: arXiv 2505.13211; its `kv_range` per chunk.
    """
    chunk = integer(chunk, "chunk", low=1)
    sequence = Sequence(TokenOrder.raster(grid), queries)
    begins = np.arange(0, grid.t, chunk)
    reaches = _reaches(reach, len(begins))
    size, start = grid.frame_tokens, grid.video_start
    q0 = start + begins * size
    q1 = start + np.minimum(begins + chunk, grid.t) * size
    k0 = start + (begins + (1 - reaches) * chunk).clip(0) * size
    provenance = sequence.provenance(
        "magi", reach=reaches.tolist(), chunk=chunk, active=None if active is None else list(active)
    )
    slices = sequence.taken(boxes(q0, q1, k0, q1), sequence.text())
    plan = plan_of_slices([slices], sequence.geometry(block_size), provenance)
    if active is None:
        return plan
    first, last = _active(active, len(begins), grid)
    return plan.crop(q=(int(q0[first]), int(q1[last - 1])), k=(0, int(q1[last - 1])))


def _reaches(reach: int | Numbers[int], chunks: int) -> IntArray:
    if isinstance(reach, int):
        return np.full(chunks, integer(reach, "reach", low=1))
    numbers = int_array(reach, "reach", (None,))
    if len(numbers) != chunks or (numbers < 1).any():
        raise PlanError(
            sentence(
                what="reach does not fit the chunks",
                where="reach",
                got=numbers.tolist(),
                wanted=f"{chunks} numbers of chunks from 1 up, or one number",
                remedy="count the chunk itself: 1 sees no other",
            )
        )
    return numbers


def _active(active: tuple[int, int], chunks: int, grid: Grid) -> tuple[int, int]:
    first, last = int_array(active, "active", (2,)).tolist()
    if not 0 <= first < last <= chunks or grid.text:
        raise PlanError(
            sentence(
                what="active chunks are no range of the video's chunks",
                where="active",
                got=f"({first}, {last}) with {grid.text} text tokens",
                wanted=f"0 <= first < last <= {chunks}, and a grid without text",
                remedy="plan text apart: MAGI-1 sees it by cross-attention",
            )
        )
    return first, last
