"""Plans on disk: one safetensors file, its arrays as tensors beside a versioned JSON header.

The file's metadata holds one entry, "maskplan", whose value is the header as JSON:

    format, version     "maskplan", 1
    type                "Plan" or "TransposedPlan"
    seqlen_q, seqlen_k  tokens
    block_size          [bq, bk], tokens
    digest              of the canonical plan, which is what the arrays hold
    provenance          null, or builder, parameters, and grid and token_order where there is one
    checksum            SHA-256 of the other fields

A reader refuses what it does not know: nothing in a file is skipped, guessed or executed.
"""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from maskplan.container import (
    BOOK_TYPE,
    FORMAT,
    VERSION,
    arrays_of,
    check_header,
    check_tensors,
    checksum,
    described_by,
    own_header,
    provenance_of,
    refuse,
    replacing,
)
from maskplan.errors import MaskplanError, PlanFileError, PlanTypeError, sentence
from maskplan.geometry import Geometry
from maskplan.normal import canonical
from maskplan.plan import BlockLists, Plan, TransposedPlan

_TYPES: dict[str, type[Plan] | type[TransposedPlan]] = {
    "Plan": Plan,
    "TransposedPlan": TransposedPlan,
}
_FIELDS = {
    "format": str,
    "version": int,
    "type": str,
    "seqlen_q": int,
    "seqlen_k": int,
    "block_size": list,
    "digest": str,
    "provenance": (dict, type(None)),
    "checksum": str,
}
_TENSORS = {"pattern_id": "I32", "row_ptr": "I64", "col": "I32", "tile_id": "I32", "tiles": "I32"}
_OPTIONAL = {"tile_id"}


def save(plan: BlockLists, path: str | PathLike[str]) -> None:
    """Write the canonical form of `plan` to one file.

    The file is written beside `path` under another name, flushed to the disk and then moved into
    place, so that an interrupted save leaves an old file whole.

    Args:
        plan: a Plan or a TransposedPlan.
        path: where; a file there is replaced.

    Raises:
        PlanTypeError: if `plan` is not a plan.
        OSError: if the file cannot be written.
    """
    if not isinstance(plan, (Plan, TransposedPlan)):
        raise PlanTypeError(
            sentence(
                what="cannot save",
                where="plan",
                got=type(plan).__name__,
                wanted="a Plan or a TransposedPlan",
                remedy="make one with a builder",
            )
        )
    from safetensors.torch import save as serialize

    plan = canonical(plan)
    tensors = {name: getattr(plan, name) for name in _TENSORS}
    held = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    content = serialize(held, metadata={FORMAT: json.dumps(_header(plan), sort_keys=True)})
    with replacing(Path(path)) as file:
        file.write(content)


def load(path: str | PathLike[str]) -> Plan | TransposedPlan:
    """Read a plan that `save` wrote, and check all of it.

    Structure, every numbered invariant and the digest are checked, so a damaged file is found
    whatever bit it lost. Nothing is allocated by a size the file merely claims.

    Args:
        path: the file.

    Returns:
        A plan equal to the one saved, in canonical form, with its provenance.

    Raises:
        PlanFileError: if the file is damaged, truncated, of an unknown version or not a plan; the
            message names the field.
        OSError: if it cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        described = described_by(file, path)
        fields = _fields(described, path)
        check_tensors(described, _TENSORS, path, _OPTIONAL)
        file.seek(0)
        content = file.read()
    arrays = arrays_of(content, path)
    try:
        plan = _TYPES[fields["type"]](
            geometry=Geometry(
                seqlen_q=fields["seqlen_q"],
                seqlen_k=fields["seqlen_k"],
                block_size=tuple(fields["block_size"]),
            ),
            provenance=provenance_of(fields["provenance"]),
            **({"tile_id": None} | arrays),
        )
        plan.validate()
    except MaskplanError as error:
        refuse(path, "plan", "damaged", f"[{error}]", "a valid plan", error)
    plan = canonical(plan)
    if plan.digest != fields["digest"]:
        refuse(path, "digest", "damaged", plan.digest, f"{fields['digest']}, as its header says")
    return plan


def _header(plan: BlockLists) -> dict[str, Any]:
    """The header of a canonical plan."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "type": type(plan).__name__,
        "seqlen_q": plan.seqlen_q,
        "seqlen_k": plan.seqlen_k,
        "block_size": list(plan.block_size),
        "digest": plan.digest,
        "provenance": None if plan.provenance is None else plan.provenance.to_json(),
    }
    return fields | {"checksum": checksum(fields)}


def _fields(described: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The plan's own header, its fields known, present, of the right type and unharmed."""
    fields = own_header(described, path)
    if fields.get("type") == BOOK_TYPE:
        raise PlanFileError(
            sentence(
                what="file holds a book of plans",
                where=f"type of {path}",
                got=repr(BOOK_TYPE),
                wanted=" or ".join(map(repr, _TYPES)),
                remedy="read it with maskplan.PlanBook.load",
            )
        )
    check_header(fields, _FIELDS, path)
    if fields["type"] not in _TYPES:
        refuse(path, "type", "not readable", repr(fields["type"]), " or ".join(_TYPES))
    return fields
