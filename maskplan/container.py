"""The container of plan files: safetensors with a versioned JSON header that is checked.

The file's metadata holds one entry, "maskplan", whose value is the header as JSON; every header has
format, version, type, provenance and checksum, the SHA-256 of its other fields. `maskplan.io` and
`maskplan.book.file` say what else stands in theirs.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import IO, Any, NoReturn

from maskplan.errors import PlanFileError, sentence
from maskplan.provenance import Provenance

FORMAT = "maskplan"
VERSION = 1
BOOK_TYPE = "PlanBook"  # the type in the header of a book

_PROVENANCE_FIELDS = {"builder": str, "parameters": dict, "grid": dict, "token_order": dict}
_OPTIONAL_PROVENANCE = {"grid", "token_order"}
_SIZE_BYTES = 8  # a safetensors file starts with the length of its own header
_MAX_HEADER = 100 * 2**20  # safetensors refuses a longer one


def checksum(fields: Mapping[str, Any]) -> str:
    """SHA-256 of a header without its checksum, in hex."""
    rest = {name: value for name, value in fields.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
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


def refuse(
    path: Path,
    where: str,
    what: str,
    got: object,
    wanted: object,
    cause: BaseException | None = None,
) -> NoReturn:
    """Raise the error of a file that cannot be used."""
    raise PlanFileError(
        sentence(
            what=f"plan file is {what}",
            where=f"{where} of {path}",
            got=got,
            wanted=wanted,
            remedy="save the plan again, or make it anew",
        )
    ) from cause


def json_object(text: bytes | str, path: Path, where: str) -> dict[str, Any]:
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
        refuse(path, where, "not readable", str(error), "JSON", error)
    if not isinstance(value, dict):
        refuse(path, where, "not readable", type(value).__name__, "a JSON object")
    return value


def described_by(file: IO[bytes], path: Path) -> dict[str, Any]:
    """The safetensors header: each tensor's dtype, shape and place, and the metadata."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_SIZE_BYTES), "little")
    if size < _SIZE_BYTES or length > min(size - _SIZE_BYTES, _MAX_HEADER):
        got = f"{size} bytes with a header of {length}"
        refuse(path, "start", "truncated or not a plan", got, "a whole safetensors file")
    return json_object(file.read(length), path, "start")


def own_header(described: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The header of maskplan in the file's metadata, of a version that can be read."""
    metadata = described.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(FORMAT), str):
        refuse(path, "metadata", "not a plan", "no header of maskplan", "one that save() wrote")
    check_names(metadata, {FORMAT: str}, path, "metadata")
    fields = json_object(metadata[FORMAT], path, "header")
    if fields.get("format") != FORMAT:
        refuse(path, "format", "not a plan", repr(fields.get("format")), repr(FORMAT))
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
    return fields


def check_header(fields: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Refuse a header that is harmed, or whose fields are not those wanted."""
    check_names(fields, wanted, path, "header")
    if fields["checksum"] != checksum(fields):
        refuse(path, "checksum", "damaged", checksum(fields), fields["checksum"])
    check_provenance(fields["provenance"], path, "provenance")


def check_provenance(fields: object, path: Path, where: str) -> None:
    """Refuse a provenance, or null, that `Provenance` could not have written."""
    if fields is None:
        return
    if not isinstance(fields, dict):
        refuse(path, where, "not readable", type(fields).__name__, "an object or null")
    check_names(fields, _PROVENANCE_FIELDS, path, where, _OPTIONAL_PROVENANCE)


def check_names(
    fields: Mapping[str, Any],
    wanted: Mapping[str, Any],
    path: Path,
    where: str,
    optional: AbstractSet[str] = frozenset(),
) -> None:
    """Refuse a field that is unknown, missing or of the wrong JSON type, by name."""
    for name in fields:
        if name not in wanted:
            refuse(path, where, "not readable", f"unknown field {name!r}", sorted(wanted))
    for name, kinds in wanted.items():
        if name not in fields:
            if name in optional:
                continue
            refuse(path, where, "not readable", f"no field {name!r}", sorted(wanted))
        value = fields[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            got = f"{name!r} of type {type(value).__name__}"
            refuse(path, where, "not readable", got, f"{name!r} of type {kinds}")


def check_tensors(
    described: Mapping[str, Any],
    dtypes: Mapping[str, str],
    path: Path,
    optional: AbstractSet[str] = frozenset(),
) -> None:
    """Refuse a tensor that is unknown, missing or of the wrong dtype, by name."""
    tensors = {name: value for name, value in described.items() if name != "__metadata__"}
    check_names(tensors, dict.fromkeys(dtypes, dict), path, "tensors", optional)
    for name, value in tensors.items():
        if value.get("dtype") != dtypes[name]:
            refuse(path, name, "not readable", value.get("dtype"), f"dtype {dtypes[name]}")


def arrays_of(content: bytes, path: Path) -> dict[str, Any]:
    """The tensors of a whole file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as deserialize

    try:
        arrays: dict[str, Any] = deserialize(content)
    except (SafetensorError, ValueError, RuntimeError) as error:
        refuse(path, "tensors", "damaged", str(error), "arrays that fill the file exactly", error)
    return arrays


def provenance_of(fields: Mapping[str, Any] | None) -> Provenance | None:
    """The provenance in a header that `check_header` accepted."""
    return None if fields is None else Provenance.from_json(fields)
