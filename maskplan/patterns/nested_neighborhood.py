"""Nested neighbourhoods of LightX2V: bands of blocks that narrow with the distance of frames."""

import math
from collections.abc import Sequence as Numbers
from fractions import Fraction

import numpy as np

from maskplan.build.slices import Slices, boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer, number
from maskplan.patterns.grid import Grid
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def nested_neighborhood(
    grid: Grid,
    *,
    coefficients: Numbers[float] = (1.0, 0.5, 0.056),
    min_width: float = 1.0,
    block: int = 128,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan of nbhd attention, in raster order, by its rule for blocks.

    Blocks of `block` tokens are counted from the start of the video, a = S / block of them to a
    frame of S tokens, not always a whole number. With n = floor(i / a), block i of queries sees
    block j of keys if j <= a, or if for some m from 0 to T - 1, of width
    w = max(min_width, coefficients[m] * a), or min_width past the last coefficient,

        (n + m) * a <= j <= (n + m + 1) * a  and  i + m * a - w <= j <= i + m * a + w,

    or the same holds with i and j changed over. Text sees everything, and everything sees text.

    Args:
        grid: the latent grid.
        coefficients: widths of bands between frames m apart, in frames; at most T of them.
        min_width: least width, in blocks.
        block: tokens of a block of the rule.
        block_size: (bq, bk) of the plan, in tokens; need not be `block`.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if `block` is no integer.
        PlanError: if there are more coefficients than frames, or a width is negative or not finite.

    Source: LightX2V, `generate_nbhd_mask` of `lightx2v/common/ops/attn/nbhd_attn.py`.
    """
    block = integer(block, "block", low=1)
    coefficients = tuple(number(value, "coefficients") for value in coefficients)
    min_width = number(min_width, "min_width")
    _check(grid, coefficients, min_width)
    sequence = Sequence(TokenOrder.raster(grid), queries)
    provenance = sequence.provenance(
        "nested_neighborhood", coefficients=coefficients, min_width=min_width, block=block
    )
    widths = [Fraction(min_width)] * grid.t
    widths[: len(coefficients)] = [
        max(Fraction(min_width), Fraction(value) * Fraction(grid.frame_tokens, block))
        for value in coefficients
    ]
    slices = sequence.taken(_slices(grid, widths, block), sequence.text())
    return plan_of_slices([slices], sequence.geometry(block_size), provenance)


def _slices(grid: Grid, widths: list[Fraction], block: int) -> Slices:
    """Each block of queries by the intervals of blocks it sees."""
    size, count = grid.frame_tokens, -(-grid.video_tokens // block)
    m, i = np.repeat(np.arange(grid.t), count), np.tile(np.arange(count), grid.t)
    # In fractions: rounded, bands lose blocks that lie just on their edges.
    shifts = [Fraction(at * size, block) for at in range(grid.t)]
    near, far = (
        np.array([min(max(end, -count), 2 * count) for end in ends], dtype=np.int64)[m]
        for ends in (
            [math.ceil(s - w) for s, w in zip(shifts, widths, strict=True)],
            [math.floor(s + w) for s, w in zip(shifts, widths, strict=True)],
        )
    )
    frame = i * block // size
    # Bounds by frames in whole numbers: ceil(n * a) is -(-n * S // block).
    ahead = (
        np.maximum(i + near, -(-(frame + m) * size // block)),
        np.minimum(i + far, (frame + m + 1) * size // block),
    )
    # Frames n of j with (n + m) * a <= i <= (n + m + 1) * a: two where i starts a frame.
    last = i * block // size - m
    first = -(-i * block // size) - m - 1
    behind = (
        np.maximum(i - far, -(-first.clip(0) * size // block)),
        np.minimum(i - near, -(-(last + 1) * size // block) - 1),
    )
    sink = (np.zeros(count), np.full(count, size // block))
    lows = np.concatenate([ahead[0], behind[0], sink[0]]).astype(np.int64)
    highs = np.concatenate([ahead[1], behind[1], sink[1]]).astype(np.int64)
    rows = np.concatenate([i, i, np.arange(count)])
    lows, stops = lows.clip(0, count), (highs + 1).clip(0, count)
    keep = lows < stops
    start, stop = grid.video_start, grid.video_start + grid.video_tokens
    edges = np.minimum(start + np.arange(count + 1) * block, stop)
    rows = rows[keep]
    return boxes(edges[rows], edges[rows + 1], edges[lows[keep]], edges[stops[keep]])


def _check(grid: Grid, coefficients: tuple[float, ...], min_width: float) -> None:
    if len(coefficients) > grid.t:
        raise PlanError(
            sentence(
                what="more coefficients than frames",
                where="coefficients",
                got=len(coefficients),
                wanted=f"at most {grid.t}, one a frame",
                remedy="leave out those of distances that the video does not have",
            )
        )
    for value in (*coefficients, min_width):
        if not 0 <= value < float("inf"):
            raise PlanError(
                sentence(
                    what="width is negative or not finite",
                    where="coefficients, min_width",
                    got=value,
                    wanted="numbers from 0 up",
                    remedy="pass widths in frames, and min_width in blocks",
                )
            )
