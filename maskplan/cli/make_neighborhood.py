"""`maskplan plan`, neighbourhoods on the latent grid."""

from typing import Annotated, NoReturn

import typer

import maskplan as mp
from maskplan.cli.grid import Pad
from maskplan.cli.make_video import VIDEO
from maskplan.cli.options import triple
from maskplan.cli.pattern import pattern
from maskplan.errors import PlanError, sentence
from maskplan.video import Grid


@pattern(
    VIDEO,
    "maskplan plan neighborhood 30,48,80 --kernel 18,24,24 --stride 16,8,8 "
    "--tile 2,8,8 -o gna.plan",
)
def neighborhood(
    *,
    grid: Grid,
    kernel: Annotated[str, typer.Option(help="Tokens seen on each axis.", show_default=False)],
    stride: Annotated[str, typer.Option(help="Tokens that share one window.")] = "1,1,1",
    dilation: Annotated[str, typer.Option(help="Distance of neighbours.")] = "1,1,1",
    causal: Annotated[
        str, typer.Option(help="Axes on which nothing later is seen: t, th, thw ...")
    ] = "",
    tile: Annotated[
        str | None, typer.Option(help="Lay tokens out in such tiles; raster order if not given.")
    ] = None,
    pad: Pad = False,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Neighbourhood attention (NATTEN, GNA): each token sees the nearest ones on three axes.

    With a stride, tokens share windows, and blocks of a fitting tile are whole.
    Source: NATTEN; arXiv 2504.16922.
    """
    return mp.video.neighborhood(
        grid,
        kernel=triple(kernel, "--kernel"),
        stride=triple(stride, "--stride"),
        dilation=triple(dilation, "--dilation"),
        causal=_axes(causal),
        tile=None if tile is None else triple(tile, "--tile"),
        pad=pad,
        queries=queries,
        block_size=block_size,
    )


@pattern(VIDEO, "maskplan plan nested-neighborhood wan2.1-480p -o nbhd.plan")
def nested_neighborhood(
    *,
    grid: Grid,
    coefficients: Annotated[
        str, typer.Option(help="Widths of bands between frames 0, 1, 2 ... apart, in frames.")
    ] = "1,0.5,0.056",
    min_width: Annotated[float, typer.Option(help="Least width, in blocks.")] = 1.0,
    block: Annotated[int, typer.Option(help="Tokens of a block of the rule.")] = 128,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Nested neighbourhoods (NBHD): bands that narrow with the distance of frames. Raster order.

    Source: LightX2V.
    """
    return mp.video.nested_neighborhood(
        grid,
        coefficients=_decimals(coefficients),
        min_width=min_width,
        block=block,
        queries=queries,
        block_size=block_size,
    )


def _axes(text: str) -> tuple[bool, bool, bool]:
    if set(text) - set("thw") or len(set(text)) != len(text):
        _refuse("unknown axes", "--causal", text, "letters of thw", "pass --causal t, say")
    return "t" in text, "h" in text, "w" in text


def _decimals(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        _refuse("not a list of numbers", "--coefficients", text, "numbers", "pass 1,0.5,0.056")


def _refuse(what: str, where: str, got: str, wanted: str, remedy: str) -> NoReturn:
    raise PlanError(
        sentence(what=what, where=where, got=f"{got!r:.80}", wanted=wanted, remedy=remedy)
    )
