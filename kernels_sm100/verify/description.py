"""A captured launch as SentryWard reads it: which bytes of the parameters are what.

Parameters are bytes. Those that hold a tensor map or the address of an allocation are described as
such, all others as numbers; each byte is described once.
"""

import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_sm100.emulator import GlobalMemory, Launch
from kernels_sm100.emulator.machine.tensor_map import MAP_BYTES, decode
from kernels_sm100.errors import LaunchError, TensorMapError, sentence

SCHEMA = "spverify.kernel-input/v1"
SWIZZLES = ("none", "32B", "64B", "128B")
_MAP_CONSTANT = 2  # bits 0 to 3 of a tensor map's third word
# Element types of tables. Values are given without a sign, as two's complement.
_TABLE_TYPES = {4: ("u32", np.uint32), 8: ("s64", np.uint64)}
_NUMBERS = {"f32": "<f", "f64": "<d", "u64": "<Q", "b64": "<Q", "s64": "<q", "s32": "<i"}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """A launch, and the device memory it was given.

    Attributes:
        launch: the launch.
        regions: (name, first address, contents) of each allocation, as they were at the launch.
    """

    launch: Launch
    regions: tuple[tuple[str, int, bytes], ...]

    @classmethod
    def of(cls, launch: Launch, memory: GlobalMemory) -> "Captured":
        """What a launch handler hears, copied, since arrays may be freed when it returns."""
        return cls(launch, tuple((a.name, a.address, a.data.tobytes()) for a in memory))

    def region(self, address: int) -> tuple[str, int, bytes] | None:
        """The allocation that holds the byte at `address`, if any does."""
        found = (r for r in self.regions if r[1] <= address < r[1] + len(r[2]))
        return next(found, None)


def parameter_types(ptx: str, kernel: str) -> list[str | None]:
    """PTX type of each parameter of a kernel; None for an array of bytes."""
    header = re.search(rf"\.entry\s+{re.escape(kernel)}\s*\((.*?)\)", ptx, re.DOTALL)
    if header is None:
        return []
    declared = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+[\w$]+(\[\d+\])?", header[1])
    return [None if array else kind for kind, array in declared]


def describe(
    captured: Captured,
    *,
    tables: Mapping[str, int] | None = None,
    branches: Mapping[int, bool] | None = None,
    assumptions: Collection[str] = (),
) -> Record:
    """SentryWard's input for a launch.

    Args:
        captured: the launch.
        tables: allocation name -> bytes of an element, 4 or 8: integer tables whose values it may
            read, because control flow depends on them.
        branches: PTX line of a branch that data decides -> whether it is taken.
        assumptions: names of assumptions to switch on.

    Raises:
        LaunchError: for an unknown table, or a pointer into the middle of an allocation.
    """
    tables = tables or {}
    if strangers := sorted(set(tables) - {name for name, _, _ in captured.regions}):
        raise LaunchError(
            sentence(
                what="unknown table",
                where="describe",
                got=strangers,
                wanted=f"names out of {sorted(name for name, _, _ in captured.regions)}",
                remedy="name allocations as they were captured",
            )
        )
    launch = captured.launch
    given = _Parameters(captured, tables)
    description: Record = {
        "schema": SCHEMA,
        "entry": launch.kernel,
        "launch": {
            "grid_dim": list(launch.grid),
            "block_dim": list(launch.block),
            "cluster_dim": list(launch.cluster),
            "dynamic_shared_bytes": launch.shared_bytes,
        },
        "declarations": given.pointers,
        "arguments": given.numbers,
        "tma_descriptors": given.maps,
    }
    if given.tables:
        description["shape_arrays"] = given.tables
    if branches:
        description["branch_decisions"] = [
            {"line": line, "taken": taken} for line, taken in sorted(branches.items())
        ]
    if assumptions:
        description["assumptions"] = dict.fromkeys(sorted(assumptions), True)
    return description


class _Parameters:
    """Every byte of the parameters of a launch, as one of four kinds of record."""

    def __init__(self, captured: Captured, tables: Mapping[str, int]) -> None:
        self.maps: list[Record] = []
        self.pointers: list[Record] = []
        self.tables: list[Record] = []
        self.numbers: list[Record] = []
        self._captured = captured
        launch = captured.launch
        types = parameter_types(launch.ptx, launch.kernel)
        for number, (raw, kind) in enumerate(zip(launch.parameters, types, strict=True)):
            free = [True] * len(raw)
            self._find_maps(number, raw, free)
            self._find_pointers(number, raw, free, tables)
            if kind is not None and all(free):
                value = struct.unpack(_NUMBERS.get(kind, "<I"), raw)[0]
                self.numbers.append(
                    {"parameter": number, "offset": 0, "type": kind, "value": value}
                )
            else:
                self._find_numbers(number, raw, free)

    def _find_maps(self, number: int, raw: bytes, free: list[bool]) -> None:
        for start in range(0, len(raw) - MAP_BYTES + 1, 64):
            found = self._map(raw[start : start + MAP_BYTES])
            if found is not None and all(free[start : start + MAP_BYTES]):
                free[start : start + MAP_BYTES] = [False] * MAP_BYTES
                self.maps.append({"parameter": number, "offset": start, **found})

    def _map(self, raw: bytes) -> Record | None:
        """The tensor map in `raw`; None where these bytes are none, or of memory nobody knows."""
        if raw[8] & 15 != _MAP_CONSTANT:
            return None
        try:
            found = decode(raw)
        except TensorMapError:
            return None
        region = self._captured.region(found.address)
        if region is None:
            return None
        return {
            "object": region[0],
            "element_type": found.kind,
            "rank": len(found.size),
            "base_byte_offset": found.address - region[1],
            "global_shape": list(found.size),
            "box_shape": list(found.box),
            "coordinate_strides_bytes": list(found.strides),
            "element_strides": [1] * len(found.size),
            "swizzle": SWIZZLES[found.swizzle],
            "interleave": "none",
            "oob_fill": "zero",
        }

    def _find_pointers(
        self, number: int, raw: bytes, free: list[bool], tables: Mapping[str, int]
    ) -> None:
        for start in range(0, len(raw) - 7, 8):
            address = int.from_bytes(raw[start : start + 8], "little")
            region = self._captured.region(address)
            if region is None or not all(free[start : start + 8]):
                continue
            name, base, contents = region
            if address != base:
                raise LaunchError(
                    sentence(
                        what="pointer into the middle of an allocation",
                        where=f"parameter {number}, byte {start}",
                        got=f"{name!r} + {address - base}",
                        wanted="the first byte of an allocation, as SentryWard knows no other",
                        remedy="pass each array as an allocation of its own",
                    )
                )
            free[start : start + 8] = [False] * 8
            place = {"parameter": number, "offset": start}
            self.pointers.append({**place, "type": "pointer", "space": "global", "object": name})
            if name in tables:
                kind, element = _TABLE_TYPES[tables[name]]
                values = np.frombuffer(contents, element).tolist()
                self.tables.append({**place, "element_type": kind, "shapes": [values]})

    def _find_numbers(self, number: int, raw: bytes, free: list[bool]) -> None:
        start = 0
        while start < len(raw):
            size = 4 if start % 4 == 0 and all(free[start : start + 4]) else 1
            size = min(size, len(raw) - start) if len(raw) - start >= 4 else 1
            if free[start]:
                value = int.from_bytes(raw[start : start + size], "little")
                self.numbers.append(
                    {"parameter": number, "offset": start, "type": f"u{8 * size}", "value": value}
                )
            start += size
