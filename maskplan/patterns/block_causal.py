"""Block-causal video: frames made chunk by chunk, each chunk seeing itself and what came before."""

import numpy as np

from maskplan.build.slices import ABSENT, Slices, boxes, plan_of_slices
from maskplan.geometry import integer
from maskplan.patterns.grid import Grid
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def block_causal(
    grid: Grid,
    *,
    chunk: int,
    first_chunk: int | None = None,
    local: int | None = None,
    sink: int = 0,
    pad_to: int = 1,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan of autoregressive video models (CausVid, Self-Forcing), in raster order.

    With `end` the end of the query's chunk, a query sees key k if k < end and

        k >= end - local frames, or k in the first `sink` frames, or k is the query itself.

    The last chunk has fewer frames where chunks do not divide the video, and ends with it, where
    published code lets it see the padding that follows.

    Text sees everything, and everything sees text.

    Args:
        grid: the latent grid.
        chunk: frames of a chunk.
        first_chunk: frames of the first chunk; None is `chunk`. 1 for a given first image.
        local: frames seen before the end of the chunk; None is all of them.
        sink: first frames that all later chunks see, whatever `local` is.
        pad_to: lay the video out in a multiple of this many slots, those at its end without a
            token; as in published code, they see themselves and nothing else does.
        block_size: (bq, bk), in tokens.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if a size is no integer.
        PlanError: if `chunk`, `first_chunk`, `local` or `pad_to` is below 1, or `sink` below 0.

    Source: arXiv 2412.07772, 2506.08009; `_prepare_blockwise_causal_attn_mask`.
    """
    chunk, sink = integer(chunk, "chunk", low=1), integer(sink, "sink")
    first_chunk = chunk if first_chunk is None else integer(first_chunk, "first_chunk", low=1)
    local = None if local is None else integer(local, "local", low=1)
    pad_to = integer(pad_to, "pad_to", low=1)
    order = TokenOrder(grid=grid, tile=grid.shape, multiple=pad_to)
    sequence = Sequence(TokenOrder.raster(grid) if pad_to == 1 else order, queries)
    provenance = sequence.provenance(
        "block_causal",
        chunk=chunk,
        first_chunk=first_chunk,
        local=local,
        sink=sink,
        pad_to=pad_to,
    )
    slices = sequence.taken(
        _slices(grid, chunk, first_chunk, grid.t if local is None else local, sink),
        _padding(sequence),
        sequence.text(),
    )
    return plan_of_slices([slices], sequence.geometry(block_size), provenance)


def _slices(grid: Grid, chunk: int, first_chunk: int, local: int, sink: int) -> Slices:
    size, start = grid.frame_tokens, grid.video_start
    begins = np.concatenate([[0], np.arange(first_chunk, grid.t, chunk)])
    ends = np.append(begins[1:], grid.t)
    q0, q1 = start + begins * size, start + ends * size
    zero = np.full(len(q0), start)
    itself = boxes(q0, q1, q0, q1)
    itself[:, 4], itself[:, 5] = 0, 1
    return np.concatenate(
        [
            boxes(q0, q1, start + (ends - local).clip(0) * size, q1),
            boxes(q0, q1, zero, np.minimum(q1, start + sink * size)),
            itself,
        ]
    )


def _padding(sequence: Sequence) -> Slices:
    """Slots after the video that hold nothing see themselves."""
    order = sequence.order
    stop = int(order.tile_starts[-1])
    start = int(order.tile_starts[0]) + order.grid.video_tokens
    diagonal = (start, stop, start, stop, 0, 1) if stop > start else (0, 0, 0, 0, -ABSENT, ABSENT)
    return np.array([diagonal], dtype=np.int64)
