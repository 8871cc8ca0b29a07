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
from kernels_sm100.emulator.global_memory import GlobalMemory
from kernels_sm100.emulator.launch import Launch
from kernels_sm100.errors import CaptureError, sentence

EXPORT_NAME = "host"


def export(compiled: Any) -> bytes:
    """The object file of a function compiled by `cute.compile` with `--enable-tvm-ffi`.

    Raises:
        CaptureError: if it cannot be exported.
    """
    if not hasattr(compiled, "export_to_c"):
        raise _refuse("function that cannot be exported", "export", _typed(compiled),
                      "what cute.compile returns", "compile it, with --enable-tvm-ffi")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.o"
        compiled.export_to_c(str(path), function_name=EXPORT_NAME)
        return path.read_bytes()


class HostProgram:
    """Host code of a kernel, loaded into this process, its launches given to a handler.

    Args:
        object_file: what `export` returned.
        ptx: text of the module that has the kernels it launches.
        names: what its arguments are called in reports, no two alike; by position if left out.
        export_name: the name the object was exported under.

    Raises:
        CaptureError: if the object cannot be loaded, the PTX is no text, or names are no names.
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

        if not isinstance(ptx, str):
            raise _refuse("PTX that is no text", "HostProgram", _typed(ptx), "a str", "decode it")
        _check_names(names)
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
            CaptureError: for an array that is not in host memory, or a name that none has.
            Exception: what `on_launch` raised; and what host code says of wrong arguments.
        """
        _check_call(on_launch, unwritten)
        names = [*self._names, *(f"argument {i}" for i in range(len(self._names), len(arguments)))]
        memory = memory_of(_arrays(dict(zip(names, arguments, strict=False))), unwritten=unwritten)

        def hear(launch: HostLaunch) -> None:
            on_launch(launch.to_launch(self.ptx), memory)

        with listening(hear):
            return self._function(*(_on_cuda(argument) for argument in arguments))


def _refuse(what: str, where: str, got: str, wanted: str, remedy: str) -> CaptureError:
    return CaptureError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))


def _typed(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _check_names(names: Any) -> None:
    """Check that `names` is a sequence of names, each there once."""
    wanted = "names of its arguments, no two alike"
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise _refuse("no sequence of names", "names", repr(names), wanted, "pass a tuple of them")
    for number, name in enumerate(names):
        if not isinstance(name, str) or name in names[:number]:
            where, remedy = f"names[{number}]", "name each argument anew, in its order"
            raise _refuse("argument without a name", where, repr(name), wanted, remedy)


def _check_call(on_launch: Any, unwritten: Any) -> None:
    """Check what goes with the arguments of a call."""
    if not callable(on_launch):
        wanted = "a function of a launch and its memory"
        raise _refuse("handler that is no function", "on_launch", _typed(on_launch), wanted,
                      "pass emulate, say")  # fmt: skip
    if isinstance(unwritten, str) or not isinstance(unwritten, Collection):
        raise _refuse("no collection of names", "unwritten", repr(unwritten), "names of arrays",
                      "pass them in a list")  # fmt: skip


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
