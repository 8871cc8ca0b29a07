"""FastVideo's sliding-tile files: mask strategies, and the search logs they are chosen from.

A mask strategy is JSON, "t_l_h" -> [kt, kh, kw], the window of step t, layer l, head h in tiles.
sglang and SparseVideo read the same files. The canvas, the tile and how many steps, layers and
heads the model has are not in the file, and FastVideo's own reader ignores keys outside its
defaults (50, 60, 24); here they have to be said, and every key has to fit.
"""

import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from maskplan.book import PlanBook
from maskplan.book.entries import check_entries
from maskplan.container import replacing
from maskplan.errors import MaskplanError, PlanError, sentence
from maskplan.geometry import integer
from maskplan.interop.untrusted import MAX_BYTES, read_json, refuse, whole
from maskplan.patterns.grid import triple
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.video import Grid, sliding_tile

Triple = tuple[int, int, int]
_KEY = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")


def read_mask_strategy(
    path: str | PathLike[str],
    *,
    canvas: Triple,
    tile: Triple,
    steps: int,
    layers: int,
    heads: int,
    text: int = 0,
    pad: bool = False,
    missing: Triple | None = None,
    block_size: tuple[int, int] = (128, 128),
    max_bytes: int = MAX_BYTES,
) -> PlanBook:
    """The book of a mask strategy file, plain or gzipped; see `book_of_mask_strategy`.

    Raises:
        PlanFileError: also if the file is larger than `max_bytes` unpacked, or is not JSON.
        OSError: if it cannot be read.
    """
    return book_of_mask_strategy(
        read_json(path, max_bytes=max_bytes),
        canvas=canvas,
        tile=tile,
        steps=steps,
        layers=layers,
        heads=heads,
        text=text,
        pad=pad,
        missing=missing,
        block_size=block_size,
    )


