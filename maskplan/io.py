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

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any, NoReturn

from maskplan.errors import MaskplanError, PlanFileError, PlanTypeError, sentence
from maskplan.geometry import Geometry
from maskplan.normal import canonical
from maskplan.plan import BlockLists, Plan, TransposedPlan
from maskplan.provenance import Provenance

FORMAT = "maskplan"
VERSION = 1

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
_PROVENANCE_FIELDS = {"builder": str, "parameters": dict, "grid": dict, "token_order": dict}
_TENSORS = {"pattern_id": "I32", "row_ptr": "I64", "col": "I32", "tile_id": "I32", "tiles": "I32"}
_OPTIONAL = {"tile_id", "grid", "token_order"}
_SIZE_BYTES = 8  # a safetensors file starts with the length of its own header
_MAX_HEADER = 100 * 2**20  # safetensors refuses a longer one


def save(plan: Plan | TransposedPlan, path: str | PathLike[str]) -> None:
    """Write the canonical form of `plan` to one file.

    The file is written beside `path` under another name, flushed to the disk and then moved into
    place, so that an interrupted save leaves an old file whole.

    Args:
        plan: what to keep.
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
    with _replacing(Path(path)) as file:
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
        described = _described(file, path)
        fields = _fields(described, path)
        _check_tensors(described, path)
        file.seek(0)
        content = file.read()
    from safetensors import SafetensorError
    from safetensors.torch import load as deserialize

    try:
        arrays: dict[str, Any] = deserialize(content)
    except (SafetensorError, ValueError, RuntimeError) as error:
        _refuse(path, "tensors", "damaged", str(error), "arrays that fill the file exactly", error)
    try:
        plan = _TYPES[fields["type"]](
            geometry=Geometry(
                seqlen_q=fields["seqlen_q"],
                seqlen_k=fields["seqlen_k"],
                block_size=tuple(fields["block_size"]),
            ),
            provenance=_provenance(fields["provenance"]),
            **({"tile_id": None} | arrays),
        )
        _check_row_ptr(plan, path)
        plan.validate()
    except MaskplanError as error:
        _refuse(path, "plan", "damaged", f"[{error}]", "a valid plan", error)
    plan = canonical(plan)
    if plan.digest != fields["digest"]:
        _refuse(path, "digest", "damaged", plan.digest, f"{fields['digest']}, as its header says")
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
    return fields | {"checksum": _checksum(fields)}


def _checksum(fields: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in fields.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once it is whole and on the disk."""
    path = path.resolve()  # a link keeps pointing at what is replaced
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _refuse(
    path: Path,
    where: str,
    what: str,
    got: object,
    wanted: object,
    cause: BaseException | None = None,
) -> NoReturn:
    raise PlanFileError(
        sentence(
            what=f"plan file is {what}",
            where=f"{where} of {path}",
            got=got,
            wanted=wanted,
            remedy="save the plan again, or make it anew",
        )
    ) from cause


def _json(text: bytes | str, path: Path, where: str) -> dict[str, Any]:
    """`text` as a JSON object without repeated keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a key stands twice")
        return fields

    try:
        value = json.loads(text, object_pairs_hook=once)
    # JSON nested too deep is a RecursionError, bytes that are no text a UnicodeDecodeError.
    except (ValueError, RecursionError) as error:
        _refuse(path, where, "not readable", str(error), "JSON", error)
    if not isinstance(value, dict):
        _refuse(path, where, "not readable", type(value).__name__, "a JSON object")
    return value


def _described(file: IO[bytes], path: Path) -> dict[str, Any]:
    """The safetensors header: each tensor's dtype, shape and place, and the metadata."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_SIZE_BYTES), "little")
    if size < _SIZE_BYTES or length > min(size - _SIZE_BYTES, _MAX_HEADER):
        got = f"{size} bytes with a header of {length}"
        _refuse(path, "start", "truncated or not a plan", got, "a whole safetensors file")
    return _json(file.read(length), path, "start")


def _fields(described: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The plan's own header, its fields known, present, of the right type and unharmed."""
    metadata = described.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(FORMAT), str):
        _refuse(path, "metadata", "not a plan", "no header of maskplan", "one that save() wrote")
    _check_names(metadata, {FORMAT: str}, path, "metadata")
    fields = _json(metadata[FORMAT], path, "header")
    if fields.get("format") != FORMAT:
        _refuse(path, "format", "not a plan", repr(fields.get("format")), repr(FORMAT))
    if fields.get("version") != VERSION or isinstance(fields["version"], bool):
        raise PlanFileError(
            sentence(
                what="plan file has an unknown version",
                where=f"version of {path}",
                got=repr(fields.get("version")),
                wanted=VERSION,
                remedy="read it with the maskplan that wrote it, or a newer one",
            )
        )
    _check_names(fields, _FIELDS, path, "header")
    if fields["checksum"] != _checksum(fields):
        _refuse(path, "checksum", "damaged", _checksum(fields), fields["checksum"])
    if fields["type"] not in _TYPES:
        _refuse(path, "type", "not readable", repr(fields["type"]), " or ".join(_TYPES))
    if fields["provenance"] is not None:
        _check_names(fields["provenance"], _PROVENANCE_FIELDS, path, "provenance")
    return fields


def _check_names(
    fields: Mapping[str, Any], wanted: Mapping[str, Any], path: Path, where: str
) -> None:
    """Refuse a field that is unknown, missing or of the wrong JSON type, by name."""
    for name in fields:
        if name not in wanted:
            _refuse(path, where, "not readable", f"unknown field {name!r}", sorted(wanted))
    for name, kinds in wanted.items():
        if name not in fields:
            if name in _OPTIONAL:
                continue
            _refuse(path, where, "not readable", f"no field {name!r}", sorted(wanted))
        value = fields[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            got = f"{name!r} of type {type(value).__name__}"
            _refuse(path, where, "not readable", got, f"{name!r} of type {kinds}")


def _check_tensors(described: Mapping[str, Any], path: Path) -> None:
    """Refuse a tensor that is unknown, missing or of the wrong dtype, by name."""
    tensors = {name: value for name, value in described.items() if name != "__metadata__"}
    _check_names(tensors, dict.fromkeys(_TENSORS, dict), path, "tensors")
    for name, value in tensors.items():
        if value.get("dtype") != _TENSORS[name]:
            _refuse(path, name, "not readable", value.get("dtype"), f"dtype {_TENSORS[name]}")


def _check_row_ptr(plan: BlockLists, path: Path) -> None:
    """Refuse row pointers whose differences would overflow before `validate` reads them."""
    outside = (plan.row_ptr < 0) | (plan.row_ptr > plan.num_blocks)
    if bool(outside.any()):
        got = int(plan.row_ptr[outside][0])
        _refuse(path, "row_ptr", "damaged", got, f"0 <= row_ptr <= {plan.num_blocks}")


def _provenance(fields: Mapping[str, Any] | None) -> Provenance | None:
    return None if fields is None else Provenance.from_json(fields)
