"""`maskplan.device.nvrtc.CudaKernel` for a GPU that is played on the CPU: see `host_gpu.h`."""

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

HEADER = Path(__file__).with_name("host_gpu.h")
_BUILT = Path(tempfile.gettempdir()) / "maskplan_host_gpu"
_DYNAMIC = "extern __shared__"
_LAUNCH = """
extern "C" void launch(unsigned grid, unsigned block, const %(given)s* given) {
  host::launch(grid, block, [given] { %(name)s(%(call)s); });
}
"""


@cache
def _library(source: Path, name: str, given: tuple[str, ...], defines: tuple[str, ...]) -> Path:
    """A shared library with `launch` for one kernel."""
    text = source.read_text()
    shared = [line for line in text.splitlines() if _DYNAMIC in line]
    text = text.replace(_DYNAMIC, "extern").replace("__shared__", "static")
    for line in shared:  # one array for all CTAs, as they take turns
        declared = line.split(_DYNAMIC)[1].split("[")[0].strip()
        text = (
            f"typedef {declared.split()[0]} Shared;\nextern Shared {declared.split()[1]}[];\n"
            + text
        )
        text += f"\nShared {declared.split()[1]}[1 << 18];\n"
    call = ", ".join(f"given->part{i}" for i in range(len(given)))
    parts = "".join(f"{kind} part{i}; " for i, kind in enumerate(given))
    text += f"struct Given {{ {parts}}};" + _LAUNCH % {"given": "Given", "name": name, "call": call}
    text = f'#include "{HEADER}"\n{text}'
    _BUILT.mkdir(exist_ok=True)
    key = hashlib.sha256((text + HEADER.read_text() + repr(defines)).encode()).hexdigest()[:20]
    built = _BUILT / f"{key}.so"
    if not built.exists():
        written = built.with_suffix(".cc")
        written.write_text(text)
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w"]
        command += [f"-D{define}" for define in defines]
        done = subprocess.run(
            [*command, "-o", built.with_suffix(".part"), written],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        built.with_suffix(".part").rename(built)
    return built


class HostKernel:
    """Takes the place of `CudaKernel`."""

    def __init__(
        self, source: Path, name: str, defines: Sequence[str], device: int, shared: int
    ) -> None:
        self.source, self.name, self.defines = source, name, tuple(defines)
        assert device == 0
        assert shared <= 1 << 20

    def __call__(
        self, grid: int, block: int, shared: int, stream: int, arguments: Sequence[ctypes.Structure]
    ) -> None:
        """Run it."""
        assert shared <= 1 << 20
        assert block % 32 == 0
        assert stream == 0
        if not grid:
            return
        kinds = {"GivenLists": "Lists", "FoundBits": "Found"}
        given = tuple(kinds.get(type(part).__name__, type(part).__name__) for part in arguments)
        library = ctypes.CDLL(str(_library(self.source, self.name, given, self.defines)))
        room = b"".join(bytes(part) + bytes(-len(bytes(part)) % 8) for part in arguments)
        library.launch(grid, block, ctypes.create_string_buffer(room, len(room)))
