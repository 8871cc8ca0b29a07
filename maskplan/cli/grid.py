"""The latent grid that video commands are given, and options that all of them share."""

from dataclasses import replace
from typing import Annotated

import typer

from maskplan.cli.options import triple
from maskplan.errors import PlanError, sentence
from maskplan.video import Grid

GridText = Annotated[
    str,
    typer.Argument(
        metavar="GRID",
        help=f"Latent frames, height, width: 21,45,80; or a model: {', '.join(Grid.presets())}.",
        show_default=False,
    ),
]
Text = Annotated[
    int | None,
    typer.Option(help="Text tokens; the model's, or 0, where not given.", show_default=False),
]
TextFirst = Annotated[
    bool | None,
    typer.Option(
        "--text-first/--text-last", help="Where the text stands; last, or as the model has it."
    ),
]
Queries = Annotated[
    str, typer.Option(help="all, or video: text is then seen, and is no query itself.")
]
Pad = Annotated[bool, typer.Option("--pad", help="Pad edge tiles to whole ones.")]
FreeRows = Annotated[
    bool,
    typer.Option("--free-rows", help="With --pad: slots without a token see what their tile sees."),
]


def grid_of(text: str, text_tokens: int | None, text_first: bool | None) -> Grid:
    """The grid that `text` names or writes out, with the text that was asked for.

    Raises:
        PlanError: if it is neither three numbers nor a preset.
    """
    named = text[:1].isalpha()
    if named and text not in Grid.presets():
        raise PlanError(
            sentence(
                what="unknown model",
                where="GRID",
                got=repr(text),
                wanted=", ".join(Grid.presets()),
                remedy="name one of these, or give latent frames, height, width: 21,45,80",
            )
        )
    grid = Grid.preset(text) if named else Grid(*triple(text, "GRID"))
    if text_tokens is not None:
        grid = replace(grid, text=text_tokens)
    return grid if text_first is None else replace(grid, text_first=text_first)


def grids() -> None:
    """List the models whose latent grids have a name, with their sizes."""
    for name in Grid.presets():
        grid = Grid.preset(name)
        text = f"{grid.text} text tokens {'first' if grid.text_first else 'last'}"
        shape = f"{grid.t},{grid.h},{grid.w}"
        print(f"{name:<20} {shape:<10} {grid.video_tokens:>7} tokens, {text}")
