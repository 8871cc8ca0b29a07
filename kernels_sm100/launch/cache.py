"""Compiled code on disk, one file a compile key.

A file is a zip of the object file, the PTX, the CUBIN and a description. It is written beside its
place and moved there, so that processes that compile the same thing at once do not disturb each
other. A damaged file is reported, and compiled again.
"""

import json
import os
import tempfile
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

_DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """What one compilation made.

    Attributes:
        object_file: host code, an ELF object with the device code inside.
        ptx: text of the device code, with line information.
        cubin: machine code of the device code.
        names: what the arguments of the host code are called.
        seconds: how long the compilation took.
    """

    object_file: bytes
    ptx: str
    cubin: bytes
    names: tuple[str, ...]
    seconds: float


def default_directory() -> Path:
    """KERNELS_SM100_CACHE, or kernels_sm100 in the user's cache directory."""
    if chosen := os.environ.get("KERNELS_SM100_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kernels_sm100"


class CompileCache:
    """Compiled code by key.

    Args:
        directory: made when it is first written to; `default_directory` if None.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = default_directory() if directory is None else directory

    def path(self, key: str) -> Path:
        """Where the code of `key` lies."""
        return self.directory / f"{key}.zip"

    def get(self, key: str) -> CacheEntry | None:
        """The code of `key`; None if there is none, or if it is damaged, with a warning."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            with zipfile.ZipFile(path) as archive:
                described = json.loads(archive.read("entry.json"))
                return CacheEntry(
                    object_file=archive.read("host.o"),
                    ptx=archive.read("kernel.ptx").decode(),
                    cubin=archive.read("kernel.cubin"),
                    names=tuple(described["names"]),
                    seconds=float(described["seconds"]),
                )
        except _DAMAGE as damage:
            warnings.warn(f"{path} is damaged ({damage}): compiling again", stacklevel=2)
            return None

    def put(self, key: str, entry: CacheEntry) -> None:
        """Keep `entry` as the code of `key`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        described = {"names": entry.names, "seconds": entry.seconds}
        handle, draft = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with (
                os.fdopen(handle, "wb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                archive.writestr("entry.json", json.dumps(described))
                archive.writestr("host.o", entry.object_file)
                archive.writestr("kernel.ptx", entry.ptx)
                archive.writestr("kernel.cubin", entry.cubin)
            Path(draft).replace(self.path(key))
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
