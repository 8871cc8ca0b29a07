"""Loads and stores by 64-bit address: global memory, and the windows of the generic space."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.codegen.program import (
    LOCAL_WINDOW,
    PARAMETER_WINDOW,
    SHARED_WINDOW,
)
from kernels_sm100.emulator.global_memory import LOWEST_ADDRESS, Allocation
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import local, shared
from kernels_sm100.emulator.machine.uniform import uniform
from kernels_sm100.errors import MemoryFault, UninitialisedRead

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

SECTOR = 32  # bytes that global memory is read by


def to_shared(address: Lanes) -> Lanes:
    """32-bit shared address of a generic (or already shared) one."""
    return np.asarray(address & address.dtype.type(0xFFFFFFFF)).astype(np.uint32)


def _window(address: Lanes, mask: Mask | None) -> int:
    """Which window the running lanes address: 0 is global memory."""
    low = int(address[0 if mask is None else int(np.argmax(mask))])
    return 0 if low >= LOWEST_ADDRESS else low >> 32


def _strip(address: Lanes, window: int) -> Lanes:
    return np.asarray(address - np.uint64(window))


def bounds_fault(warp: "Warp", verb: str, low: int, high: int, found: Allocation | None) -> None:
    """Refuse a range of global memory that no allocation holds."""
    warp.fault(
        MemoryFault,
        what=f"global memory {verb} out of bounds",
        got=f"{high - low} bytes from {warp.grid.memory.describe(low)}",
        wanted="bytes inside an allocation" if found is None else f"bytes inside {found.name!r}",
        remedy="check the index and the strides",
    )


def locate(warp: "Warp", address: int, size: int, verb: str) -> tuple[Allocation, int]:
    """The allocation that holds a range, and the offset of the range in it."""
    found = warp.grid.memory.lookup(address)
    if found is None or address + size > found.end:
        bounds_fault(warp, verb, address, address + size, found)
        raise AssertionError
    return found, address - found.address


def check_written(warp: "Warp", found: Allocation, offset: int, size: int, what: str) -> None:
    """Refuse a range of which a byte was never written."""
    if found.written is None:
        return
    known = found.written[offset : offset + size]
    if np.count_nonzero(known) != known.size:
        warp.fault(
            UninitialisedRead,
            what=f"{what} of global memory that nobody wrote",
            got=f"byte {offset + int(np.argmin(known))} of {found.name!r}",
            wanted="bytes that were written before",
            remedy="initialise the allocation, or order the producer first",
        )


def _groups(
    warp: "Warp", address: Lanes, size: int, mask: Mask | None, verb: str
) -> list[tuple[Allocation, np.ndarray[Any, Any] | None, Lanes]]:
    """Running lanes by allocation: (allocation, lanes, offsets); lanes None for all 32."""
    lanes = None if mask is None else np.flatnonzero(mask)
    taken = address if lanes is None else address[lanes]
    if size > 1 and np.count_nonzero(taken & np.uint64(size - 1)):
        bad = int(taken[np.argmax((taken & np.uint64(size - 1)) != 0)])
        shared.misaligned(warp, f"global {verb}", bad, size)
    low, high = int(taken.min()), int(taken.max())
    found = warp.grid.memory.lookup(low)
    if found is not None and high + size <= found.end:
        return [(found, lanes, (taken - np.uint64(found.address)).astype(np.intp))]
    lanes = np.arange(32) if lanes is None else lanes
    result: list[tuple[Allocation, np.ndarray[Any, Any] | None, Lanes]] = []
    rest = lanes
    while rest.size:
        start = int(address[rest[0]])
        found, _ = locate(warp, start, size, verb)
        inside = (address[rest] >= np.uint64(found.address)) & (
            address[rest] < np.uint64(found.end)
        )
        chosen = rest[inside]
        offsets = (address[chosen] - np.uint64(found.address)).astype(np.intp)
        if int(offsets.max()) + size > found.data.nbytes:
            bad = found.address + int(offsets.max())
            bounds_fault(warp, verb, bad, bad + size, found)
        result.append((found, chosen, offsets))
        rest = rest[~inside]
    return result


def bytes_at(offsets: Lanes, size: int) -> np.ndarray[Any, Any]:
    """Byte numbers of accesses of `size` bytes, one row an access."""
    return offsets[:, None] + np.arange(size)


def load(
    warp: "Warp", address: Lanes, size: int, count: int, mask: Mask | None, order: str | None
) -> list[Lanes]:
    """`ld` and `ld.global`: `count` values of `size` bytes a lane."""
    window = _window(address, mask)
    if window:
        return _load_window(warp, address, size, count, mask)
    values = [np.zeros(32, shared.WORD[size]) for _ in range(count)]
    for found, lanes, offsets in _groups(warp, address, size * count, mask, "load"):
        octets = found.data[bytes_at(offsets, size * count)]
        if found.written is not None and not found.written[bytes_at(offsets, size * count)].all():
            bad = ~found.written[bytes_at(offsets, size * count)].all(axis=1)
            check_written(warp, found, int(offsets[np.argmax(bad)]), size * count, "load")
        words = octets.view(shared.WORD[size])
        for j, value in enumerate(values):
            value[slice(None) if lanes is None else lanes] = words[:, j]
        if warp.races is not None:
            warp.races.global_access(warp, found, offsets, size * count, write=None, order=order)
        sectors = len(set((offsets // SECTOR).tolist()))
        warp.grid.report.counts["global_load_sectors"] += sectors
    return values


def _load_window(
    warp: "Warp", address: Lanes, size: int, count: int, mask: Mask | None
) -> list[Lanes]:
    window = _window(address, mask)
    if window == SHARED_WINDOW >> 32:
        return shared.load(warp, to_shared(address), size, count, mask)
    if window == LOCAL_WINDOW >> 32:
        return local.load(warp, _strip(address, LOCAL_WINDOW), size, count, mask)
    if window == PARAMETER_WINDOW >> 32:
        start = uniform(warp, address, mask, "parameter address") - PARAMETER_WINDOW
        return [warp.parameter(start + j * size, size) for j in range(count)]
    bounds_fault(warp, "load", int(address.min()), int(address.max()) + size * count, None)
    raise AssertionError


def store(
    warp: "Warp",
    address: Lanes,
    size: int,
    values: tuple[Lanes, ...],
    mask: Mask | None,
    order: str | None,
) -> None:
    """`st` and `st.global`."""
    window = _window(address, mask)
    if window == SHARED_WINDOW >> 32:
        shared.store(warp, to_shared(address), size, values, mask)
        return
    if window == LOCAL_WINDOW >> 32:
        local.store(warp, _strip(address, LOCAL_WINDOW), size, values, mask)
        return
    if window:
        bounds_fault(warp, "store", int(address.min()), int(address.max()), None)
    width = size * len(values)
    words = np.stack(values, axis=1).view(np.uint8)
    for found, lanes, offsets in _groups(warp, address, width, mask, "store"):
        octets = words if lanes is None else words[lanes]
        at = bytes_at(offsets, width)
        if warp.races is not None:
            warp.races.global_access(warp, found, offsets, width, write=octets, order=order)
        found.data[at] = octets
        if warp.races is not None:
            shared.check_lanes(warp, found.data[at].ravel(), octets.ravel())
        if found.written is not None:
            found.written[at] = True
    warp.grid.events += 1
