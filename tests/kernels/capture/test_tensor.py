"""Arrays that claim CUDA: addresses, strides, extents, and what is refused."""

import numpy as np
import pytest
import torch

from kernels_sm100.emulator.capture_tensor import as_cuda, is_array, memory_of, span
from kernels_sm100.emulator.global_memory import GlobalMemory
from kernels_sm100.errors import CaptureError, LaunchError


def arrays():
    base = torch.arange(240, dtype=torch.float32).view(4, 5, 12)
    yield base
    yield base[1:, ::2, 3:7]
    yield base.transpose(0, 2)
    yield base[:1].expand(4, 5, 12)
    yield torch.zeros((), dtype=torch.int64)
    yield torch.zeros(6, 4, dtype=torch.bfloat16)[::3]
    yield torch.zeros(3, dtype=torch.float8_e4m3fn)
    yield np.arange(24, dtype=np.int16).reshape(4, 6)[:, ::-2]
    yield np.zeros((3, 4), np.float64).T


def addresses(array) -> list[int]:
    """Where each element lies, one by one."""
    found = []
    for index in np.ndindex(tuple(array.shape)):
        element = array[tuple(slice(i, i + 1) for i in index)]
        found.append(element.ctypes.data if isinstance(element, np.ndarray) else element.data_ptr())
    return found


@pytest.mark.parametrize("array", [*arrays()], ids=lambda a: f"{a.dtype}{tuple(a.shape)}")
def test_the_extent_is_that_of_the_elements(array):
    found = addresses(array)
    size = array.itemsize if isinstance(array, np.ndarray) else array.element_size()

    assert span(array) == (min(found), max(found) + size)


def test_an_empty_array_has_no_extent():
    assert span(torch.zeros(3, 0, 2)) == (0, 0)
    assert list(memory_of({"none": torch.zeros(0)})) == []


def test_the_claim_keeps_address_shape_and_strides():
    pytest.importorskip("tvm_ffi", reason="arrays are handed over by apache-tvm-ffi (extra sm100)")
    array = torch.zeros(4, 6, dtype=torch.float16)[:, ::2]
    claimed = as_cuda(array)

    assert claimed.device.type == "cuda"
    assert tuple(claimed.shape) == (4, 3)
    assert tuple(claimed.strides) == (6, 2)
    assert array.device.type == "cpu"  # the tensor itself is as it was
    assert torch.equal(array, torch.zeros(4, 3, dtype=torch.float16))


def test_arrays_of_another_device_are_refused():
    class OnGpu:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self):
            raise AssertionError

    with pytest.raises(CaptureError) as raised:
        span(OnGpu())
    assert str(raised.value) == (
        "cannot emulate on this array in as_cuda: got DLPack device type 2, wanted an array in "
        "host memory; copy it with .cpu() first."
    )


@pytest.mark.parametrize("value", [[1.0], 3, None])
def test_what_is_no_array_is_refused(value):
    for ask in (span, lambda value: memory_of({"x": value})):
        with pytest.raises(CaptureError) as raised:
            ask(value)
        assert str(raised.value) == (
            f"cannot emulate on this array in as_cuda: got a value of type {type(value).__name__}, "
            "wanted an array in host memory; pass a NumPy array or a tensor."
        )


def unusual():
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    yield frozen, "ndarray that DLPack refuses (Cannot export readonly array"
    yield np.zeros(4, object), "ndarray that DLPack refuses ("
    yield np.zeros(4, ">f4"), "ndarray that DLPack refuses ("
    yield (
        torch.zeros(4, requires_grad=True),
        "Tensor that DLPack refuses (Can't export tensors that",
    )
    yield torch.zeros(4).to_sparse(), "Tensor that DLPack refuses ("
    yield torch.zeros(4, device="meta"), "Tensor that DLPack refuses ("


@pytest.mark.parametrize(("array", "said"), [*unusual()])
def test_arrays_that_dlpack_does_not_hand_over_are_refused(array, said):
    with pytest.raises(CaptureError) as raised:
        span(array)

    assert str(raised.value).startswith(f"cannot emulate on this array in as_cuda: got {said}")
    assert str(raised.value).endswith(
        "), wanted an array in host memory; pass a writable strided one of numbers, detached."
    )


def test_as_cuda_refuses_in_the_same_words():
    pytest.importorskip("tvm_ffi", reason="arrays are handed over by apache-tvm-ffi (extra sm100)")
    for value in (3, torch.zeros(4, requires_grad=True)):
        with pytest.raises(CaptureError, match="cannot emulate on this array in as_cuda: got "):
            as_cuda(value)


@pytest.mark.parametrize(("arrays", "got"), [([1], "list"), ({1: torch.zeros(2)}, "[1]")])
def test_arrays_without_names_are_refused(arrays, got):
    with pytest.raises(CaptureError) as raised:
        memory_of(arrays)

    assert str(raised.value) == (
        f"arrays without names in memory_of: got {got}, wanted a mapping of names to arrays; name "
        "each array."
    )


def test_what_an_array_is():
    assert is_array(np.zeros(1))
    assert is_array(torch.zeros(1))
    assert not is_array([1.0])
    assert not is_array(3)


def test_memory_holds_each_array_and_shares_its_bytes():
    x, y = torch.zeros(8), np.zeros(3, np.int32)
    memory = memory_of({"x": x, "y": y}, unwritten=["y"])
    by_name = {allocation.name: allocation for allocation in memory}

    by_name["x"].data[:4] = np.array([1.5], np.float32).view(np.uint8)
    assert x[0] == 1.5
    assert by_name["x"].address == x.data_ptr()
    assert by_name["x"].written is None
    assert by_name["y"].written is not None
    assert not by_name["y"].written.any()


def test_overlapping_arrays_are_one_allocation():
    base = torch.zeros(100)
    memory = memory_of({"k": base[10:40], "v": base[30:60], "other": base[60:70]})

    found = {a.name: (a.address - base.data_ptr(), a.data.nbytes) for a in memory}
    assert found == {"k+v": (40, 200), "other": (240, 40)}


def test_unknown_names_are_refused():
    with pytest.raises(CaptureError, match=r"unknown array in memory_of: got unwritten=\['out'\]"):
        memory_of({"o": torch.zeros(2)}, unwritten=["out"])


def test_low_addresses_are_global_memory_and_windows_are_not():
    """The heap of a Python that is not position independent lies below 4 GiB."""
    memory = GlobalMemory()
    assert memory.add("low", np.zeros(4, np.int32), address=0x1782_0780).address == 0x1782_0780
    for address in (0x1_0000_0000 - 8, 0x3_0000_0000, (1 << 36) - 8):
        with pytest.raises(LaunchError, match=r"outside of \[0x100000000, 0x1000000000\) that no "):
            memory.add("window", np.zeros(4, np.int32), address=address)
