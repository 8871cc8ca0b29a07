"""Runs the shipped host code of a compiled kernel, and hands over what it launches.

Nothing of a launch is made up here: grid, shared memory, parameters and the tensor maps in them are
those that the same host code would hand to a GPU.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels_sm100.emulator.capture_object import load_object, undefined_symbols
from kernels_sm100.emulator.capture_runtime import HostLaunch, listening, runtime_addresses
from kernels_sm100.emulator.capture_tensor import as_cuda, is_array

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
        name: the name it was exported under.

    Raises:
        CaptureError: if the object cannot be loaded.
    """

    def __init__(self, object_file: bytes, name: str = EXPORT_NAME) -> None:
        import tvm_ffi

        served = runtime_addresses(undefined_symbols(object_file))
        address, engine = load_object(object_file, f"__tvm_ffi_{name}", served)
        self._function: Any = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=engine)

    def __call__(self, *arguments: Any, on_launch: Callable[[HostLaunch], None]) -> Any:
        """Call the host code.

        Args:
            *arguments: as on a GPU; arrays of host memory (NumPy, torch), also inside tuples,
                claim to be on CUDA.
            on_launch: called with each launch, while its parameters are valid.

        Raises:
            Exception: what `on_launch` raised; and what host code says of wrong arguments.
        """
        with listening(on_launch):
            return self._function(*(_on_cuda(argument) for argument in arguments))


def _on_cuda(value: Any) -> Any:
    if is_array(value):
        return as_cuda(value)
    if isinstance(value, tuple):
        return tuple(_on_cuda(item) for item in value)
    return value


def arrays_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays in `arguments` by name; arrays inside a tuple are `name.0`, `name.1` and so on."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if is_array(value):
            found[name] = value
        elif isinstance(value, tuple):
            found |= arrays_of({f"{name}.{i}": item for i, item in enumerate(value)})
    return found
