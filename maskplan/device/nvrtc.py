"""CUDA C++ of this package, compiled when first needed by NVRTC and started by the driver.

Both come with CUDA builds of torch, as the package cuda-bindings. `available` says whether they are
there; where they are not, Triton does the same work.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskplan.errors import UnsupportedError, sentence


@cache
def available() -> bool:
    """Whether cuda-bindings is installed and can load NVRTC."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return False
    from cuda.bindings import nvrtc

    try:
        return bool(nvrtc.nvrtcVersion()[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS)
    except (RuntimeError, OSError):  # the wheel is there, the library is not
        return False


def runs(tensor: Tensor) -> bool:
    """Whether kernels in CUDA C++ work on `tensor`: on a GPU, with NVRTC."""
    return tensor.is_cuda and available()


def place_of(tensor: Tensor) -> tuple[int, int]:
    """(number, current stream) of the GPU that holds a tensor."""
    device = tensor.device.index
    assert device is not None
    return device, torch.cuda.current_stream(device).cuda_stream


def _checked(result: tuple[Any, ...], doing: str) -> Any:
    """The values of a call, whose first is its error code."""
    code, *values = result
    if int(code) != 0:
        raise UnsupportedError(
            sentence(
                what="CUDA call failed",
                where=doing,
                got=str(code),
                wanted="success",
                remedy="report this with the driver's version",
            )
        )
    return values[0] if len(values) == 1 else values


def _compiled(source: Path, options: Sequence[str]) -> bytes:
    """A cubin of `source`.

    Raises:
        UnsupportedError: with the compiler's log.
    """
    from cuda.bindings import nvrtc

    text, name = source.read_bytes(), source.name.encode()
    program = _checked(nvrtc.nvrtcCreateProgram(text, name, 0, [], []), f"compiling {source.name}")
    given = [option.encode() for option in options]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
    if int(code) != 0:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program), "reading a log")
        _checked(nvrtc.nvrtcGetProgramLog(program, log), "reading a log")
        raise UnsupportedError(
            sentence(
                what="CUDA C++ does not compile",
                where=source.name,
                got=log.decode(errors="replace").strip("\x00 \n"),
                wanted="a cubin",
                remedy="report this with the version of NVRTC",
            )
        )
    cubin: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program), "reading a cubin")
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "reading a cubin")
    return cubin


class CudaKernel:
    """One compiled kernel of one device.

    Args:
        source: the file.
        name: of the kernel, extern "C".
        defines: macros it is compiled for.
        device: which GPU.
        shared: bytes of dynamic shared memory that launches may ask for.
    """

    def __init__(
        self, source: Path, name: str, defines: Sequence[str], device: int, shared: int
    ) -> None:
        from cuda.bindings import driver

        major, minor = torch.cuda.get_device_capability(device)
        options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17"]
        cubin = _compiled(source, [*options, *(f"-D{define}" for define in defines)])
        self._library = _checked(
            driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), f"loading {name}"
        )
        self._kernel = _checked(
            driver.cuLibraryGetKernel(self._library, name.encode()), f"finding {name}"
        )
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(
            driver.cuKernelSetAttribute(attribute, shared, self._kernel, driver.CUdevice(device)),
            f"room for {name}",
        )
        self._function = driver.CUfunction(int(self._kernel))
        self._launch = driver.cuLaunchKernel

    def __call__(
        self, grid: int, block: int, shared: int, stream: int, arguments: Sequence[ctypes.Structure]
    ) -> None:
        """Start it on `grid` CTAs of `block` threads."""
        if not grid:
            return
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        _checked(
            self._launch(
                self._function, grid, 1, 1, block, 1, 1, shared, stream,
                ctypes.addressof(pointers), 0,
            ),
            "a launch",
        )  # fmt: skip


def shared_memory(device: int) -> int:
    """Bytes of shared memory a CTA may have."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 << 10))
