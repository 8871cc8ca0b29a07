"""Sparse VideoGen: heads that see a band of tokens, in raster order or place by place."""

import math

import numpy as np

from maskplan.build.slices import ABSENT, as_slices, boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import MAX_SEQLEN, flag, integer, number
from maskplan.patterns.grid import Grid
from maskplan.patterns.sequence import Sequence
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

HEADS = ("spatial", "temporal")
MODELS = ("wan", "hunyuan", "cogvideox")


@untransformed
def svg(
    grid: Grid,
    *,
    head: str,
    model: str,
    frames: float,
    prompt: int | None = None,
    first_frame: bool | None = None,
    multiple: int = 128,
    block_size: tuple[int, int] = (128, 128),
    queries: str = "all",
) -> Plan:
    """The plan of a spatial or a temporal head.

    Slot q of the video sees slot k of it if they lie in a band. With S tokens a frame,

        |q - k| <= ceil(frames * S / multiple) * multiple       wan
        |q - k| < floor(frames * S / multiple) * multiple       hunyuan, cogvideox

    A spatial head has slots in raster order, a temporal one in `TokenOrder.token_major(grid)`. The
    rule is the same in both, as published: with `first_frame` all see the first S slots of the
    video, which in a temporal head are places and not a frame. Text up to `prompt` sees everything
    and is seen by everything; text past it sees, and is seen by, itself only.

    Args:
        grid: the latent grid; any size.
        head: "spatial" or "temporal".
        model: whose band: "wan", "hunyuan" or "cogvideox".
        frames: width of the band to each side, in frames: `svg_frames(grid, density)`.
        prompt: text tokens that hold a prompt; None is all of them.
        first_frame: whether all see the first S slots; None is as the model: "wan" alone.
        multiple: tokens that the band is rounded to, as above.
        block_size: (bq, bk), in tokens.
        queries: "all", or "video" to leave text out of the queries.

    Raises:
        PlanTypeError: if `prompt` or `multiple` is no integer, or `frames` no number.
        PlanError: if `head` or `model` is not one of the above, `prompt` exceeds the text, `frames`
            is negative, NaN or no width, or the band rounds to nothing.

    Source: arXiv 2502.01776; `svg/models/{wan,hyvideo,cog}/utils.py`.
    """
    _one_of(head, "head", HEADS)
    _one_of(model, "model", MODELS)
    prompt = grid.text if prompt is None else integer(prompt, "prompt", high=grid.text)
    sink = model == "wan" if first_frame is None else flag(first_frame, "first_frame")
    frames = number(frames, "frames")
    if not 0 <= frames <= MAX_SEQLEN:
        raise PlanError(
            sentence(
                what="band is no number of frames",
                where="frames",
                got=frames,
                wanted=f"0 <= frames <= {MAX_SEQLEN}",
                remedy=f"pass svg_frames(grid, density), or {grid.t} for all frames",
            )
        )
    reach = _reach(model, frames * grid.frame_tokens, integer(multiple, "multiple", low=1))
    order = TokenOrder.raster(grid) if head == "spatial" else TokenOrder.token_major(grid)
    sequence = Sequence(order, queries)
    start, stop = grid.video_start, grid.video_start + grid.video_tokens
    video = [(start, stop, start, stop, -reach, reach + 1)]
    if sink:
        video.append((start, stop, start, start + grid.frame_tokens, -ABSENT, ABSENT))
    unused = np.array([[grid.text_start + prompt, grid.text_start + grid.text]])
    rest = boxes(unused[:, 0], unused[:, 1], unused[:, 0], unused[:, 1])
    provenance = sequence.provenance(
        "svg",
        head=head,
        model=model,
        frames=frames,
        band=reach,
        prompt=prompt,
        first_frame=sink,
        multiple=multiple,
    )
    slices = sequence.taken(as_slices(video), sequence.text(prompt), rest)
    return plan_of_slices([slices], sequence.geometry(block_size), provenance)


def svg_frames(grid: Grid, density: float) -> float:
    """Width of the band, in frames, that keeps about `density` of all pairs, text's included.

    With n tokens of which X are text: d = (density * n**2 - 2 * n * X) / n**2, the band's share,
    and width = n * (1 - sqrt(1 - d)) tokens. Published code calls this density "sparsity".

    Args:
        grid: the latent grid.
        density: kept pairs over all pairs.

    Raises:
        PlanError: if text alone takes as much, or `density` leaves no band of at most all pairs.
    """
    tokens, text = grid.seqlen, grid.text
    share = number(density, "density") - 2 * text / tokens
    if not 0 < share <= 1:
        raise PlanError(
            sentence(
                what="density leaves no band",
                where="density",
                got=density,
                wanted=f"above {2 * text / tokens:.4f}, which text takes, and at most 1 more",
                remedy="pass the share of pairs to keep, not the share to drop",
            )
        )
    return tokens * (1 - math.sqrt(1 - share)) / grid.frame_tokens


def _reach(model: str, tokens: float, multiple: int) -> int:
    """Largest |q - k| in the band."""
    if model == "wan":
        return math.ceil(tokens / multiple) * multiple
    reach = math.floor(tokens / multiple) * multiple - 1
    if reach < 0:
        raise PlanError(
            sentence(
                what="band rounds to nothing",
                where="frames",
                got=f"{tokens:g} tokens",
                wanted=f"at least {multiple} tokens, since {model} rounds them down",
                remedy="pass a wider band, or a smaller multiple",
            )
        )
    return reach


def _one_of(value: str, name: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(
            sentence(
                what=f"unknown {name}",
                where=name,
                got=repr(value),
                wanted=", ".join(map(repr, known)),
                remedy="pass one of these",
            )
        )
