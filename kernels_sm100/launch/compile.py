"""Compiles a kernel for a configuration, or finds it compiled.

def scale(config):                        # imports cutlass, so called only to compile
    from kernels_sm100 import scale_kernel
    return scale_kernel.Scale(config), {"x": fake_tensor, "stream": fake_stream}

compiled = compile_kernel(scale, ScaleConfig(head_dim=64))
compiled.on_device(x)                     # on an SM100
compiled.host_program(x, on_launch=...)   # in the emulator
"""

import inspect
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernels_sm100.emulator.capture import EXPORT_NAME, HostProgram, export
from kernels_sm100.errors import UnavailableError, sentence
from kernels_sm100.launch.cache import CacheEntry, CompileCache
from kernels_sm100.launch.key import compile_key

Build = Callable[[Any], tuple[Any, Mapping[str, Any]]]

# Capability of a device -> the architectures whose code it runs.
_RUNS = {(10, 0): ("sm_100a",), (10, 3): ("sm_103a",), (9, 0): ("sm_90a",)}


@dataclass(frozen=True, eq=False)
class Compiled:
    """A kernel and its host code, compiled.

    Attributes:
        key: of the configuration, see `compile_key`.
        arch: what the device code is for.
        entry: the code itself.
        cached: whether it came from the cache.
    """

    key: str
    arch: str
    entry: CacheEntry
    cached: bool

    @property
    def ptx(self) -> str:
        """Text of the device code, with line information."""
        return self.entry.ptx

    @cached_property
    def host_program(self) -> HostProgram:
        """The host code, loaded for capture: launches go to a handler."""
        return HostProgram(self.entry.object_file, self.entry.ptx, self.entry.names)

    @cached_property
    def on_device(self) -> Any:
        """The host code, loaded for a GPU: a function that launches on torch's current stream.

        Raises:
            UnavailableError: without a GPU, or on one that does not run this code.
        """
        check_device(self.arch)
        return _load_for_device(self.entry.object_file)


def check_device(arch: str) -> None:
    """That the current CUDA device runs code for `arch`.

    Raises:
        UnavailableError: if there is no device, or one of another architecture.
    """
    import torch

    if not torch.cuda.is_available():
        raise UnavailableError(
            sentence(
                what="no CUDA device",
                where="kernels_sm100.launch",
                got="torch.cuda.is_available() == False",
                wanted=f"a GPU that runs {arch}",
                remedy="use the backend sm100-emulated for small shapes, or cpu",
            )
        )
    capability = torch.cuda.get_device_capability()
    if arch not in _RUNS.get(capability, ()):
        wanted = [f"{major}.{minor}" for (major, minor), runs in _RUNS.items() if arch in runs]
        raise UnavailableError(
            sentence(
                what="this GPU does not run the kernel",
                where="kernels_sm100.launch",
                got=f"{torch.cuda.get_device_name()}, compute capability "
                f"{capability[0]}.{capability[1]}",
                wanted=f"compute capability {' or '.join(wanted)} for {arch}",
                remedy="compile for the architecture of the GPU, or use another backend",
            )
        )


def _load_for_device(object_file: bytes) -> Any:
    """A TVM-FFI function over CuTe DSL's own runtime."""
    import tvm_ffi
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine
    from cutlass.cute.runtime import find_runtime_libraries

    libraries = [str(path) for path in find_runtime_libraries(enable_tvm_ffi=True)]
    engine = BinaryExecutionEngine(object_file, libraries, True)
    address = engine.lookup(f"__tvm_ffi_{EXPORT_NAME}")
    return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=engine)


def compile_kernel(
    build: Build,
    config: Any,
    *,
    arch: str = "sm_100a",
    options: tuple[str, ...] = (),
    sources: Iterable[Path] = (),
    cache: CompileCache | None = None,
) -> Compiled:
    """The kernel that `build` describes for `config`, from the cache where it is there.

    Args:
        build: config -> (jit function, argument name -> fake argument, a stream that the
            environment gives last); called only to compile, so it may import cutlass. The file it
            is written in belongs to the key.
        config: a frozen dataclass; every field belongs to the key.
        arch: what to compile for.
        options: more options of the compiler, as `cute.compile` takes them.
        sources: further files whose text is compiled.
        cache: where compiled code is kept; the user's cache directory if None.

    Raises:
        UnavailableError: if CuTe DSL is not installed.
        ConfigError: for a configuration that cannot be a key.
    """
    options = ("--enable-tvm-ffi", f"--gpu-arch {arch}", "--generate-line-info", *options)
    files = {Path(inspect.getfile(build)), *sources}
    # Several kernels may share a configuration and their sources, so the builder is named too.
    named = (*options, f"build {build.__qualname__}")
    key = compile_key(config, options=named, sources=files)
    cache = CompileCache() if cache is None else cache
    if (found := cache.get(key)) is not None:
        return Compiled(key=key, arch=arch, entry=found, cached=True)
    made = _compile(build, config, options)
    cache.put(key, made)
    return Compiled(key=key, arch=arch, entry=made, cached=False)


def _compile(build: Build, config: Any, options: tuple[str, ...]) -> CacheEntry:
    from cutlass import cute

    function, arguments = build(config)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kept = (*options, "--keep-ptx", "--keep-cubin", f"--dump-dir {folder}")
        compiled = cute.compile(function, *arguments.values(), options=" ".join(kept))
        return CacheEntry(
            object_file=export(compiled),
            ptx=compiled.artifacts.PTX,
            cubin=compiled.artifacts.CUBIN,
            names=tuple(arguments),
            seconds=time.perf_counter() - started,
        )
