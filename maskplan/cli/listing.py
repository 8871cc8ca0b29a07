"""Plan files and their places in a run: as arguments, or listed in a file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from maskplan.book import PlanBook
from maskplan.cli.source import load_plan
from maskplan.interop.untrusted import MAX_BYTES, read_json, refuse
from maskplan.plan import Plan

Place = tuple[int, ...]

_PLACE = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:,(?:0|[1-9][0-9]{0,8})){1,2}")
_WAYS = "step,layer,head=FILE, step,layer=FILE, or a listing that ends in .json or .tsv"


def book_of_files(
    sources: Sequence[Path], *, steps: int | None, layers: int | None, heads: int | None
) -> PlanBook:
    """The book of the plan files that arguments and listings name.

    Args:
        sources: "step,layer,head=FILE" or "step,layer=FILE", or files that list such.
        steps: steps of the model; by default from the smallest to the largest that is named.
        layers: likewise.
        heads: likewise; of whole layers, the largest number that a plan has.

    Raises:
        PlanFileError: if a source is neither, a place is named twice, places are of both kinds, or
            a file is damaged or no plan.
        PlanError: as `PlanBook.from_plans` and `from_layers`.
        OSError: if a file cannot be read.
    """
    files: dict[Place, Path] = {}
    said: dict[Place, str] = {}
    for source in sources:
        for place, path, where in _entries(source):
            name = ",".join(map(str, place))
            if place in files:
                got = f"{name} also in {said[place]}"
                refuse(where, "place is named twice", got, "each place once", "leave one out")
            first = next(iter(files), place)
            if len(first) != len(place):
                got = f"{name} after {','.join(map(str, first))}"
                wanted = "step,layer,head everywhere, or step,layer everywhere"
                refuse(where, "places are of two kinds", got, wanted, "make two books of them")
            files[place], said[place] = path, where
    read: dict[Path, Plan] = {}
    plans = {}
    for place, path in files.items():
        # One object for one file: books look at each object once.
        if path not in read:
            read[path] = load_plan(path)
        plans[place] = read[path]
    ranges = [None if size is None else range(size) for size in (steps, layers, heads)]
    if all(len(place) == 2 for place in plans):
        of_layers = {(place[0], place[1]): plan for place, plan in plans.items()}
        return PlanBook.from_layers(of_layers, steps=ranges[0], layers=ranges[1], heads=heads)
    of_heads = {(place[0], place[1], place[2]): plan for place, plan in plans.items()}
    return PlanBook.from_plans(of_heads, steps=ranges[0], layers=ranges[1], heads=ranges[2])


def _entries(source: Path) -> Iterator[tuple[Place, Path, str]]:
    """(place, plan file, where it was said) of one argument."""
    text = str(source)
    place, equals, path = text.partition("=")
    if equals and _PLACE.fullmatch(place):
        yield _place(place, text), _path(path, text), repr(text)
    elif source.suffix == ".json":
        yield from _of_json(source)
    elif source.suffix == ".tsv":
        yield from _of_tsv(source)
    else:
        refuse("SOURCES", "source has no place in the run", repr(text), _WAYS, "say where it goes")


def _of_json(source: Path) -> Iterator[tuple[Place, Path, str]]:
    value = read_json(source)
    if not isinstance(value, dict) or not value:
        wanted = 'an object {"step,layer,head": "FILE"}, not empty'
        refuse(source, "not a listing of plans", f"{value!r:.80}", wanted)
    for name, path in value.items():
        where = f"{source}, key {name!r}"
        if not isinstance(path, str):
            refuse(where, "not a path", f"{path!r:.80}", "a string")
        yield _place(name, where), source.parent / _path(path, where), where


def _of_tsv(source: Path) -> Iterator[tuple[Place, Path, str]]:
    with source.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        refuse(source, "file is too large", "more", f"at most {MAX_BYTES} bytes")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        refuse(source, "file is not text", str(error), "UTF-8", cause=error)
    if not lines:
        refuse(source, "not a listing of plans", "nothing", "a line for each plan")
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if line.count("\t") != 1:
            refuse(where, "not a place and a path", f"{line!r:.80}", "step,layer,head, a tab, FILE")
        name, path = line.split("\t")
        yield _place(name, where), source.parent / _path(path, where), where


def _place(name: str, where: str) -> Place:
    if not _PLACE.fullmatch(name):
        wanted = "step,layer,head or step,layer as whole numbers without spaces"
        refuse(where, "not a place in a run", f"{name!r:.80}", wanted)
    return tuple(map(int, name.split(",")))


def _path(path: str, where: str) -> Path:
    # A blank at an end is a slip of the listing more often than a file's name.
    if not path or path != path.strip() or "\0" in path:
        refuse(
            where, "not a path", f"{path!r:.80}", "the name of a plan file, without blanks around"
        )
    return Path(path)
