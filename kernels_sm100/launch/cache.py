"""Compiled code on disk, one file a compile key.

A file is a zip of the object file, the PTX, the CUBIN and a description. It is written beside its
place and moved there, so that processes that compile the same thing at once do not disturb each
other. A damaged file is reported, and compiled again. The cache saves time and nothing else, so
where it cannot be read or written a warning says so, and each process compiles.
"""

import json
import os
import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

# What zipfile and json make of bytes that are not what was written: a flipped bit may say that a
# file is encrypted (RuntimeError), of another method (NotImplementedError), or elsewhere (OSError).
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, KeyError, TypeError, ValueError, EOFError,
    RuntimeError, OSError,
)  # fmt: skip


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
        """The code of `key`; None if there is none, or none that can be read, with a warning."""
        path = self.path(key)
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
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _DAMAGE as damage:
            warnings.warn(
                f"{path} is damaged or cannot be read ({damage}): compiling again", stacklevel=2
            )
            return None

    def put(self, key: str, entry: CacheEntry) -> None:
        """Keep `entry` as the code of `key`; where that cannot be, a warning says so."""
        try:
            self._write(key, entry)
        except OSError as error:
            warnings.warn(
                f"compiled code cannot be kept in {self.directory} ({error}): each process "
                "compiles it; set KERNELS_SM100_CACHE to a directory that can be written",
                stacklevel=2,
            )

    def _write(self, key: str, entry: CacheEntry) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        described = {"names": entry.names, "seconds": entry.seconds}
        # Not a tempfile, which its owner alone can read: users may share a cache.
        draft = self.directory / f"{uuid4().hex}.part"
        try:
            with (
                draft.open("xb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                archive.writestr("entry.json", json.dumps(described))
                archive.writestr("host.o", entry.object_file)
                archive.writestr("kernel.ptx", entry.ptx)
                archive.writestr("kernel.cubin", entry.cubin)
            draft.replace(self.path(key))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
