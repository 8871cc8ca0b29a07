"""A plan or a book as one HTML file to explore: nothing to install, nothing fetched."""

from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path

from maskplan.book.plan_book import PlanBook
from maskplan.container import replacing
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import BlockLists
from maskplan.viz.embedding import embedded, script_safe

_SCRIPTS = ("lists.js", "matrix.js", "frames.js", "controls.js")
MAX_BYTES = 64 * 2**20


def explore(
    source: BlockLists | PlanBook, path: str | PathLike[str], *, max_bytes: int = MAX_BYTES
) -> Path:
    """Write a page that shows `source` in any browser, from a file and without a network.

    The page zooms and pans over the matrix, has sliders for heads (of a book: steps, layers and
    heads), says which tokens and latent (t, h, w) a block holds, and lights the keys that a block
    of queries sees in the frames of the video, where the plan's provenance has a latent grid. All
    of it works by keyboard. Text from files is shown as text.

    Args:
        source: a Plan, a TransposedPlan or a PlanBook.
        path: the file to write; an interrupted write leaves an old file whole.
        max_bytes: largest page to write.

    Returns:
        The path.

    Raises:
        PlanTypeError: if `max_bytes` is not an integer.
        PlanError: if the page would be larger.
        OSError: if the file cannot be written.
    """
    max_bytes = integer(max_bytes, "max_bytes", low=1)
    content = page(source).encode()
    if len(content) > max_bytes:
        raise PlanError(
            sentence(
                what="page is too large",
                where=f"explore({str(path)!r})",
                got=f"{len(content)} bytes",
                wanted=f"at most {max_bytes}",
                remedy="take fewer heads or larger blocks (shard, select, reblock), or raise it",
            )
        )
    target = Path(path)
    with replacing(target) as file:
        file.write(content)
    return target


def page(source: BlockLists | PlanBook) -> str:
    """The page as text."""
    folder = files("maskplan.viz") / "page"
    data = embedded(source)
    parts = {
        "title": escape(data["title"]),
        "style": (folder / "style.css").read_text(encoding="utf-8"),
        "data": script_safe(data),
        "script": "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    # One pass over the template, so that what a part contains is never taken for a place.
    first, *rest = (folder / "page.html").read_text(encoding="utf-8").split("{{")
    pieces = [first]
    for piece in rest:
        name, _, text = piece.partition("}}")
        pieces += [parts[name], text]
    return "".join(pieces)
