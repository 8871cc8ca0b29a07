"""Plan files and books that commands read."""

from pathlib import Path

from maskplan import io
from maskplan.book import PlanBook
from maskplan.container import BOOK_TYPE, described_by, own_header
from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan, TransposedPlan


def load(path: Path) -> Plan | TransposedPlan | PlanBook:
    """What a file of maskplan holds.

    Raises:
        PlanFileError: if it is damaged, or no such file.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        kind = own_header(described_by(file, path), path).get("type")
    return PlanBook.load(path) if kind == BOOK_TYPE else io.load(path)


def load_plan(path: Path) -> Plan:
    """The plan in a file; transposed lists are turned back.

    Raises:
        PlanFileError: as `load`, or if the file is a book.
        OSError: if it cannot be read.
    """
    plan = io.load(path)
    return plan.transpose() if isinstance(plan, TransposedPlan) else plan


def load_book(path: Path) -> PlanBook:
    """The book in a file.

    Raises:
        PlanFileError: if it is damaged, or no book.
        OSError: if it cannot be read.
    """
    return PlanBook.load(path)


def entry(book: PlanBook, step: int | None, layer: int | None, head: int | None) -> Plan:
    """One layer's plan, or one head's; a number may be left out where the book has only one.

    Raises:
        PlanError: if a number is missing or not in the book.
    """
    chosen = []
    for name, numbers, given in (("step", book.steps, step), ("layer", book.layers, layer)):
        if given is None and len(numbers) > 1:
            raise PlanError(
                sentence(
                    what="book holds many plans",
                    where=f"--{name}",
                    got="nothing",
                    wanted=f"{numbers[0]} to {numbers[-1]}",
                    remedy=f"say which {name}",
                )
            )
        chosen.append(numbers[0] if given is None else given)
    return book.plan(*chosen) if head is None else book[chosen[0], chosen[1], head]
