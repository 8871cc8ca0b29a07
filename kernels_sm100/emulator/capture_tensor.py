"""Arrays of this machine's memory that claim to lie on a CUDA device.

Host code of a kernel checks that its tensors are on CUDA and puts their addresses into tensor maps
and parameters. The emulator reads those addresses as they are, so the arrays stay where they are
and only say otherwise.
"""

import ctypes
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from kernels_sm100.emulator.global_memory import GlobalMemory
from kernels_sm100.errors import CaptureError, sentence

CUDA = 2  # kDLCUDA
_HOST = (1, 3)  # kDLCPU, kDLCUDAHost


class _DLTensor(ctypes.Structure):
    """DLTensor, the first field of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _capsule(array: Any) -> tuple[Any, _DLTensor]:
    """(what keeps it alive, DLTensor of `array`); a request without version gives this layout."""
    if not is_array(array):
        raise _refuse(f"a value of type {type(array).__name__}", "pass a NumPy array or a tensor")
    try:
        device = array.__dlpack_device__()[0]
        if device not in _HOST:
            raise _refuse(f"DLPack device type {int(device)}", "copy it with .cpu() first")
        capsule = array.__dlpack__()
    except (BufferError, TypeError, ValueError) as error:
        got = f"{type(array).__name__} that DLPack refuses ({str(error).rstrip('.')})"
        raise _refuse(got, "pass a writable strided one of numbers, detached") from error
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return capsule, _DLTensor.from_address(pointer_of(capsule, b"dltensor"))


def _refuse(got: str, remedy: str) -> CaptureError:
    return CaptureError(
        sentence(
            what="cannot emulate on this array",
            where="as_cuda",
            got=got,
            wanted="an array in host memory",
            remedy=remedy,
        )
    )


class _ClaimsCuda:
    """What DLPack's consumers see: the array, on device (CUDA, 0)."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        capsule, tensor = _capsule(self._array)
        tensor.device_type = CUDA
        return capsule


def is_array(value: Any) -> bool:
    """Whether `value` can be handed over by DLPack."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def as_cuda(array: Any) -> Any:
    """`array`, in place, as a TVM-FFI tensor that claims to be on CUDA device 0.

    Args:
        array: a NumPy array or a torch tensor in host memory, of any strides.

    Raises:
        CaptureError: if it is not in host memory, read-only, or what DLPack does not hand over.
    """
    import tvm_ffi

    return tvm_ffi.from_dlpack(_ClaimsCuda(array))


def span(array: Any) -> tuple[int, int]:
    """[first, last) byte addresses that elements of `array` lie in; equal if it has none."""
    _keep, tensor = _capsule(array)
    if tensor.rank and 0 in tensor.shape[: tensor.rank]:
        return (0, 0)
    size = -(-tensor.type_bits * tensor.type_lanes // 8)
    low = high = 0
    contiguous = 1
    for axis in reversed(range(tensor.rank)):
        stride = tensor.strides[axis] if tensor.strides else contiguous
        contiguous *= tensor.shape[axis]
        reach = (tensor.shape[axis] - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    start = (tensor.data or 0) + tensor.byte_offset
    return start + low * size, start + (high + 1) * size


def memory_of(arrays: Mapping[str, Any], *, unwritten: Collection[str] = ()) -> GlobalMemory:
    """Device memory that holds these arrays and nothing else; the bytes are shared, not copied.

    Arrays that overlap (one tensor passed as K and as V) are one allocation. Gaps inside a strided
    array belong to it: fill them with what a kernel must not see.

    Args:
        arrays: name -> array of host memory.
        unwritten: names whose bytes a kernel has to write before it reads them.

    Raises:
        CaptureError: for a name in `unwritten` that no array has, what is no array, or an array not
            in host memory.
    """
    if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
        raise CaptureError(
            sentence(
                what="arrays without names",
                where="memory_of",
                got=f"{list(arrays)!r:.60}"
                if isinstance(arrays, Mapping)
                else type(arrays).__name__,
                wanted="a mapping of names to arrays",
                remedy="name each array",
            )
        )
    if strangers := sorted(set(unwritten) - set(arrays)):
        raise CaptureError(
            sentence(
                what="unknown array",
                where="memory_of",
                got=f"unwritten={strangers}",
                wanted=f"names out of {sorted(arrays)}",
                remedy="name arrays as they are passed",
            )
        )
    merged: list[tuple[int, int, list[str]]] = []
    for low, high, name in sorted((*span(array), name) for name, array in arrays.items()):
        if low == high:
            continue
        if merged and low < merged[-1][1]:
            start, end, names = merged[-1]
            merged[-1] = (start, max(end, high), [*names, name])
        else:
            merged.append((low, high, [name]))
    memory = GlobalMemory()
    for low, high, names in merged:
        raw = memoryview((ctypes.c_uint8 * (high - low)).from_address(low)).cast("B")
        data = np.frombuffer(raw, np.uint8)
        memory.add("+".join(names), data, written=not set(names) & set(unwritten))
    return memory
