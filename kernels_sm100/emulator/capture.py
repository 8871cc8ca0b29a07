"""Runs the shipped host code of a compiled kernel, and hands over what it launches.

Nothing of a launch is made up here: grid, shared memory, parameters and the tensor maps in them are
those that the same host code would hand to a GPU.

    program = HostProgram(export(compiled), compiled.artifacts.PTX)
    program(q, k, out, on_launch=lambda launch, memory: emulate(launch, memory))
"""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels_sm100.emulator.capture_launch import HostLaunch
from kernels_sm100.emulator.capture_object import load_object, undefined_symbols
from kernels_sm100.emulator.capture_runtime import listening, runtime_addresses
from kernels_sm100.emulator.capture_tensor import as_cuda, is_array, memory_of
from kernels_sm100.emulator.launch import GlobalMemory, Launch

EXPORT_NAME = "host"


def export(compiled: Any) -> bytes:
    """The object file of a function compiled by `cute.compile` with `--enable-tvm-ffi`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.o"
        compiled.export_to_c(str(path), function_name=EXPORT_NAME)
        return path.read_bytes()


class HostProgram:
    """Host code of a kernel, loaded into this process, its launches given to a handler.

    Args:
        object_file: what `export` returned.
        ptx: text of the module that has the kernels it launches.
        names: what its arguments are called in reports; by position if left out.
        export_name: the name the object was exported under.

    Raises:
        CaptureError: if the object cannot be loaded.
    """

    def __init__(
        self,
        object_file: bytes,
        ptx: str,
        names: Sequence[str] = (),
        *,
        export_name: str = EXPORT_NAME,
    ) -> None:
        import tvm_ffi

        served = runtime_addresses(undefined_symbols(object_file))
        address, engine = load_object(object_file, f"__tvm_ffi_{export_name}", served)
        self._function: Any = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=engine)
        self._names = tuple(names)
        self.ptx = ptx

    def __call__(
        self,
        *arguments: Any,
        on_launch: Callable[[Launch, GlobalMemory], Any],
        unwritten: Collection[str] = (),
    ) -> Any:
        """Call the host code.

        Args:
            *arguments: as on a GPU; arrays of host memory (NumPy, torch), also inside tuples,
                claim to be on CUDA, and are all the memory that a kernel may touch.
            on_launch: called with each launch, before host code goes on.
            unwritten: names of arrays whose bytes count as never written.

        Raises:
            Exception: what `on_launch` raised; and what host code says of wrong arguments.
        """
        names = [*self._names, *(f"argument {i}" for i in range(len(self._names), len(arguments)))]
        memory = memory_of(_arrays(dict(zip(names, arguments, strict=False))), unwritten=unwritten)

        def hear(launch: HostLaunch) -> None:
            on_launch(launch.to_launch(self.ptx), memory)

        with listening(hear):
            return self._function(*(_on_cuda(argument) for argument in arguments))


def _on_cuda(value: Any) -> Any:
    if is_array(value):
        return as_cuda(value)
    if isinstance(value, tuple):
        return tuple(_on_cuda(item) for item in value)
    return value


def _arrays(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays in `arguments` by name; arrays inside a tuple are `name.0`, `name.1` and so on."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if is_array(value):
            found[name] = value
        elif isinstance(value, tuple):
            found |= _arrays({f"{name}.{i}": item for i, item in enumerate(value)})
    return found
