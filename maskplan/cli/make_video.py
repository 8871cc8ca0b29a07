"""`maskplan plan`, patterns of video models that the latent grid alone decides."""

from typing import Annotated

import typer

import maskplan as mp
from maskplan.cli.grid import GridText, Pad, Queries, Text, TextFirst, grid_of, grids
from maskplan.cli.make import make
from maskplan.cli.options import Block, Force, Output, numbers, pair, triple
from maskplan.cli.output import free, keep
from maskplan.errors import PlanError, sentence

VIDEO = "Video, from the latent grid"

Decay = Annotated[
    float,
    typer.Option(help="Factor of widths: 0.2 for Wan, 0.95 for Hunyuan.", show_default=False),
]
Split = Annotated[int, typer.Option(help="Width below which frames are left out, in tokens.")]
Adjacent = Annotated[float, typer.Option(help="Width between adjacent frames, in frames.")]
Sink = Annotated[bool, typer.Option("--sink/--no-sink", help="Whether all see frame 0.")]

make.command(name="grids", rich_help_panel=VIDEO, epilog="Example: maskplan plan grids")(grids)


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan sliding-tile wan2.1-720p --clamp -o sta.plan",
)
def sliding_tile(
    grid: GridText,
    out: Output,
    tile: Annotated[str, typer.Option(help="Tokens of a tile on each axis.")] = "6,8,8",
    window: Annotated[str, typer.Option(help="Tiles seen on each axis.")] = "3,3,3",
    clamp: Annotated[
        bool, typer.Option("--clamp", help="Cut a window that is larger than its axis.")
    ] = False,
    pad: Pad = False,
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    block_size: Block = "128,128",
    force: Force = False,
) -> None:
    """Sliding tile attention (STA): each tile sees a box of tiles around it. Tile order.

    At the edges the box moves inwards, so that every query sees as many tiles.
    Source: arXiv 2502.04507, FastVideo.
    """
    plan = mp.video.sliding_tile(
        grid_of(grid, text, text_first),
        tile=triple(tile, "--tile"),
        window=triple(window, "--window"),
        clamp=clamp,
        pad=pad,
        queries=queries,
        block_size=pair(block_size, "--block-size"),
    )
    keep(plan, free(out, force=force))


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan svg hunyuanvideo-720p --head temporal --model hunyuan "
    "--density 0.25 -o svg.plan",
)
def svg(
    grid: GridText,
    out: Output,
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
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    block_size: Block = "128,128",
    force: Force = False,
) -> None:
    """Sparse VideoGen (SVG): a band of tokens, frame by frame or place by place.

    Spatial heads lie in raster order, temporal ones in token-major order.
    Published code calls the share of pairs kept "sparsity"; here it is the
    density.
    Source: arXiv 2502.01776.
    """
    latent = grid_of(grid, text, text_first)
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
    width = mp.video.svg_frames(latent, density) if density is not None else frames
    assert width is not None, "one of the two was given"
    plan = mp.video.svg(
        latent,
        head=head,
        model=model,
        frames=width,
        prompt=prompt,
        first_frame=first_frame,
        multiple=multiple,
        queries=queries,
        block_size=pair(block_size, "--block-size"),
    )
    keep(plan, free(out, force=force))


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan radial wan2.1-480p --decay 0.2 -o radial.plan",
)
def radial(
    grid: GridText,
    out: Output,
    decay: Decay,
    least: Annotated[int, typer.Option(help="Least width, in tokens.")] = 128,
    split: Split = 128,
    adjacent: Adjacent = 1.0,
    sink: Sink = True,
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    block_size: Block = "128,128",
    force: Force = False,
) -> None:
    """Radial attention: the farther apart two frames, the narrower their band. Raster order.

    This is the token rule; published code makes whole blocks of it, with loss:
    radial-shrunk.
    Source: arXiv 2506.19852.
    """
    plan = mp.video.radial(
        grid_of(grid, text, text_first),
        decay=decay,
        least=least,
        split=split,
        adjacent=adjacent,
        sink=sink,
        queries=queries,
        block_size=pair(block_size, "--block-size"),
    )
    keep(plan, free(out, force=force))


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan radial-shrunk wan2.1-480p --decay 0.2 --block 64 -o shrunk.plan",
)
def radial_shrunk(
    grid: GridText,
    out: Output,
    decay: Decay,
    block: Annotated[int, typer.Option(help="Tokens of a block.")] = 128,
    split: Split = 128,
    adjacent: Adjacent = 1.0,
    sink: Sink = True,
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    force: Force = False,
) -> None:
    """Radial attention in whole blocks, with the losses of the published code. Raster order.

    Source: arXiv 2506.19852, shrinkMaskStrict.
    """
    plan = mp.video.radial_shrunk(
        grid_of(grid, text, text_first),
        decay=decay,
        block=block,
        split=split,
        adjacent=adjacent,
        sink=sink,
        queries=queries,
    )
    keep(plan, free(out, force=force))


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan block-causal 21,30,52 --chunk 3 --local 9 --sink 1 -o ar.plan",
)
def block_causal(
    grid: GridText,
    out: Output,
    chunk: Annotated[int, typer.Option(help="Frames of a chunk.", show_default=False)],
    first_chunk: Annotated[int | None, typer.Option(help="Frames of the first chunk.")] = None,
    local: Annotated[int | None, typer.Option(help="Frames seen before a chunk's end.")] = None,
    sink: Annotated[int, typer.Option(help="First frames that all see.")] = 0,
    pad_to: Annotated[int, typer.Option(help="Slots to a multiple of this.")] = 1,
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    block_size: Block = "128,128",
    force: Force = False,
) -> None:
    """Autoregressive video: each chunk of frames sees itself and what came before. Raster order.

    Source: CausVid (arXiv 2412.07772), Self-Forcing (2506.08009).
    """
    plan = mp.video.block_causal(
        grid_of(grid, text, text_first),
        chunk=chunk,
        first_chunk=first_chunk,
        local=local,
        sink=sink,
        pad_to=pad_to,
        queries=queries,
        block_size=pair(block_size, "--block-size"),
    )
    keep(plan, free(out, force=force))


@make.command(
    rich_help_panel=VIDEO,
    epilog="Example: maskplan plan magi 24,45,80 --reach 1,2,3,4 -o magi.plan",
)
def magi(
    grid: GridText,
    out: Output,
    reach: Annotated[
        str, typer.Option(help="Chunks seen, its own included: one, or one a chunk: 1,2,3,4.")
    ],
    chunk: Annotated[int, typer.Option(help="Frames of a chunk.")] = 6,
    active: Annotated[
        str | None, typer.Option(help="Chunks that are queries: first, one past the last.")
    ] = None,
    text: Text = None,
    text_first: TextFirst = None,
    queries: Queries = "all",
    block_size: Block = "128,128",
    force: Force = False,
) -> None:
    """MAGI-1: chunks of frames at several stages of denoising. Raster order.

    Source: arXiv 2505.13211.
    """
    reaches = numbers(reach, "--reach")
    plan = mp.video.magi(
        grid_of(grid, text, text_first),
        reach=reaches[0] if len(reaches) == 1 else reaches,
        chunk=chunk,
        active=None if active is None else pair(active, "--active"),
        queries=queries,
        block_size=pair(block_size, "--block-size"),
    )
    keep(plan, free(out, force=force))
