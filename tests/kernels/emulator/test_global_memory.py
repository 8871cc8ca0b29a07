"""Device allocations: which arrays can stand for one, where they may lie, and what is refused."""

import numpy as np
import pytest
import torch

from kernels_sm100.emulator import GlobalMemory
from kernels_sm100.errors import LaunchError, MemoryFault


def test_allocations_are_checked():
    memory = GlobalMemory()
    a = np.zeros(64, "u1")
    memory.add("a", a, address=1 << 40)

    with pytest.raises(LaunchError, match="move it away from 'a'"):
        memory.add("b", np.zeros(64, "u1"), address=(1 << 40) + 63)
    with pytest.raises(LaunchError, match="C-contiguous writable"):
        memory.add("c", np.zeros((4, 4))[:, ::2])
    with pytest.raises(MemoryFault, match="wanted an address inside 'a'"):
        memory.find((1 << 40) + 60, 8)
    assert memory.find((1 << 40) + 60, 4).name == "a"
    assert memory.lookup((1 << 40) + 64) is None


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ([1.0, 2.0], "got a value of type list"),
        (torch.zeros(4), "got a value of type Tensor"),
        (b"1234", "got a value of type bytes"),
        (None, "got a value of type NoneType"),
    ],
)
def test_what_is_no_array_is_refused(array, said):
    with pytest.raises(LaunchError) as caught:
        GlobalMemory().add("x", array)

    assert str(caught.value) == (
        f"allocation that is no array in allocation 'x': {said}, wanted a NumPy array; pass "
        "tensor.numpy(), or np.array(values) and keep it for the results."
    )


@pytest.mark.parametrize("dtype", [object, [("a", "u4"), ("b", "O")]])
def test_python_objects_are_refused(dtype):
    array = np.zeros(3, dtype)
    with pytest.raises(LaunchError) as caught:
        GlobalMemory().add("x", array)

    assert str(caught.value) == (
        f"allocation of Python objects in allocation 'x': got dtype {array.dtype}, wanted numbers, "
        "whose bytes a kernel can read; convert it, by array.astype(np.float32), say."
    )


def test_arrays_that_cannot_be_shared_are_refused():
    frozen = np.zeros(4, np.uint8)
    frozen.flags.writeable = False
    for array, said in [
        (frozen, "strides (1,), writeable=False"),
        (np.zeros(8, np.uint8)[::2], "strides (2,), writeable=True"),
    ]:
        with pytest.raises(LaunchError) as caught:
            GlobalMemory().add("x", array)
        assert str(caught.value) == (
            f"allocation that cannot be shared in allocation 'x': got {said}, wanted a C-contiguous "
            "writable array; pass array.copy(), and read the results there."
        )


@pytest.mark.parametrize("address", ["x", 1.0e12, -8, 1 << 64, (1 << 64) - 15])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(LaunchError) as caught:
        GlobalMemory().add("x", np.zeros(2), address=address)

    assert str(caught.value) == (
        f"allocation at no address in allocation 'x': got {address!r}, wanted an integer in [0, "
        "0xfffffffffffffff0]; leave address out for that of the array itself."
    )


def test_an_address_may_be_any_integer_up_to_the_last_byte():
    memory = GlobalMemory()

    assert memory.add("x", np.zeros(2), address=(1 << 64) - 16).end == 1 << 64
    assert type(memory.add("y", np.zeros(2), address=np.int64(1 << 40)).address) is int


def test_all_bytes_are_written_or_none():
    with pytest.raises(LaunchError) as caught:
        GlobalMemory().add("x", np.zeros(4), written=np.zeros(4, bool))

    assert str(caught.value) == (
        "flag that is no bool in allocation 'x': got written of type ndarray, wanted True or False; "
        "pass one of these, for all of its bytes."
    )
