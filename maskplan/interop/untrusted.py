"""Files of others: read in bounded memory, parsed without executing anything, refused by name."""

import gzip
import json
import zlib
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from maskplan.errors import PlanFileError, sentence
from maskplan.geometry import integer

MAX_BYTES = 64 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"


def refuse(
    where: object,
    what: str,
    got: object,
    wanted: object,
    remedy: str = "correct the file, or ask its producer for another",
    cause: BaseException | None = None,
) -> NoReturn:
    """Raise the error of a file, or of what it holds, that cannot be used."""
    raise PlanFileError(
        sentence(what=what, where=str(where), got=got, wanted=wanted, remedy=remedy)
    ) from cause


def read_json(path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> Any:
    """The value in a JSON file, gzipped or not.

    Args:
        path: the file.
        max_bytes: the most it may hold, unpacked; no more than that is read.

    Raises:
        PlanTypeError: if `max_bytes` is not an integer.
        PlanFileError: if it is larger, damaged or no JSON, names a key twice or holds NaN.
        OSError: if it cannot be read.
    """
    max_bytes = integer(max_bytes, "max_bytes", high=2**62)
    path = Path(path)
    with path.open("rb") as file:
        packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if packed else file
            content = stream.read(max_bytes + 1)
        # zlib.error is neither an OSError nor a ValueError.
        except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
            refuse(path, "damaged gzip file", str(error), "a whole file", cause=error)
    if len(content) > max_bytes:
        remedy = "pass a larger max_bytes if you trust it"
        refuse(path, "file is too large", "more", f"at most {max_bytes} bytes, unpacked", remedy)
    try:
        return json.loads(content, object_pairs_hook=_once, parse_constant=_no_constant)
    # JSON nested too deep is a RecursionError, bytes that are no text a UnicodeDecodeError.
    except (ValueError, RecursionError) as error:
        refuse(path, "file is not JSON", str(error) or type(error).__name__, "JSON", cause=error)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"key {name!r:.80} stands twice")
        fields[name] = value
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def whole(value: object, low: int = 0, high: int = 2**31 - 1) -> bool:
    """Whether a parsed value is an integer in [low, high]; a bool or 3.0 is not."""
    return type(value) is int and low <= value <= high
