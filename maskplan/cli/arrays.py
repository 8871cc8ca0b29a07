"""NumPy files of others: read without unpickling, and without memory that a file only claims."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from maskplan.container import replacing
from maskplan.errors import PlanFileError, PlanTypeError, sentence

MAX_BYTES = 2**32  # of an .npz, unpacked
_NAMES = {
    "b": "bools",
    "iu": "integers",
    "biu": "bools or integers",
    "f": "floats",
    "biuf": "numbers",
}
_ZIP_MAGIC = b"PK\x03\x04"
# What NumPy's parser of headers lets through; the tokenizer is its second try.
_NO_HEADER = (
    ValueError,
    SyntaxError,
    TypeError,
    RecursionError,
    MemoryError,
    EOFError,
    tokenize.TokenError,
)
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError)


def read_array(path: Path, kinds: str, rank: int | None) -> Tensor:
    """The array of an .npy file.

    Args:
        path: the file.
        kinds: NumPy's letters of the types that it may have.
        rank: axes that it has to have, or None.

    Raises:
        PlanFileError: if the file is damaged or no .npy.
        PlanTypeError: if its dtype or rank is another.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return as_tensor(_parsed(file, size, str(path)), str(path), kinds, rank)


def read_arrays(
    path: Path, wanted: dict[str, str], optional: dict[str, str] | None = None
) -> dict[str, Tensor]:
    """The arrays of an .npz file by name.

    Args:
        path: the file.
        wanted: names it has to have, with NumPy's letters of their types.
        optional: names that it may have.

    Raises:
        PlanFileError: if it is damaged, no .npz, too large, or has other names.
        PlanTypeError: if a dtype is another.
        OSError: if it cannot be read.
    """
    arrays = raw_arrays(path)
    known = wanted | (optional or {})
    unknown, missing = sorted(set(arrays) - set(known)), sorted(set(wanted) - set(arrays))
    if unknown or missing:
        _refuse(path, "arrays have other names", f"{sorted(arrays)}"[:200], _listed(known, wanted))
    return {
        name: as_tensor(array, f"{name} of {path}", known[name], None)
        for name, array in arrays.items()
    }


def raw_arrays(path: Path, *, text: tuple[str, ...] = ()) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, whatever their names.

    Args:
        path: the file.
        text: names of arrays that may hold text.

    Raises:
        PlanFileError: if it is damaged, no .npz, too large, or holds objects.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != _ZIP_MAGIC:
            _refuse(path, "not an .npz file", "no zip archive", "what numpy.savez writes")
        try:
            with zipfile.ZipFile(file) as archive:
                return _members(archive, path, text)
        except _DAMAGE as error:
            _refuse(path, "damaged .npz file", str(error), "what numpy.savez writes", error)


def as_tensor(array: np.ndarray[Any, Any], where: str, kinds: str, rank: int | None) -> Tensor:
    """`array` as a tensor, checked to have one of the types and the rank."""
    if array.dtype.kind not in kinds or rank not in {None, array.ndim}:
        raise PlanTypeError(
            sentence(
                what="array has the wrong type or rank",
                where=where,
                got=f"{array.dtype} {list(array.shape)}",
                wanted=f"{_NAMES[kinds]} of rank {'any' if rank is None else rank}",
                remedy="see the command's --help",
            )
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch reads no larger ones
        if array.size and int(array.max()) >= 2**63:
            _refuse(Path(where), "number is too large", int(array.max()), "less than 2**63")
        array = array.astype(np.int64)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native)).view(native.shape)


def write_array(path: Path, array: Tensor) -> None:
    """Write an .npy file; an interrupted write leaves an old file whole."""
    with replacing(path) as file:
        np.save(file, array.numpy(), allow_pickle=False)


def write_arrays(path: Path, arrays: dict[str, Tensor]) -> None:
    """Write an .npz file; an interrupted write leaves an old file whole."""
    with replacing(path) as file:
        np.savez_compressed(file, **{name: array.numpy() for name, array in arrays.items()})  # type: ignore[arg-type]


def _members(
    archive: zipfile.ZipFile, path: Path, text: tuple[str, ...]
) -> dict[str, np.ndarray[Any, Any]]:
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(set(names)) != len(names) or not all(name.endswith(".npy") for name in names):
        _refuse(path, "archive is no .npz", f"{names}"[:200], "arrays with names of their own")
    total = sum(member.file_size for member in members)
    if total > MAX_BYTES:
        _refuse(path, "file is too large", f"{total} bytes unpacked", f"at most {MAX_BYTES}")
    arrays = {}
    for member in members:
        with archive.open(member) as stream:
            name = member.filename.removesuffix(".npy")
            kinds = "biufSU" if name in text else "biuf"
            arrays[name] = _parsed(stream, member.file_size, f"{name} of {path}", kinds)
    return arrays


def _parsed(stream: IO[bytes], size: int, where: str, kinds: str = "biuf") -> np.ndarray[Any, Any]:
    """The array in a stream of `size` bytes, by NumPy's format 1.0 or 2.0."""
    try:
        shape, by_column, dtype = _header(stream)
    except _NO_HEADER as error:
        _refuse(Path(where), "not an array", str(error).partition("\n")[0], "an .npy file", error)
    if dtype.hasobject or dtype.kind not in kinds:
        got = f"dtype {dtype}"
        _refuse(Path(where), "not an array of plain numbers", got, "bools, integers or floats")
    count = math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or count != size - stream.tell():
        got = f"{size - stream.tell()} bytes for {dtype} {list(shape)}"
        _refuse(Path(where), "array is truncated or damaged", got, f"{count} bytes")
    content = bytearray(count)
    view, filled = memoryview(content), 0
    while filled < count:
        part = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not part:
            _refuse(Path(where), "array is truncated", f"{filled} bytes", f"{count} bytes")
        filled += part
    array = np.frombuffer(content, dtype=dtype)
    return array.reshape(shape[::-1]).T if by_column else array.reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether columns come first, dtype), by NumPy's own parser of literals."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"format version {version}")


def _listed(known: dict[str, str], wanted: dict[str, str]) -> str:
    names = [name if name in wanted else f"{name} (may be left out)" for name in known]
    return ", ".join(names)


def _refuse(
    path: Path, what: str, got: object, wanted: str, cause: BaseException | None = None
) -> NoReturn:
    raise PlanFileError(
        sentence(
            what=what,
            where=str(path),
            got=got,
            wanted=wanted,
            remedy="write it with numpy.save or numpy.savez, without objects",
        )
    ) from cause
