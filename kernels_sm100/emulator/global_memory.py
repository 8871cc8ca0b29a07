"""`GlobalMemory`: host arrays that stand for the device allocations a kernel may touch.

A kernel sees their addresses as 64-bit numbers, and what it stores lands in the arrays, so a caller
reads results where it put the arguments.
"""

from bisect import bisect_right
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_sm100.errors import LaunchError, MemoryFault, sentence

# Between these lie the windows of shared, local and parameter memory. Below them is global memory
# again: the heap of a program that is not position independent.
WINDOWS_BEGIN = 1 << 32
LOWEST_ADDRESS = 1 << 36
_ADDRESSES = 1 << 64


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Host memory that stands for one device allocation.

    Attributes:
        name: what reports call it.
        address: where kernels see its first byte.
        data: uint8 [bytes], the memory itself; kernels write into it.
        written: bool [bytes], which bytes hold a value; None if all do.
    """

    name: str
    address: int
    data: NDArray[np.uint8]
    written: NDArray[np.bool_] | None = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.data.nbytes


class GlobalMemory:
    """Every allocation that a kernel may touch; anything else is out of bounds."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._addresses: list[int] = []

    def add(
        self, name: str, array: NDArray[Any], *, address: int | None = None, written: bool = True
    ) -> Allocation:
        """Register `array` as a device allocation.

        Args:
            name: what reports call it.
            array: C-contiguous, writable; shared, not copied.
            address: where kernels see it; the array's own host address if None, which is what
                captured host code has put into parameters and tensor maps.
            written: whether its bytes hold values; if False a kernel has to write before it reads.

        Raises:
            LaunchError: what is no array, an array of Python objects, or one that is not contiguous
                or writable; an address that is none, or where another allocation lies.
        """
        _check_array(name, array)
        if not isinstance(written, (bool, np.bool_)):
            raise _refuse(
                name,
                "flag that is no bool",
                f"written of type {type(written).__name__}",
                "True or False",
                "pass one of these, for all of its bytes",
            )
        data = np.asarray(array).reshape(-1).view(np.uint8)
        start = array.ctypes.data if address is None else _address(name, address, data.nbytes)
        shadow = None if written else np.zeros(data.nbytes, dtype=np.bool_)
        made = Allocation(name=name, address=start, data=data, written=shadow)
        at = bisect_right(self._addresses, start)
        neighbours = self._allocations[max(at - 1, 0) : at + 1]
        clash = [a for a in neighbours if a.address < made.end and start < a.end]
        if clash or (start < LOWEST_ADDRESS and made.end > WINDOWS_BEGIN):
            raise _refuse(
                name,
                "allocation at an address that is taken",
                f"[{start:#x}, {made.end:#x})",
                f"addresses outside of [{WINDOWS_BEGIN:#x}, {LOWEST_ADDRESS:#x}) that no other"
                " allocation covers",
                f"move it{f' away from {clash[0].name!r}' if clash else ''}",
            )
        self._allocations.insert(at, made)
        self._addresses.insert(at, start)
        return made

    def __iter__(self) -> Any:
        return iter(self._allocations)

    def lookup(self, address: int) -> Allocation | None:
        """The allocation that holds the byte at `address`, if any does."""
        at = bisect_right(self._addresses, address) - 1
        if at >= 0 and address < self._allocations[at].end:
            return self._allocations[at]
        return None

    def describe(self, address: int) -> str:
        """An address in words: how far it is from the start of the nearest allocation below."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return f"{address:#x}"
        near = self._allocations[at]
        offset = address - near.address
        return f"{address:#x}, byte {offset} of {near.name!r} ({near.data.nbytes} bytes)"

    def find(self, address: int, size: int) -> Allocation:
        """The allocation that holds all of [address, address + size).

        Raises:
            MemoryFault: none does.
        """
        found = self.lookup(address)
        if found is None or address + size > found.end:
            raise MemoryFault(
                sentence(
                    what="access out of bounds",
                    where="global memory",
                    got=f"[{address:#x}, {address + size:#x})",
                    wanted="an address inside " + (repr(found.name) if found else "an allocation"),
                    remedy="check the index and the strides",
                )
            )
        return found


def _refuse(name: str, what: str, got: object, wanted: str, remedy: str) -> LaunchError:
    where = f"allocation {name!r}"
    return LaunchError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))


def _check_array(name: str, array: object) -> None:
    """Check that kernels can read and write the bytes of `array`."""
    if not isinstance(array, np.ndarray):
        raise _refuse(
            name,
            "allocation that is no array",
            f"a value of type {type(array).__name__}",
            "a NumPy array",
            "pass tensor.numpy(), or np.array(values) and keep it for the results",
        )
    if array.dtype.hasobject:
        raise _refuse(
            name,
            "allocation of Python objects",
            f"dtype {array.dtype}",
            "numbers, whose bytes a kernel can read",
            "convert it, by array.astype(np.float32), say",
        )
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise _refuse(
            name,
            "allocation that cannot be shared",
            f"strides {array.strides}, writeable={array.flags.writeable}",
            "a C-contiguous writable array",
            "pass array.copy(), and read the results there",
        )


def _address(name: str, address: Any, size: int) -> int:
    """`address`, checked to be one that `size` bytes can begin at."""
    try:
        start = index(address)
    except TypeError:
        start = -1
    if 0 <= start <= _ADDRESSES - size:
        return start
    raise _refuse(
        name,
        "allocation at no address",
        repr(address),
        f"an integer in [0, {_ADDRESSES - size:#x}]",
        "leave address out for that of the array itself",
    )
