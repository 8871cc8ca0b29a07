"""Neighbourhood attention in three dimensions, as NATTEN defines it, with stride (GNA)."""

import numpy as np

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.patterns.axis_windows import AxisWindow, plan_of_windows
from maskplan.patterns.grid import Grid, triple
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def neighborhood(
    grid: Grid,
    *,
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int] = (1, 1, 1),
    dilation: tuple[int, int, int] = (1, 1, 1),
    causal: tuple[bool, bool, bool] = (False, False, False),
    tile: tuple[int, int, int] | None = None,
    pad: bool = False,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan in which a token sees its nearest `kernel` tokens on each axis.

    On an axis of L tokens with kernel k, stride s and dilation d, tokens fall into d groups by
    x mod d; x' = x // d counts in the group, L' is its length. With m = k // 2,

        leader = min(x' // s * s + s // 2, L' - 1)
        centre = clamp(leader, m, L' - 1 - (m + k % 2 - 1))
        x sees y of its group with centre - m <= y' <= centre + m + k % 2 - 1

    and on a causal axis, with leader = min(x' // s * s + s - 1, L' - 1),

        x sees y of its group with y' <= x' and leader - y' < k.

    So away from causal axes every token sees k tokens, for even k one more before than after it.
    Text sees everything, and everything sees text.

    Args:
        grid: the latent grid.
        kernel: tokens seen along (t, h, w); the length of an axis sees all of it.
        stride: tokens that share one window, along (t, h, w); at most `kernel`.
        dilation: distance of neighbours, along (t, h, w); kernel * dilation is at most the length.
        causal: axes along which no token sees a later one.
        tile: lay tokens out by `TokenOrder.tiles(grid, tile, pad=pad)`; None is raster order.
        pad: with `tile`, give every tile t * h * w slots.
        block_size: (bq, bk), in tokens.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if a size is not three integers, or `causal` not three bools.
        PlanError: naming the axis, if kernel * dilation exceeds its length or stride its kernel.

    Source: NATTEN; arXiv 2504.16922 (generalized neighborhood attention).
    """
    kernel, stride = triple(kernel, "kernel"), triple(stride, "stride")
    dilation, causal = triple(dilation, "dilation"), _bools(causal)
    for axis, length, k, s, d in zip("thw", grid.shape, kernel, stride, dilation, strict=True):
        _check_axis(axis, length, k, s, d)
    order = TokenOrder.raster(grid) if tile is None else TokenOrder.tiles(grid, tile, pad=pad)
    t, h, w = map(_window, grid.shape, kernel, stride, dilation, causal)
    sequence = Sequence(order, queries)
    provenance = sequence.provenance(
        "neighborhood",
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        causal=causal,
        tile=tile,
        pad=pad,
    )
    return plan_of_windows((t, h, w), sequence, block_size, provenance)


def _window(length: int, kernel: int, stride: int, dilation: int, causal: bool) -> AxisWindow:
    x = np.arange(length)
    residue, place = x % dilation, x // dilation
    group = (length - residue + dilation - 1) // dilation  # tokens in x's group
    first = place // stride * stride
    if causal:
        leader = np.minimum(first + stride - 1, group - 1)
        low, high = np.maximum(leader - kernel + 1, 0), place + 1
    else:
        before, after = kernel // 2, kernel // 2 + kernel % 2 - 1
        leader = np.minimum(first + stride // 2, group - 1)
        centre = np.clip(leader, before, group - 1 - after)
        low, high = centre - before, centre + after + 1
    last = (high - 1) * dilation + residue
    return AxisWindow(low=low * dilation + residue, high=last + 1, step=dilation)


def _check_axis(axis: str, length: int, kernel: int, stride: int, dilation: int) -> None:
    if kernel * dilation > length:
        raise PlanError(
            sentence(
                what="neighbourhood is larger than its axis",
                where=f"axis {axis}",
                got=f"kernel {kernel} * dilation {dilation} = {kernel * dilation}",
                wanted=f"at most {length} tokens",
                remedy=f"pass kernel {length // dilation} to see all of each dilated group"
                if dilation <= length
                else f"pass a dilation of at most {length}",
            )
        )
    if stride > kernel:
        raise PlanError(
            sentence(
                what="stride is larger than the kernel",
                where=f"axis {axis}",
                got=f"stride {stride}",
                wanted=f"at most the kernel, {kernel}",
                remedy="pass a smaller stride, or tokens would not see themselves",
            )
        )


def _bools(causal: tuple[bool, bool, bool]) -> tuple[bool, bool, bool]:
    is_triple = isinstance(causal, (tuple, list)) and len(causal) == 3
    if not is_triple or not all(isinstance(flag, bool) for flag in causal):
        raise PlanTypeError(
            sentence(
                what="causal axes are not three bools",
                where="causal",
                got=repr(causal),
                wanted="(t, h, w)",
                remedy="pass causal=(True, False, False) for video that sees no later frame",
            )
        )
    t, h, w = causal
    return t, h, w
