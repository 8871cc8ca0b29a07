"""Shared memory of a CTA: loads, stores and matrices, with bounds, alignment and poison.

NOTE [Shared addresses]: a 32-bit address is the CTA's rank in its cluster, shifted by 24, plus an
offset. Offsets below 1024 are the system's, as on hardware. An address of a CTA's own is at once a
`shared::cta` and a `shared::cluster` address.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.errors import (
    BarrierError,
    MemoryFault,
    MisalignedAccess,
    RaceError,
    UninitialisedRead,
)

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

OFFSET = np.uint32(0xFFFFFF)
POISON = 0xCB
WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WRITTEN = {size: WORD[size](int.from_bytes(b"\x01" * size, "little")) for size in WORD}


class SharedMemory:
    """Bytes of one CTA, and which of them hold a value."""

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.end = start + size
        padded = -(-self.end // 1024) * 1024
        self.data = np.full(padded, POISON, dtype=np.uint8)
        self.written = np.zeros(padded, dtype=np.bool_)
        self.barriers = np.zeros(padded // 8, dtype=np.bool_)  # 8-byte words that are mbarriers
        self.views = {size: self.data.view(WORD[size]) for size in WORD}
        self.shadows = {size: self.written.view(WORD[size]) for size in WORD}

    def read(self, offset: int, size: int) -> np.ndarray[Any, Any]:
        """Bytes of a range."""
        return self.data[offset : offset + size]

    def write(self, offset: int, value: np.ndarray[Any, Any]) -> None:
        """Put bytes, which then hold a value."""
        self.data[offset : offset + value.size] = value
        self.written[offset : offset + value.size] = True

    def contains(self, offset: int, size: int) -> bool:
        """Whether a range lies inside."""
        return self.start <= offset and offset + size <= self.end


def check_lanes(warp: "Warp", kept: Lanes, value: Lanes) -> None:
    """Refuse a store whose lanes put different values into one place: which one stays is luck."""
    lost = kept != value
    if np.count_nonzero(lost):
        lane = int(np.argmax(lost))
        warp.fault(
            RaceError,
            what="race: lanes of one store write different values to one place",
            got=f"{int(value[lane]):#x} lost to {int(kept[lane]):#x}",
            wanted="a place for each lane, or one lane that stores",
            remedy="check the address, or elect a lane",
        )


def check_target(warp: "Warp", memory: SharedMemory, offset: int, size: int, verb: str) -> None:
    """Refuse to write a range that is outside, or that holds an mbarrier."""
    check_range(warp, memory, offset, size, verb)
    check_barriers(warp, memory, slice(offset // 8, (offset + size + 7) // 8))


def check_range(warp: "Warp", memory: SharedMemory, offset: int, size: int, verb: str) -> None:
    """Refuse a range outside of shared memory."""
    if not memory.contains(offset, size):
        warp.fault(
            MemoryFault,
            what=f"shared memory {verb} out of bounds",
            got=f"[{offset:#x}, {offset + size:#x})",
            wanted=f"inside [{memory.start:#x}, {memory.end:#x})",
            remedy="check the index, or ask for more dynamic shared memory",
        )


def check_barriers(warp: "Warp", memory: SharedMemory, words: Any) -> None:
    """Refuse to overwrite an mbarrier that is in use; `words` are numbers of 8-byte words."""
    found = memory.barriers[words]
    if np.count_nonzero(found):
        first = int(np.argmax(found))
        word = words.start + first if isinstance(words, slice) else int(words[first])
        warp.fault(
            BarrierError,
            what="store over an mbarrier",
            got=f"a write to offset {8 * word:#x}",
            wanted="mbarrier.inval before its memory is used otherwise",
            remedy="check the layout of shared memory",
        )


def check_written(warp: "Warp", memory: SharedMemory, offset: int, size: int, what: str) -> None:
    """Refuse to read a range of which a byte was never written."""
    known = memory.written[offset : offset + size]
    if np.count_nonzero(known) != known.size:
        hole = offset + int(np.argmin(known))
        warp.fault(
            UninitialisedRead,
            what=f"{what} of shared memory that nobody wrote",
            got=f"byte {hole:#x}",
            wanted="bytes that were stored or copied before",
            remedy="check the producer's address and size",
        )


def _resolve(
    warp: "Warp", address: Lanes, size: int, mask: Mask | None, verb: str
) -> tuple[Any, SharedMemory, Lanes]:
    """CTA, its memory, and checked offsets of the running lanes."""
    taken = address if mask is None else address[mask]
    cta = warp.cta
    if cta.cluster.size > 1:
        rank = int(taken[0]) >> 24
        if np.count_nonzero((taken >> np.uint32(24)) != rank) or rank >= cta.cluster.size:
            warp.fault(
                MemoryFault,
                what=f"shared memory {verb} to several CTAs at once, or to none",
                got=f"addresses from {int(taken.min()):#x} to {int(taken.max()):#x}",
                wanted="addresses of one CTA of the cluster",
                remedy="check mapa",
            )
        cta = cta.cluster.ctas[rank]
        taken = taken & OFFSET
    memory = cta.shared
    low, high = int(taken.min()), int(taken.max())
    if low < memory.start or high + size > memory.end:
        check_range(warp, memory, low, size, verb)
        check_range(warp, memory, high, size, verb)
    if size > 1 and np.count_nonzero(taken & np.uint32(size - 1)):
        bad = int(taken[np.argmax((taken & np.uint32(size - 1)) != 0)])
        misaligned(warp, verb, bad, size)
    return cta, memory, taken


def misaligned(warp: "Warp", verb: str, address: int, size: int) -> None:
    """Refuse an address that its access does not divide."""
    warp.fault(
        MisalignedAccess,
        what=f"misaligned {verb}",
        got=f"address {address:#x}",
        wanted=f"a multiple of {size}",
        remedy="check the offset and the vector width",
    )


def cells_of(offsets: Lanes, size: int) -> np.ndarray[Any, Any]:
    """Numbers of the 4-byte cells that accesses of `size` bytes touch."""
    cells = (offsets >> np.uint32(2)).astype(np.intp)
    if size > 4:
        cells = (cells[:, None] + np.arange(size // 4)).ravel()
    return cells


def load(warp: "Warp", address: Lanes, size: int, count: int, mask: Mask | None) -> list[Lanes]:
    """`ld.shared`: `count` values of `size` bytes a lane."""
    cta, memory, offsets = _resolve(warp, address, size * count, mask, "load")
    at = offsets // np.uint32(size)
    view, shadow = memory.views[size], memory.shadows[size]
    values = []
    for j in range(count):
        index = at + np.uint32(j) if j else at
        if np.count_nonzero(shadow[index] != WRITTEN[size]):
            lane = int(np.argmax(shadow[index] != WRITTEN[size]))
            check_written(warp, memory, int(offsets[lane]) + j * size, size, "load")
        got = view[index]
        if mask is not None:
            full = np.zeros(32, dtype=view.dtype)
            full[mask] = got
            got = full
        values.append(got)
    if warp.races is not None:
        warp.races.shared_access(warp, cta, cells_of(offsets, size * count), write=False)
    return values


def store(
    warp: "Warp", address: Lanes, size: int, values: tuple[Lanes, ...], mask: Mask | None
) -> None:
    """`st.shared`."""
    cta, memory, offsets = _resolve(warp, address, size * len(values), mask, "store")
    if warp.races is not None:
        cells = cells_of(offsets, size * len(values))
        warp.races.shared_access(warp, cta, cells, write=True)
    check_barriers(warp, memory, offsets >> np.uint32(3))
    at = offsets // np.uint32(size)
    view, shadow = memory.views[size], memory.shadows[size]
    for j, value in enumerate(values):
        index = at + np.uint32(j) if j else at
        view[index] = value if mask is None else value[mask]
        shadow[index] = WRITTEN[size]
        if warp.races is not None:
            check_lanes(warp, view[index], value if mask is None else value[mask])
    warp.grid.events += 1


ROW = np.arange(32)


def _matrix_rows(address: Lanes, number: int) -> Lanes:
    return address[8 * number : 8 * number + 8]


def load_matrices(warp: "Warp", address: Lanes, count: int, trans: bool) -> list[Lanes]:
    """`ldmatrix`: lane 4r + c of a matrix gets columns 2c and 2c + 1 of row r."""
    results = []
    for number in range(count):
        rows = np.resize(_matrix_rows(address, number), 32)
        words = np.stack(load(warp, rows, 4, 4, None), axis=1)[:8]
        square = np.ascontiguousarray(words).view(np.uint16).reshape(8, 8)
        square = np.ascontiguousarray(square.T if trans else square)
        results.append(square.view(np.uint32).reshape(32).copy())
    return results


def store_matrices(warp: "Warp", address: Lanes, values: tuple[Lanes, ...], trans: bool) -> None:
    """`stmatrix`: the inverse of `ldmatrix`."""
    eight = ROW < 8
    for number, value in enumerate(values):
        square = np.ascontiguousarray(value).view(np.uint16).reshape(8, 8)
        square = np.ascontiguousarray(square.T if trans else square)
        words = square.view(np.uint32).reshape(8, 4)
        rows = np.resize(_matrix_rows(address, number), 32)
        columns = tuple(np.resize(words[:, j], 32) for j in range(4))
        store(warp, rows, 4, columns, eight)
