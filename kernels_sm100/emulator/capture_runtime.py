"""The few functions of the CUDA runtime that host code of a kernel calls, served from Python.

A launch reaches `HostLaunch` with its dimensions and the addresses of its arguments. Nothing here
starts anything: whoever is listening decides what a launch means.

NOTE [Errors cross C as codes]: a Python exception cannot travel through compiled host code. It is
kept, the runtime function returns an error code as a failing device would, host code stops at it,
and the exception is raised when the call has come back.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from kernels_sm100.emulator.capture_launch import HostLaunch, LaunchConfig, read_launch
from kernels_sm100.errors import CaptureError, sentence

_LAUNCH_FAILED = 719  # cudaErrorLaunchFailure

# cudaDeviceAttr -> its value on the device that is emulated (a B200).
DEVICE_ATTRIBUTES = {
    1: 1024,  # maxThreadsPerBlock
    2: 1024,  # maxBlockDimX
    3: 1024,  # maxBlockDimY
    4: 64,  # maxBlockDimZ
    5: 2**31 - 1,  # maxGridDimX
    6: 65535,  # maxGridDimY
    7: 65535,  # maxGridDimZ
    8: 48 << 10,  # maxSharedMemoryPerBlock
    10: 32,  # warpSize
    16: 148,  # multiProcessorCount
    75: 10,  # computeCapabilityMajor
    76: 0,  # computeCapabilityMinor
    97: 232448,  # maxSharedMemoryPerBlockOptin
}

_Int = ctypes.c_int
_Unsigned = ctypes.c_uint
_Pointer = ctypes.c_void_p
_String = ctypes.c_char_p


class _Listener(threading.local):
    """Who hears of launches in this thread, and what went wrong."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[HostLaunch], None]] = []
        self.error: BaseException | None = None


_listener = _Listener()
_kernel_names: dict[int, str] = {}  # handle -> name; handles are given out once a process


@contextmanager
def listening(handler: Callable[[HostLaunch], None]) -> Iterator[None]:
    """Gives `handler` every launch of host code called inside the block, by this thread.

    Raises:
        Exception: what the handler raised, once host code has come back.
    """
    _listener.handlers.append(handler)
    try:
        yield
    except Exception as failure:
        if _listener.error is not None:
            raise _listener.error from failure
        raise
    else:
        if _listener.error is not None:
            raise _listener.error
    finally:
        _listener.handlers.pop()
        _listener.error = None


def _guarded(function: Callable[..., int]) -> Callable[..., int]:
    """`function`, with exceptions kept and an error code in their place."""

    def call(*arguments: Any) -> int:
        try:
            return function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again by `listening`
            if _listener.error is None:
                _listener.error = error
            return _LAUNCH_FAILED

    return call


def _device_attribute(value: Any, attribute: int, device: int) -> int:
    del device
    if attribute not in DEVICE_ATTRIBUTES:
        raise CaptureError(
            sentence(
                what="device attribute not known",
                where="cudaDeviceGetAttribute",
                got=attribute,
                wanted=f"one of {sorted(DEVICE_ATTRIBUTES)}",
                remedy="add its value on a B200 to DEVICE_ATTRIBUTES",
            )
        )
    value[0] = DEVICE_ATTRIBUTES[attribute]
    return 0


def _get_kernel(kernel: Any, library: int, name: bytes) -> int:
    del library
    handle = 0x1000 + len(_kernel_names)
    _kernel_names[handle] = name.decode()
    kernel[0] = handle
    return 0


def _set_value(target: Any, value: int | None) -> int:
    target[0] = value
    return 0


def _initialise_once(slot: Any, initialise: int, load: int, report: int) -> int:
    """cuda_dialect_init_library_once: fill the slot on the first call."""
    del report
    if slot[0]:
        return 0
    library = _Pointer(0)
    code = ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer))(initialise)(ctypes.byref(library))
    if code == 0 and load:
        load_on_device = ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer), _Int)(load)
        code = load_on_device(ctypes.byref(library), 0)
    if code == 0:
        slot[0] = library.value
    return int(code)


