"""`maskplan plan`, patterns of video models that the latent grid alone decides."""

from typing import Annotated

import typer

import maskplan as mp
from maskplan.cli.grid import Pad, grids
from maskplan.cli.options import numbers, pair, triple
from maskplan.cli.pattern import make, pattern
from maskplan.errors import PlanError, sentence
from maskplan.video import Grid

VIDEO = "Video, from the latent grid"

Decay = Annotated[
    float,
    typer.Option(help="Factor of widths: 0.2 for Wan, 0.95 for Hunyuan.", show_default=False),
]
Split = Annotated[int, typer.Option(help="Width below which frames are left out, in tokens.")]
Adjacent = Annotated[float, typer.Option(help="Width between adjacent frames, in frames.")]
Sink = Annotated[bool, typer.Option("--sink/--no-sink", help="Whether all see frame 0.")]

make.command(name="grids", rich_help_panel=VIDEO, epilog="Example: maskplan plan grids")(grids)


@pattern(VIDEO, "maskplan plan sliding-tile wan2.1-720p -o sta.plan")
def sliding_tile(
    *,
    grid: Grid,
    tile: Annotated[str, typer.Option(help="Tokens of a tile on each axis.")] = "6,8,8",
    window: Annotated[str, typer.Option(help="Tiles seen on each axis.")] = "3,3,3",
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Cut a window that is larger than its axis.")
    ] = False,
    pad: Pad = False,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Sliding tile attention (STA): each tile sees a box of tiles around it. Tile order.

    At the edges the box moves inwards, so that every query sees as many tiles.
    Source: arXiv 2502.04507, FastVideo.
    """
    return mp.video.sliding_tile(
        grid,
        tile=triple(tile, "--tile"),
        window=triple(window, "--window"),
        clamp=clamp,
        pad=pad,
        queries=queries,
        block_size=block_size,
    )


@pattern(
    VIDEO,
    "maskplan plan svg hunyuanvideo-720p --head temporal --model hunyuan "
    "--density 0.25 -o svg.plan",
)
def svg(
    *,
    grid: Grid,
    head: Annotated[str, typer.Option(help="spatial or temporal.", show_default=False)],
    model: Annotated[str, typer.Option(help="wan, hunyuan or cogvideox.", show_default=False)],
    density: Annotated[
        float | None, typer.Option(help="Pairs to keep, of all: gives the band's width.")
    ] = None,
    frames: Annotated[
        float | None, typer.Option(help="Or the band's width to each side, in frames.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(help="Text tokens that hold a prompt.")] = None,
    first_frame: Annotated[
        bool | None,
        typer.Option("--first-frame/--no-first-frame", help="Whether all see the first frame."),
    ] = None,
    multiple: Annotated[int, typer.Option(help="Tokens that the band is rounded to.")] = 128,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Sparse VideoGen (SVG): a band of tokens, frame by frame or place by place.

    Spatial heads lie in raster order, temporal ones in token-major order.
    Published code calls the share of pairs kept "sparsity"; here it is the
    density.
    Source: arXiv 2502.01776.
    """
    if (density is None) == (frames is None):
        raise PlanError(
            sentence(
                what="width of the band is not given once",
                where="--density, --frames",
                got="neither" if density is None else "both",
                wanted="one of the two",
                remedy="pass --density 0.25, say",
            )
        )
    width = mp.video.svg_frames(grid, density) if density is not None else frames
    assert width is not None, "one of the two was given"
    return mp.video.svg(
        grid,
        head=head,
        model=model,
        frames=width,
        prompt=prompt,
        first_frame=first_frame,
        multiple=multiple,
        queries=queries,
        block_size=block_size,
    )


@pattern(VIDEO, "maskplan plan radial wan2.1-720p --decay 0.2 -o radial.plan")
def radial(
    *,
    grid: Grid,
    decay: Decay,
    least: Annotated[int, typer.Option(help="Least width, in tokens.")] = 128,
    split: Split = 128,
    adjacent: Adjacent = 1.0,
    sink: Sink = True,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Radial attention: the farther apart two frames, the narrower their band. Raster order.

    This is the token rule; published code makes whole blocks of it, with loss:
    radial-shrunk.
    Source: arXiv 2506.19852.
    """
    return mp.video.radial(
        grid,
        decay=decay,
        least=least,
        split=split,
        adjacent=adjacent,
        sink=sink,
        queries=queries,
        block_size=block_size,
    )


@pattern(VIDEO, "maskplan plan radial-shrunk wan2.1-720p --decay 0.2 --block 64 -o shrunk.plan")
def radial_shrunk(
    *,
    grid: Grid,
    decay: Decay,
    block: Annotated[int, typer.Option(help="Tokens of a block.")] = 128,
    split: Split = 128,
    adjacent: Adjacent = 1.0,
    sink: Sink = True,
    queries: str,
) -> mp.Plan:
    """Radial attention in whole blocks, with the losses of the published code. Raster order.

    Source: arXiv 2506.19852, shrinkMaskStrict.
    """
    return mp.video.radial_shrunk(
        grid,
        decay=decay,
        block=block,
        split=split,
        adjacent=adjacent,
        sink=sink,
        queries=queries,
    )


@pattern(VIDEO, "maskplan plan block-causal 21,30,52 --chunk 3 --local 9 --sink 1 -o ar.plan")
def block_causal(
    *,
    grid: Grid,
    chunk: Annotated[int, typer.Option(help="Frames of a chunk.", show_default=False)],
    first_chunk: Annotated[int | None, typer.Option(help="Frames of the first chunk.")] = None,
    local: Annotated[int | None, typer.Option(help="Frames seen before a chunk's end.")] = None,
    sink: Annotated[int, typer.Option(help="First frames that all see.")] = 0,
    pad_to: Annotated[int, typer.Option(help="Slots to a multiple of this.")] = 1,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Autoregressive video: each chunk of frames sees itself and what came before. Raster order.

    Source: CausVid (arXiv 2412.07772), Self-Forcing (2506.08009).
    """
    return mp.video.block_causal(
        grid,
        chunk=chunk,
        first_chunk=first_chunk,
        local=local,
        sink=sink,
        pad_to=pad_to,
        queries=queries,
        block_size=block_size,
    )


@pattern(VIDEO, "maskplan plan magi 24,45,80 --reach 1,2,3,4 -o magi.plan")
def magi(
    *,
    grid: Grid,
    reach: Annotated[
        str, typer.Option(help="Chunks seen, its own included: one, or one a chunk: 1,2,3,4.")
    ],
    chunk: Annotated[int, typer.Option(help="Frames of a chunk.")] = 6,
    active: Annotated[
        str | None, typer.Option(help="Chunks that are queries: first, one past the last.")
    ] = None,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """MAGI-1: chunks of frames at several stages of denoising. Raster order.

    Source: arXiv 2505.13211.
    """
    reaches = numbers(reach, "--reach")
    return mp.video.magi(
        grid,
        reach=reaches[0] if len(reaches) == 1 else reaches,
        chunk=chunk,
        active=None if active is None else pair(active, "--active"),
        queries=queries,
        block_size=block_size,
    )
