"""A captured launch as SentryWard reads it, and its verdict.

SentryWard proves synchronisation, race freedom and lifetimes of one launch shape over every
schedule. It has no values, so integer tables that decide control flow are given to it; where data
decides (the rescale branch) it is told which way.
"""

import json
import re
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernels_sm100.emulator.machine.tensor_map import MAP_BYTES, decode
from kernels_sm100.errors import TensorMapError

SWIZZLES = ("none", "32B", "64B", "128B")
# Values of a table are given without a sign: two's complement.
UNSIGNED = {np.dtype(np.int32): ("u32", np.uint32), np.dtype(np.int64): ("s64", np.uint64)}
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Captured:
    """A launch and the memory it was given; the bytes of each allocation as they were."""

    launch: object
    memory: object
    contents: dict[str, bytes]

    @classmethod
    def of(cls, launch, memory):
        """For a launch handler: arrays may be freed once it returns."""
        return cls(launch, memory, {owner.name: owner.data.tobytes() for owner in memory})


def _parameter_types(ptx, kernel):
    """PTX type of each parameter; None for bytes."""
    header = re.search(rf"\.entry\s+{re.escape(kernel)}\s*\((.*?)\)", ptx, re.DOTALL).group(1)
    found = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+\w+(\[\d+\])?", header)
    return [None if array else kind for kind, array in found]


def _tensor_map(raw, memory):
    """The tensor map in `raw` as SentryWard words it; None if these bytes are none."""
    try:
        found = decode(raw)
    except TensorMapError:
        return None
    owner = memory.lookup(found.address)
    if owner is None or int.from_bytes(raw[8:12], "little") & 15 != 2:
        return None
    rank = len(found.size)
    return {
        "object": owner.name,
        "element_type": found.kind,
        "rank": rank,
        "base_byte_offset": found.address - owner.address,
        "global_shape": found.size,
        "box_shape": found.box,
        "coordinate_strides_bytes": found.strides,
        "element_strides": [1] * rank,
        "swizzle": SWIZZLES[found.swizzle],
        "interleave": "none",
        "oob_fill": "zero",
    }


class _Parameters:
    """What the bytes of the parameters mean: maps, pointers, tables, numbers."""

    def __init__(self, captured, tables):
        self.memory, self.contents, self.tables = captured.memory, captured.contents, tables
        self.maps, self.pointers, self.shapes, self.numbers = [], [], [], []
        types = _parameter_types(captured.launch.ptx, captured.launch.kernel)
        for index, raw in enumerate(captured.launch.parameters):
            self.free = [True] * len(raw)
            self._maps(index, raw)
            self._pointers(index, raw)
            self._numbers(index, raw, types[index])

    def _take(self, start, size):
        if not all(self.free[start : start + size]):
            return False
        self.free[start : start + size] = [False] * size
        return True

    def _maps(self, index, raw):
        for start in range(0, len(raw) - MAP_BYTES + 1, 64):
            found = _tensor_map(raw[start : start + MAP_BYTES], self.memory)
            if found and self._take(start, MAP_BYTES):
                self.maps.append({"parameter": index, "offset": start, **found})

    def _pointers(self, index, raw):
        for start in range(0, len(raw) - 7, 8):
            owner = self.memory.lookup(int.from_bytes(raw[start : start + 8], "little"))
            if owner is None or not self._take(start, 8):
                continue
            place = {"parameter": index, "offset": start}
            self.pointers.append(
                {**place, "type": "pointer", "space": "global", "object": owner.name}
            )
            if owner.name in self.tables:
                dtype = self.tables[owner.name]
                kind, unsigned = UNSIGNED[np.dtype(dtype)]
                values = np.frombuffer(self.contents[owner.name], unsigned).tolist()
                self.shapes.append({**place, "element_type": kind, "shapes": [values]})

    def _numbers(self, index, raw, kind):
        if kind is not None and all(self.free):
            form = {"f32": "<f", "u64": "<Q"}.get(kind, "<I")
            value = struct.unpack(form, raw)[0]
            self.numbers.append({"parameter": index, "offset": 0, "type": kind, "value": value})
            return
        for start in range(len(raw)):
            size = 4 if start % 4 == 0 and start + 4 <= len(raw) else 1
            if self.free[start] and self._take(start, size):
                value = int.from_bytes(raw[start : start + size], "little")
                self.numbers.append(
                    {"parameter": index, "offset": start, "type": f"u{8 * size}", "value": value}
                )


def data_branches(ptx):
    """Lines (from 1) of the branches that a warp vote decides."""
    lines = ptx.split("\n")
    votes = [number for number, line in enumerate(lines) if "vote.sync" in line]
    return [
        next(n + 1 for n in range(vote, len(lines)) if re.search(r"@!?%p\d+\s+bra", lines[n]))
        for vote in votes
    ]


def verdict(folder: Path, captured: Captured, tables, *, ptx=None, taken=None):
    """SentryWard's answer on a launch, as it comes.

    Args:
        folder: where its input is written.
        captured: the launch.
        tables: name -> dtype of the integer tables whose values it may see.
        ptx: other text of the kernel than the one launched.
        taken: which way data branches go; None if there are none.
    """
    launch = captured.launch
    ptx = launch.ptx if ptx is None else ptx
    found = _Parameters(captured, tables)
    given = {
        "schema": "spverify.kernel-input/v1",
        "entry": launch.kernel,
        "launch": {
            "grid_dim": launch.grid,
            "block_dim": launch.block,
            "cluster_dim": launch.cluster,
            "dynamic_shared_bytes": launch.shared_bytes,
        },
        "declarations": found.pointers,
        "arguments": found.numbers,
        "tma_descriptors": found.maps,
        "shape_arrays": found.shapes,
    }
    if taken is not None:
        given["branch_decisions"] = [{"line": n, "taken": taken} for n in data_branches(ptx)]
    # The default of PTX, which SentryWard does not know by its name.
    (folder / "kernel.ptx").write_text(ptx.replace(".collector::a::discard", ""))
    (folder / "input.json").write_text(json.dumps(given))
    program = Path(sys.executable).with_name("sentryward")
    done = subprocess.run(
        [
            program,
            folder / "kernel.ptx",
            "--input",
            folder / "input.json",
            "--timeout",
            str(TIMEOUT_SECONDS),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)