def _launch(config_pointer: Any, kernel: int, arguments: int) -> int:
    if not _listener.handlers:
        raise CaptureError(
            sentence(
                what="launch outside a capture",
                where="cudaLaunchKernelExC",
                got=_kernel_names[kernel],
                wanted="a call inside `listening`",
                remedy="call host code through HostProgram",
            )
        )
    _listener.handlers[-1](read_launch(config_pointer[0], _kernel_names[kernel], arguments))
    return 0


def _raise_in_host_code(text: str) -> int:
    """Make the call of host code come back as an exception."""
    _tvm_ffi_library().TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", text.encode())
    return -1


def _raise_cuda_error(set_error: int, code: int) -> int:
    """CuteDSLRT_TVMFFISetRaisedCudaError."""
    del set_error
    return _raise_in_host_code(f"the emulated CUDA runtime returned error {code}")


def _raise_launch_error(set_error: int, *sizes: int) -> int:
    """CuteDSLRT_TVMFFISetRaisedCudaLaunchError: host code found limits exceeded."""
    del set_error
    grid, block, shared_bytes = sizes[:3], sizes[3:6], sizes[7]
    return _raise_in_host_code(
        f"a launch of grid {grid}, block {block} and {shared_bytes} bytes of shared memory"
        " exceeds the limits of the device"
    )


@cache
def _tvm_ffi_library() -> ctypes.CDLL:
    import tvm_ffi

    return ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())


_IntOut = ctypes.POINTER(_Int)
_PointerOut = ctypes.POINTER(_Pointer)
_ok: Callable[..., int] = lambda *_: 0

# Symbol -> (function, C types of its arguments); those that return nothing may return an int too.
_FUNCTIONS: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "_cudaGetDevice": (lambda device: _set_value(device, 0), (_IntOut,)),
    "_cudaSetDevice": (_ok, (_Int,)),
    "_cudaGetDeviceCount": (lambda count: _set_value(count, 1), (_IntOut,)),
    "_cudaDeviceGetAttribute": (_device_attribute, (_IntOut, _Int, _Int)),
    "_cuKernelGetAttribute": (
        lambda value, *_: _set_value(value, 0),
        (_IntOut, _Int, _Pointer, _Int),
    ),
    "_cudaFuncSetAttribute": (_ok, (_Pointer, _Int, _Int)),
    "_cudaKernelSetAttributeForDevice": (_ok, (_Pointer, _Int, _Int, _Int)),
    "_cudaLibraryLoadData": (
        lambda library, code, *_: _set_value(library, code),
        (_PointerOut, _Pointer, _Pointer, _Pointer, _Unsigned, _Pointer, _Pointer, _Unsigned),
    ),
    "_cudaLibraryGetKernel": (_get_kernel, (_PointerOut, _Pointer, _String)),
    "_cudaLibraryUnload": (_ok, (_Pointer,)),
    "_cudaGetLastError": (_ok, ()),
    "_cudaLaunchKernelEx": (_launch, (ctypes.POINTER(LaunchConfig), _Pointer, _Pointer)),
    "cuda_dialect_init_library_once": (
        _initialise_once,
        (_PointerOut, _Pointer, _Pointer, _Pointer),
    ),
    "cuda_dialect_unload_library_once": (_ok, (_Pointer,)),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (_raise_cuda_error, (_Pointer, _Int)),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError": (_raise_launch_error, (_Pointer, *[_Int] * 8)),
}


@cache
def _callbacks() -> dict[str, Any]:
    """Symbol -> C function; made once, since loaded code keeps the addresses."""
    return {
        name: ctypes.CFUNCTYPE(_Int, *types)(_guarded(function))
        for name, (function, types) in _FUNCTIONS.items()
    }


def runtime_addresses(symbols: set[str]) -> dict[str, int]:
    """Symbol -> address, for those of `symbols` that are served here or by TVM-FFI."""
    found = {}
    for name in symbols:
        if name in _FUNCTIONS:
            function: Any = _callbacks()[name]
        elif name.startswith("TVMFFI") and hasattr(_tvm_ffi_library(), name):
            function = getattr(_tvm_ffi_library(), name)
        else:
            continue
        address = ctypes.cast(function, _Pointer).value
        assert address is not None
        found[name] = address
    return found
