"""Pictures and pages that commands write, by the ending of the file."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from maskplan.book import PlanBook
from maskplan.cli.progress import working
from maskplan.container import replacing
from maskplan.errors import PlanError, sentence
from maskplan.plan import BlockLists
from maskplan.quality import PlanQuality
from maskplan.viz.canvas import pyplot

PAGE = (".html", ".htm")
FIGURE = (".png", ".svg", ".pdf")
_DPI = 200


def save_figure(path: Path, draw: Callable[[], Any]) -> None:
    """Write what `draw` draws with matplotlib, without a display.

    Raises:
        PlanError: if the ending is none of a picture.
        UnsupportedError: if matplotlib is not installed.
    """
    if path.suffix not in FIGURE:
        raise PlanError(
            sentence(
                what="unknown extension",
                where=str(path),
                got=repr(path.suffix),
                wanted=", ".join((*FIGURE, *PAGE)),
                remedy="name the file by what it should hold",
            )
        )
    plt = pyplot()
    plt.switch_backend("agg")
    figure = draw()
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=_DPI)
    plt.close(figure)


def save_gallery(path: Path, plan: BlockLists, quality: PlanQuality | None = None) -> None:
    """Write a picture of all heads, with what each keeps of attention if that is known."""
    from maskplan.viz import gallery

    with working(f"drawing {path.name}"):
        save_figure(path, lambda: gallery(plan, quality=quality))
    print(path)


def save_page(path: Path, held: BlockLists | PlanBook) -> None:
    """Write the card that a notebook shows as a page of its own, without scripts."""
    title = escape(path.stem)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"</head>\n<body>\n{held._repr_html_()}\n</body></html>\n"
    )
    with replacing(path) as file:
        file.write(page.encode())
