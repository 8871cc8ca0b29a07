"""Arrays of this machine's memory that claim to lie on a CUDA device.

Host code of a kernel checks that its tensors are on CUDA and puts their addresses into tensor maps
and parameters. The emulator reads those addresses as they are, so the arrays stay where they are
and only say otherwise.
"""

import ctypes
from typing import Any

from kernels_sm100.errors import CaptureError, sentence

CUDA = 2  # kDLCUDA
_DEVICE_AT = 8  # offset of device_type in DLTensor, after the data pointer


class _ClaimsCuda:
    """What DLPack's consumers see: the array, on device (CUDA, 0)."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        # Asked for without max_version, producers give the capsule whose layout is used here.
        capsule = self._array.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype = ctypes.c_void_p
        pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
        address = pointer_of(capsule, b"dltensor")
        assert address is not None
        ctypes.c_int32.from_address(address + _DEVICE_AT).value = CUDA
        return capsule


def is_array(value: Any) -> bool:
    """Whether `value` can be handed over by DLPack."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def as_cuda(array: Any) -> Any:
    """`array`, in place, as a TVM-FFI tensor that claims to be on CUDA device 0.

    Args:
        array: a NumPy array or a torch tensor in host memory, of any strides.

    Raises:
        CaptureError: if it is not in host memory.
    """
    import tvm_ffi

    device = array.__dlpack_device__()[0]
    if device not in (1, 3):  # kDLCPU, kDLCUDAHost
        raise CaptureError(
            sentence(
                what="cannot emulate on this array",
                where="as_cuda",
                got=f"DLPack device type {int(device)}",
                wanted="an array in host memory",
                remedy="copy it with .cpu() first",
            )
        )
    return tvm_ffi.from_dlpack(_ClaimsCuda(array))
