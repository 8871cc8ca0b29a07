"""Radial attention: the farther apart two frames, the narrower the band between them."""

from dataclasses import dataclass

import numpy as np

from maskplan.build.slices import Slices, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import flag, integer, number
from maskplan.patterns.grid import Grid
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

# `decay` of published runs.
MODELS: dict[str, float] = {"wan": 0.2, "hunyuan": 0.95}


@dataclass(frozen=True, slots=True, kw_only=True)
class RadialRule:
    """Which tokens of which frames see each other.

    With F frames of S tokens, tokens r of frame i and c of frame j, distance d = |i - j|, its
    group g = bit_length(d) and P = 2 ** bit_length(S): r sees c if |r - c| <= w, where

        w = S                                       d = 0
        w = int(adjacent * S)                       d = 1
        w = max(P / 2**g * decay, least)            otherwise

    and, where P / 2**g < split, only if d is a multiple of int(split / (P / 2**g)). Frame 0 is seen
    whole by all with `sink`.

    Attributes:
        decay: factor of the widths, above 0.
        least: least width, in tokens; published code passes its block size.
        split: widths below which frames are left out; 128 in published code.
        adjacent: width between adjacent frames, in frames: 1, or 0.5 in later code for Wan.
        sink: whether frame 0 is seen by all.
    """

    decay: float
    least: int = 128
    split: int = 128
    adjacent: float = 1.0
    sink: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", flag(self.sink, "sink"))
        for name in ("least", "split"):
            object.__setattr__(self, name, integer(getattr(self, name), name, low=1))
        for name in ("decay", "adjacent"):
            value = number(getattr(self, name), name)
            if not 0 < value < float("inf"):
                raise PlanError(
                    sentence(
                        what="factor of a width is not positive",
                        where=name,
                        got=value,
                        wanted="a number above 0",
                        remedy=f"published values of decay are {MODELS}",
                    )
                )

    def width(self, distance: int, frame_tokens: int) -> int:
        """Width w of two frames in whole tokens, or -1 where they do not see each other."""
        if distance == 0:
            return frame_tokens
        reach = 2 ** frame_tokens.bit_length() / 2 ** distance.bit_length()
        if reach < self.split and distance % int(self.split / reach):
            return -1
        if distance == 1:
            return int(self.adjacent * frame_tokens)
        return int(max(reach * self.decay, self.least))

    def widths(self, frames: int, frame_tokens: int) -> np.ndarray:
        """Width w of each pair of frames, int64 [frames, frames], the sink's included."""
        by_distance = np.array([self.width(d, frame_tokens) for d in range(frames)], dtype=np.int64)
        at = np.arange(frames)
        widths: np.ndarray = by_distance[np.abs(at[:, None] - at)]
        if self.sink:
            widths[:, 0] = frame_tokens
        return widths


@untransformed
def radial(
    grid: Grid,
    *,
    decay: float,
    least: int = 128,
    split: int = 128,
    adjacent: float = 1.0,
    sink: bool = True,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan of radial attention, by its token rule (`RadialRule`), in raster order.

    Text sees everything, and everything sees text. Published code goes on to make whole blocks of
    it, with loss: `radial_shrunk` is that.

    Args:
        grid: the latent grid; any size.
        decay: factor of the widths: 0.2 in published runs of Wan, 0.95 of HunyuanVideo.
        least: least width, in tokens.
        split: widths below which frames are left out, in tokens.
        adjacent: width between adjacent frames, in frames.
        sink: whether frame 0 is seen by all.
        block_size: (bq, bk), in tokens.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if `least` or `split` is no integer.
        PlanError: if a size is below 1, or a factor not above 0.

    Source: arXiv 2506.19852, `radial_attn/attn_mask.py`.
    """
    rule = RadialRule(decay=decay, least=least, split=split, adjacent=adjacent, sink=sink)
    sequence = Sequence(TokenOrder.raster(grid), queries)
    provenance = sequence.provenance(
        "radial", decay=decay, least=least, split=split, adjacent=adjacent, sink=sink
    )
    slices = sequence.taken(_slices(rule, grid), sequence.text())
    return plan_of_slices([slices], sequence.geometry(block_size), provenance)


def _slices(rule: RadialRule, grid: Grid) -> Slices:
    size = grid.frame_tokens
    widths = rule.widths(grid.t, size)
    i, j = np.nonzero(widths >= 0)
    width = widths[i, j]
    q0, k0 = grid.video_start + i * size, grid.video_start + j * size
    return np.stack([q0, q0 + size, k0, k0 + size, k0 - q0 - width, k0 - q0 + width + 1], axis=1)