def book_of_mask_strategy(
    strategy: Mapping[str, Sequence[int]],
    *,
    canvas: Triple,
    tile: Triple,
    steps: int,
    layers: int,
    heads: int,
    text: int = 0,
    pad: bool = False,
    missing: Triple | None = None,
    block_size: tuple[int, int] = (128, 128),
) -> PlanBook:
    """The book of a mask strategy: `maskplan.video.sliding_tile` for each (step, layer, head).

    Args:
        strategy: "t_l_h" -> [kt, kh, kw], as the JSON holds it.
        canvas: latent (t, h, w) in tokens. FastVideo's files for HunyuanVideo mean (30, 48, 80).
        tile: tokens of a tile, (6, 8, 8) in FastVideo.
        steps: number of steps; keys count from 0.
        layers: number of layers.
        heads: number of heads.
        text: text tokens after the video, which see and are seen by everything.
        pad: as in `sliding_tile`, where the tile does not divide the canvas.
        missing: the window of keys that the file leaves out.
        block_size: (bq, bk), in tokens.

    Returns:
        A book whose plans count tokens in tile order; each pattern's provenance says its window.

    Raises:
        PlanFileError: if a key is not "t_l_h" or lies outside, a window is not three integers or
            is larger than the canvas, or a key is missing and there is no `missing`.
        PlanTypeError: if the canvas or the tile is not three integers.
        PlanError: if an argument is out of range.
    """
    canvas, tile = triple(canvas, "canvas"), triple(tile, "tile")
    grid = Grid(*canvas, text=text)
    sizes = tuple(
        integer(size, name, low=1)
        for name, size in (("steps", steps), ("layers", layers), ("heads", heads))
    )
    check_entries(sizes)
    limits = tuple(-(-size // side) for size, side in zip(grid.shape, tile, strict=True))
    windows, index = _windows(strategy, sizes, limits, missing)
    choices = [
        sliding_tile(grid, tile=tile, window=window, block_size=block_size, pad=pad)
        for window in windows
    ]
    provenance = Provenance(
        builder="fastvideo.book_of_mask_strategy",
        parameters={"canvas": list(canvas), "tile": list(tile), "text": text, "pad": pad},
        grid=grid.to_json(),
    )
    return PlanBook.from_choices(choices, index, provenance=provenance)


def _windows(
    strategy: Mapping[str, Sequence[int]],
    sizes: tuple[int, ...],
    limits: tuple[int, ...],
    missing: Triple | None,
) -> tuple[list[Triple], torch.Tensor]:
    """(the distinct windows, int64 [steps, layers, heads] into them)."""
    if not isinstance(strategy, Mapping):
        refuse("mask strategy", "not a mask strategy", type(strategy).__name__, "a JSON object")
    numbers: dict[Triple, int] = {}
    index = torch.full(sizes, -1, dtype=torch.int64)
    places = index.numpy()
    for key, value in strategy.items():
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            refuse("mask strategy", "unknown key", f"{key!r:.80}", '"step_layer_head"')
        place = tuple(map(int, match.groups()))
        for part, size, name in zip(place, sizes, ("steps", "layers", "heads"), strict=True):
            if part >= size:
                remedy = f"pass the model's number of {name}"
                wanted = f"{name} below {size}"
                refuse("mask strategy", "key is outside the model", repr(key), wanted, remedy)
        window = _window(value, limits, f"mask strategy, key {key!r}")
        places[place] = numbers.setdefault(window, len(numbers))
    absent = (index < 0).nonzero()
    if len(absent):
        if missing is None:
            first = "_".join(map(str, absent[0].tolist()))
            got = f"no window for {len(absent)} of {index.numel()}, first {first!r}"
            remedy = "pass the model's steps, layers and heads, or name the rest with missing="
            refuse("mask strategy", "keys are missing", got, "a window for each", remedy)
        index[index < 0] = numbers.setdefault(
            _window(list(triple(missing, "missing")), limits, "missing"), len(numbers)
        )
    return list(numbers), index


def _window(value: object, limits: tuple[int, ...], where: str) -> Triple:
    if not isinstance(value, list) or len(value) != 3 or not all(whole(part) for part in value):
        refuse(where, "window is not three integers", f"{value!r:.80}", "[kt, kh, kw], in tiles")
    for part, limit, axis in zip(value, limits, "thw", strict=True):
        if not 1 <= part <= limit:
            remedy = "pass the canvas and tile that the file was made for"
            wanted = f"1 to {limit} tiles along {axis}"
            refuse(where, "window does not fit the canvas", value, wanted, remedy)
    return value[0], value[1], value[2]


def mask_strategy_of(book: PlanBook) -> dict[str, list[int]]:
    """The mask strategy of a book whose plans are all sliding tiles: the inverse of reading one.

    What the provenance of a pattern claims is checked: its plan is made again and compared.

    Raises:
        PlanError: if a plan is not a sliding tile, or the book does not count from 0.
    """
    for name in ("steps", "layers", "heads"):
        if getattr(book, name).start:
            raise PlanError(
                sentence(
                    what="mask strategies count from 0",
                    where=f"book.{name}",
                    got=repr(getattr(book, name)),
                    wanted=f"{name} from 0 on",
                    remedy="write the whole book",
                )
            )
    windows = [_window_of(book.pattern(number), number) for number in range(book.num_patterns)]
    keys = ("_".join(map(str, key)) for key in book)
    numbers = book.plans.pattern_id[0].tolist()
    return {key: windows[number] for key, number in zip(keys, numbers, strict=True)}


def write_mask_strategy(book: PlanBook, path: str | PathLike[str]) -> None:
    """Write `mask_strategy_of(book)` as JSON; an interrupted write leaves an old file whole."""
    content = json.dumps(mask_strategy_of(book), indent=4).encode()
    with replacing(Path(path)) as file:
        file.write(content)


def _window_of(plan: Plan, number: int) -> list[int]:
    origin = plan.provenance
    if origin is not None and origin.builder == "sliding_tile" and origin.grid is not None:
        made: Mapping[str, Any] = origin.parameters
        try:
            again = sliding_tile(
                Grid.from_json(origin.grid),
                tile=tuple(made["tile"]),
                window=tuple(made["window"]),
                block_size=plan.block_size,
                pad=made["pad"],
            )
        except (KeyError, TypeError, MaskplanError):  # a file's provenance may claim anything
            again = None
        if again == plan:
            return list(made["window"])
    raise PlanError(
        sentence(
            what="plan is not a sliding tile",
            where=f"book.pattern({number})",
            got=f"made by {origin}" if origin is not None else "no provenance",
            wanted="one that maskplan.video.sliding_tile makes",
            remedy="keep the book with book.save: a mask strategy holds windows of tiles only",
        )
    )
