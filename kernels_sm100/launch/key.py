"""The name under which compiled code is kept: everything that can change it, hashed.

NOTE [Keys are derived]: a key that lists fields by hand misses the one added last, and then two
configurations share code. So the key is made from the fields of the configuration themselves, from
the versions of the compilers and from the text of the sources.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from kernels_sm100.errors import ConfigError, UnavailableError, sentence

COMPILERS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "apache-tvm-ffi")
_PLAIN = (str, int, float, bool, type(None))


def plain(value: Any, where: str) -> Any:
    """`value` as JSON can hold it, types told apart, or an error that names the field.

    Raises:
        ConfigError: if it is not a frozen dataclass, tuple, enum, string, number, bool or None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        if not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined] # typeshed
            raise ConfigError(
                sentence(
                    what="configuration can change",
                    where=where,
                    got=type(value).__name__,
                    wanted="a frozen dataclass",
                    remedy="declare it with frozen=True",
                )
            )
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        found = {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
        return [kind, found]
    if isinstance(value, tuple):
        return ["tuple", [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]]
    if isinstance(value, Enum):
        return [f"{type(value).__module__}.{type(value).__qualname__}", value.name]
    if type(value) in _PLAIN:
        return [type(value).__name__, repr(value)]
    raise ConfigError(
        sentence(
            what="value cannot stand in a compile key",
            where=where,
            got=type(value).__name__,
            wanted="a frozen dataclass, tuple, enum, str, int, float, bool or None",
            remedy="describe it by those",
        )
    )


def compiler_versions() -> dict[str, str]:
    """Version of every package whose release can change compiled code.

    Raises:
        UnavailableError: if one is not installed.
    """
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in COMPILERS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise UnavailableError(
                sentence(
                    what=f"{package} not installed",
                    where="kernels_sm100.launch",
                    got="no such package",
                    wanted="CuTe DSL, which compiles the kernels",
                    remedy="pip install 'maskplan[sm100]'",
                )
            ) from error
    return found


def source_digest(files: Iterable[Path]) -> str:
    """SHA-256 of the names and texts of source files, in hex."""
    state = hashlib.sha256()
    for path in sorted(set(files)):
        text = path.read_bytes()
        state.update(f"{path.name} {len(text)}\n".encode())
        state.update(text)
    return state.hexdigest()


def compile_key(config: Any, *, options: tuple[str, ...] = (), sources: Iterable[Path] = ()) -> str:
    """SHA-256, in hex, of a configuration and of all that compiles it.

    Args:
        config: a frozen dataclass; every field counts, and so does its class.
        options: of the compiler.
        sources: files whose text is compiled.

    Raises:
        ConfigError: for a field that has no plain description.
        UnavailableError: if CuTe DSL is not installed.
    """
    described = {
        "config": plain(config, "config"),
        "options": list(options),
        "versions": compiler_versions(),
        "sources": source_digest(sources),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
