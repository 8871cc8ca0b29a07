"""Books on disk: one safetensors file, its patterns as runs beside a versioned JSON header.

The container is that of plan files (`maskplan.container`). The header:

    format, version     "maskplan", 1
    type                "PlanBook"
    seqlen_q, seqlen_k  tokens
    block_size          [bq, bk], tokens
    steps, layers, heads  [first, one past the last]
    digest              of the book
    pattern_provenance  for each distinct pattern null, or as in plan files
    provenance          of the book, likewise
    checksum            SHA-256 of the other fields

The tensors: `index` int32 [steps, layers, heads], the pattern of each entry; `row_runs`,
`run_start`, `run_length` and `run_tile` (`maskplan.book.runs`), absent if all blocks are full;
`tiles` as in a plan.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from maskplan.book.entries import AXES, MAX_ENTRIES
from maskplan.book.plan_book import PlanBook
from maskplan.book.runs import Runs, expanded, fault_of, runs_of
from maskplan.container import (
    BOOK_TYPE,
    FORMAT,
    VERSION,
    arrays_of,
    check_header,
    check_provenance,
    check_tensors,
    checksum,
    described_by,
    own_header,
    provenance_of,
    refuse,
    replacing,
)
from maskplan.errors import MaskplanError
from maskplan.geometry import Geometry, integer
from maskplan.plan import Plan

_FIELDS = {
    "format": str,
    "version": int,
    "type": str,
    "seqlen_q": int,
    "seqlen_k": int,
    "block_size": list,
    **dict.fromkeys(AXES, list),
    "digest": str,
    "pattern_provenance": list,
    "provenance": (dict, type(None)),
    "checksum": str,
}
_TENSORS = dict.fromkeys(
    ("index", "row_runs", "run_start", "run_length", "run_tile", "tiles"), "I32"
)
_OPTIONAL = {"run_tile"}
_RANKS = {"index": 3, "tiles": 3}


def save_book(book: PlanBook, path: str | PathLike[str]) -> None:
    """Write `book` to one file, as `maskplan.io.save` writes a plan.

    Args:
        book: what to keep.
        path: where; a file there is replaced once the new one is whole.

    Raises:
        OSError: if the file cannot be written.
    """
    from safetensors.torch import save as serialize

    plans = book.plans.canonical()
    content = None if plans.tile_id is None else plans.tile_id.numpy()
    runs = runs_of(plans.row_ptr.numpy(), plans.col.numpy(), content)
    arrays = {
        "row_runs": runs.row_runs,
        "run_start": runs.start,
        "run_length": runs.length,
        "run_tile": runs.tile,
    }
    held = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
    held |= {"index": book.index.contiguous(), "tiles": plans.tiles.contiguous()}
    metadata = {FORMAT: json.dumps(_header(book), sort_keys=True)}
    file_content = serialize(held, metadata=metadata)
    with replacing(Path(path)) as file:
        file.write(file_content)


def load_book(path: str | PathLike[str], *, max_blocks: int) -> PlanBook:
    """Read a book that `save_book` wrote, and check all of it; see `PlanBook.load`."""
    path = Path(path)
    max_blocks = integer(max_blocks, "max_blocks", high=2**40)
    with path.open("rb") as file:
        described = described_by(file, path)
        fields = own_header(described, path)
        if fields.get("type") != BOOK_TYPE:
            refuse(
                path,
                "type",
                "not a book",
                repr(fields.get("type")),
                f"{BOOK_TYPE!r}; maskplan.load reads plans",
            )
        check_header(fields, _FIELDS, path)
        check_tensors(described, _TENSORS, path, _OPTIONAL)
        file.seek(0)
        content = file.read()
    for number, origin in enumerate(fields["pattern_provenance"]):
        check_provenance(origin, path, f"pattern_provenance[{number}]")
    try:
        book = _book(fields, arrays_of(content, path), path, max_blocks)
    except MaskplanError as error:
        refuse(path, "book", "damaged", f"[{error}]", "a valid book", error)
    if book.digest != fields["digest"]:
        refuse(path, "digest", "damaged", book.digest, f"{fields['digest']}, as its header says")
    return book


def _header(book: PlanBook) -> dict[str, Any]:
    made = [None if origin is None else origin.to_json() for origin in book.pattern_provenance]
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "type": BOOK_TYPE,
        "seqlen_q": book.geometry.seqlen_q,
        "seqlen_k": book.geometry.seqlen_k,
        "block_size": list(book.geometry.block_size),
        **{name: [getattr(book, name).start, getattr(book, name).stop] for name in AXES},
        "digest": book.digest,
        "pattern_provenance": made,
        "provenance": None if book.provenance is None else book.provenance.to_json(),
    }
    return fields | {"checksum": checksum(fields)}


def _book(fields: dict[str, Any], arrays: dict[str, Any], path: Path, max_blocks: int) -> PlanBook:
    for name, array in arrays.items():
        if array.ndim != _RANKS.get(name, 1):
            refuse(path, name, "damaged", f"{array.ndim} axes", f"{_RANKS.get(name, 1)}")
    ranges = {name: _range(fields[name], name, path) for name in AXES}
    index = arrays["index"]
    if tuple(index.shape) != tuple(map(len, ranges.values())):
        refuse(path, "index", "damaged", f"shape {list(index.shape)}", f"{ranges}")
    geometry = Geometry(
        seqlen_q=fields["seqlen_q"],
        seqlen_k=fields["seqlen_k"],
        block_size=tuple(fields["block_size"]),
    )
    runs = Runs(
        row_runs=arrays["row_runs"].numpy(),
        start=arrays["run_start"].numpy(),
        length=arrays["run_length"].numpy(),
        tile=arrays["run_tile"].numpy() if "run_tile" in arrays else None,
    )
    fault = fault_of(runs, geometry.num_k_blocks, max_blocks)
    if fault is not None:
        refuse(path, fault[0], "damaged or too large", fault[1], fault[2])
    row_ptr, col, tile_id = expanded(runs)
    plans = Plan(
        geometry=geometry,
        pattern_id=index.reshape(1, -1),
        row_ptr=torch.from_numpy(row_ptr),
        col=torch.from_numpy(col),
        tile_id=None if tile_id is None else torch.from_numpy(tile_id),
        tiles=arrays["tiles"],
    ).validate()
    return PlanBook(
        plans=plans.canonical(),
        pattern_provenance=tuple(provenance_of(part) for part in fields["pattern_provenance"]),
        provenance=provenance_of(fields["provenance"]),
        **ranges,
    )


def _range(bounds: list[Any], name: str, path: Path) -> range:
    wanted = "[first, one past the last]"
    if len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
        refuse(path, name, "damaged", repr(bounds), wanted)
    if not 0 <= bounds[0] < bounds[1] <= MAX_ENTRIES:
        refuse(path, name, "damaged", repr(bounds), f"{wanted}, from 0 to {MAX_ENTRIES}")
    return range(*bounds)
