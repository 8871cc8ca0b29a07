"""`maskplan show` and `maskplan stats`: a plan or a book in words, pictures and figures."""

from pathlib import Path
from typing import Annotated

import typer

from maskplan import stats as figures
from maskplan.book import PlanBook
from maskplan.cli.options import Force, HeadDim, Layer, PlanOrBook, Step, pair
from maskplan.cli.output import free
from maskplan.cli.pictures import PAGE, save_figure, save_gallery, save_page
from maskplan.cli.plain import plain
from maskplan.cli.progress import working
from maskplan.cli.source import entry, load
from maskplan.errors import PlanError, sentence
from maskplan.plan import BlockLists
from maskplan.viz.text import picture

Slice = Annotated[
    str | None, typer.Option(help="Tokens first, one past the last: 0,512.", show_default=False)
]


def show(
    file: PlanOrBook,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw into a file: .png, .svg, .pdf or .html."),
    ] = None,
    rows: Annotated[int, typer.Option(help="In the terminal: most cells down.")] = 24,
    cols: Annotated[int, typer.Option(help="In the terminal: most cells across, up to 78.")] = 72,
    limit: Annotated[int, typer.Option(help="In the terminal: most patterns drawn.")] = 4,
    batch: Annotated[int | None, typer.Option(help="In a picture: which batch.")] = None,
    head: Annotated[
        int | None, typer.Option(help="In a picture: which head; of a book: one head's plan.")
    ] = None,
    q: Annotated[
        str | None, typer.Option("--q", help="In a picture: queries, 0,512.", show_default=False)
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", help="In a picture: keys, 0,512.", show_default=False)
    ] = None,
    gallery: Annotated[
        bool, typer.Option("--gallery", help="In a picture: all heads side by side.")
    ] = False,
    step: Step = None,
    layer: Layer = None,
    force: Force = False,
) -> None:
    """Draw a plan or a book: in the terminal, or into a picture or a page.

    A book is drawn as its density by step and layer; with --step and --layer,
    as one plan of it.
    """
    if out is not None:
        free(out, force=force)
    held = load(file)
    if isinstance(held, PlanBook) and (step is not None or layer is not None):
        held, head = entry(held, step, layer, head), None
    elif isinstance(held, BlockLists) and (step is not None or layer is not None):
        _refuse("a plan has no steps and layers", "--step, --layer", "a plan", "a book")
    window = {"batch": batch, "head": head, "q": q, "k": k, "gallery": gallery or None}
    given = [name for name, value in window.items() if value is not None]
    if out is None or out.suffix in PAGE or isinstance(held, PlanBook):
        if given:
            where = ", ".join(f"--{name}" for name in given)
            _refuse("option is for pictures of a plan", where, "another output", "-o plan.png")
        _show_whole(held, out, (rows, cols, limit))
        return
    assert isinstance(held, BlockLists), "a book was drawn above"
    if gallery:
        if len(given) > 1:
            _refuse("a gallery shows all heads", f"--{given[0]}", "another option", "--gallery")
        save_gallery(out, held)
        return
    with working(f"drawing {out.name}"):
        save_figure(
            out,
            lambda: (
                held.plot(
                    batch=batch or 0,
                    head=head or 0,
                    q=None if q is None else pair(q, "--q"),
                    k=None if k is None else pair(k, "--k"),
                ).figure
            ),
        )
    print(out)


def stats(file: PlanOrBook, head_dim: HeadDim = 128) -> None:
    """Count what a plan or a book keeps and costs: pairs, densities, blocks, balance, FLOPs."""
    held = load(file)
    if isinstance(held, PlanBook):
        print(held.stats(head_dim=head_dim))
    else:
        print(figures.stats(held, head_dim=head_dim))


def _show_whole(held: BlockLists | PlanBook, out: Path | None, cells: tuple[int, int, int]) -> None:
    """A book, or a plan in the terminal or in a page."""
    if out is None:
        rows, cols, limit = cells
        if isinstance(held, PlanBook):
            print(f"{held!r}\n\n{held}")
        else:
            print(picture(held, rows=rows, cols=cols, limit=limit))
        if held.provenance is not None:
            print(f"\nmade by {plain(held.provenance)}")
        print(f"digest {held.digest}")
        return
    with working(f"drawing {out.name}"):
        if out.suffix in PAGE:
            save_page(out, held)
        else:
            save_figure(out, lambda: held.plot().figure)
    print(out)


def _refuse(what: str, where: str, got: str, wanted: str) -> None:
    raise PlanError(
        sentence(what=what, where=where, got=got, wanted=wanted, remedy="leave the option out")
    )
