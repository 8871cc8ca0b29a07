"""Tensor memory: 128 lanes of 512 columns of 32 bits, allocated by columns.

NOTE [Lanes of a warp]: warp w of a warpgroup reaches lanes 32 (w mod 4) to 32 (w mod 4) + 31 only.

NOTE [Shapes]: register r of lane l holds, for 32x32b, row l, column r; for 16x64b, row l/4 + 8 (l
mod 2), column l/2 mod 2 + 2 r; for 16x128b, row l/4 + 8 (r mod 2), column l mod 4 + 4 (r/2); for
16x256b, row l/4 + 8 (r/2 mod 2), column r mod 2 + 2 (l mod 4) + 8 (r/4).
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.emulator.machine.uniform import first, uniform
from kernels_sm100.errors import TensorMemoryError, UninitialisedRead

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp

ROWS, COLUMNS = 128, 512
POISON = 0x7FC0DEAD  # a NaN
SMALLEST = 32


class TensorMemory:
    """Columns of one CTA's tensor memory: values, what was written, and who holds them."""

    def __init__(self) -> None:
        self.data = np.full((ROWS, COLUMNS), POISON, dtype=np.uint32)
        self.written = np.zeros((ROWS, COLUMNS), dtype=np.bool_)
        self.holder = np.zeros(COLUMNS, dtype=np.int64)  # number of the allocation; 0 is free
        self.allocations: dict[int, tuple[int, str]] = {}  # by first column: columns, by whom
        self.numbers = 0
        self.relinquished: str | None = None

    def free_block(self, columns: int) -> int | None:
        """First column of a free aligned block."""
        for start in range(0, COLUMNS, columns):
            if not self.holder[start : start + columns].any():
                return start
        return None

    def take(self, start: int, columns: int, who: str) -> None:
        """Mark a block as held; its old contents are gone."""
        self.numbers += 1
        self.holder[start : start + columns] = self.numbers
        self.allocations[start] = (columns, who)
        self.written[:, start : start + columns] = False

    def give(self, start: int) -> int:
        """Free the block at a column; how many columns it had."""
        columns, _ = self.allocations.pop(start)
        self.holder[start : start + columns] = 0
        return columns

    def holds(self, start: int, columns: int) -> bool:
        """Whether one allocation covers a range of columns."""
        taken = self.holder[start : start + columns]
        return bool(start + columns <= COLUMNS and taken[0] and (taken == taken[0]).all())


def allocate(warp: "Warp", target: Lanes, columns: Lanes, group: int, mask: Mask | None) -> bool:
    """`tcgen05.alloc`: True to block until columns are free."""
    count = uniform(warp, columns, mask, "number of columns")
    memory = warp.cta.tmem
    _check_pair(warp, group)
    if count < SMALLEST or count > COLUMNS or count & (count - 1):
        warp.fault(
            TensorMemoryError,
            what="allocation of an impossible number of columns",
            got=count,
            wanted=f"a power of two from {SMALLEST} to {COLUMNS}",
            remedy="round up",
        )
    if memory.relinquished is not None:
        warp.fault(
            TensorMemoryError,
            what="allocation after the permit was relinquished",
            got=f"relinquish_alloc_permit by {memory.relinquished}",
            wanted="every allocation before it",
            remedy="allocate first",
        )
    start = memory.free_block(count)
    if start is None:
        return warp.block_on(
            Wait(
                "tensor memory",
                lambda: memory.free_block(count) is not None,
                lambda: f"{count} columns; held are {held(memory)}",
            )
        )
    memory.take(start, count, f"warp {warp.index} (line {warp.line})")
    if warp.races is not None:
        warp.races.tmem_allocated(warp.cta, start, count)
    from kernels_sm100.emulator.machine import shared

    place = np.full(32, first(target, mask), dtype=np.uint32)
    lane = np.arange(32) == (0 if mask is None else int(np.argmax(mask)))
    shared.store(warp, place, 4, (np.full(32, start, dtype=np.uint32),), lane)
    return False


def held(memory: TensorMemory) -> str:
    """What is allocated, in words."""
    blocks = [f"[{s}, {s + n}) by {who}" for s, (n, who) in sorted(memory.allocations.items())]
    return ", ".join(blocks) or "none"


def _check_pair(warp: "Warp", group: int) -> None:
    if group == 2 and warp.cta.cluster.size % 2:
        warp.fault(
            TensorMemoryError,
            what="cta_group::2 without a pair of CTAs",
            got=f"a cluster of {warp.cta.cluster.size}",
            wanted="an even cluster",
            remedy="launch with a cluster of 2",
        )


def deallocate(warp: "Warp", start: Lanes, columns: Lanes, group: int, mask: Mask | None) -> None:
    """`tcgen05.dealloc`."""
    _check_pair(warp, group)
    place = uniform(warp, start, mask, "tensor memory address")
    count = uniform(warp, columns, mask, "number of columns")
    memory = warp.cta.tmem
    found = memory.allocations.get(place & 0xFFFF)
    if found is None or found[0] != count:
        warp.fault(
            TensorMemoryError,
            what="deallocation of columns that were not allocated so",
            got=f"{count} columns from {place & 0xFFFF}",
            wanted=f"one of {held(memory)}",
            remedy="pass the address that alloc wrote and the same number of columns",
        )
    if warp.races is not None:
        warp.races.tmem_freed(warp, place & 0xFFFF, count)
    memory.give(place & 0xFFFF)
    warp.grid.events += 1


def relinquish(warp: "Warp", group: int) -> None:
    """`tcgen05.relinquish_alloc_permit`."""
    _check_pair(warp, group)
    warp.cta.tmem.relinquished = f"warp {warp.index} (line {warp.line})"


def check_columns(warp: "Warp", cta: "Cta", start: int, columns: int, what: str) -> None:
    """Refuse columns outside of one live allocation."""
    if not cta.tmem.holds(start, columns):
        warp.fault(
            TensorMemoryError,
            what=f"{what} outside of an allocation of tensor memory",
            got=f"columns [{start}, {start + columns})",
            wanted=f"inside one of {held(cta.tmem)}",
            remedy="allocate more columns, or do not free them yet",
        )


@cache
def image(shape: str, count: int) -> tuple[Any, Any, int]:
    """Row and column of each (register, lane) of a shape, and its columns (NOTE [Shapes])."""
    lane = np.arange(32)[None, :]
    if shape == "32x32b":
        register = np.arange(count)[:, None]
        return lane + 0 * register, register + 0 * lane, count
    if shape == "16x64b":
        register = np.arange(count)[:, None]
        return lane // 4 + 8 * (lane % 2) + 0 * register, lane // 2 % 2 + 2 * register, 2 * count
    if shape == "16x128b":
        register = np.arange(2 * count)[:, None]
        return lane // 4 + 8 * (register % 2), lane % 4 + 4 * (register // 2), 4 * count
    register = np.arange(4 * count)[:, None]
    column = register % 2 + 2 * (lane % 4) + 8 * (register // 4)
    return lane // 4 + 8 * (register // 2 % 2), column, 8 * count


def _place(
    warp: "Warp", address: Lanes, shape: str, count: int, mask: Mask | None, verb: str
) -> tuple[int, int, int]:
    """First row, first column and number of columns, checked."""
    place = uniform(warp, address, mask, "tensor memory address")
    row, column = place >> 16, place & 0xFFFF
    columns = image(shape, count)[2]
    quarter = 32 * (warp.index % 4)
    allowed = (quarter,) if shape == "32x32b" else (quarter, quarter + 16)
    if row not in allowed:
        warp.fault(
            TensorMemoryError,
            what=f"tcgen05.{verb} of lanes that the warp does not reach",
            got=f"lane {row}",
            wanted=f"lane {' or '.join(map(str, allowed))} for warp {warp.index}",
            remedy="add the warp's quarter to the address",
        )
    check_columns(warp, warp.cta, column, columns, f"tcgen05.{verb}")
    return row, column, columns


def load(warp: "Warp", address: Lanes, shape: str, count: int, mask: Mask | None) -> list[Lanes]:
    """`tcgen05.ld`: one array a register."""
    row, column, columns = _place(warp, address, shape, count, mask, "ld")
    memory = warp.cta.tmem
    rows = slice(row, row + (32 if shape == "32x32b" else 16))
    if not memory.written[rows, column : column + columns].all():
        hole = int(np.argmin(memory.written[rows, column : column + columns].all(axis=0)))
        warp.fault(
            UninitialisedRead,
            what="tcgen05.ld of tensor memory that nobody wrote",
            got=f"column {column + hole}, lanes from {row}",
            wanted="a store or an MMA before",
            remedy="wait for the producer, and check the column",
        )
    if warp.races is not None:
        warp.races.tmem_access(warp, row // 32, column, columns, write=False)
    warp.grid.report.counts["tmem_load_columns"] += columns
    if shape == "32x32b":
        return list(memory.data[rows, column : column + columns].T.copy())
    i, j, _ = image(shape, count)
    return list(memory.data[row + i, column + j])


def store(
    warp: "Warp",
    address: Lanes,
    shape: str,
    count: int,
    values: tuple[Lanes, ...],
    mask: Mask | None,
) -> None:
    """`tcgen05.st`."""
    row, column, columns = _place(warp, address, shape, count, mask, "st")
    memory = warp.cta.tmem
    if warp.races is not None:
        warp.races.tmem_access(warp, row // 32, column, columns, write=True)
    warp.grid.report.counts["tmem_store_columns"] += columns
    rows = slice(row, row + (32 if shape == "32x32b" else 16))
    memory.written[rows, column : column + columns] = True
    if shape == "32x32b":
        memory.data[rows, column : column + columns] = np.stack(values, axis=1)
    else:
        i, j, _ = image(shape, count)
        memory.data[row + i, column + j] = np.stack(values)
    warp.grid.events += 1


def wait(warp: "Warp", what: str) -> None:
    """`tcgen05.wait`: loads are complete at once here; for races, stores only now."""
    if what == "ld":
        warp.unwaited.clear()
    elif warp.races is not None:
        warp.races.wait_tmem_stores(warp)


def fence(warp: "Warp", what: str) -> None:
    """`tcgen05.fence`: beside the barriers that order accesses of several warps."""
    if warp.races is not None:
        warp.races.fence_tensor(warp, before=what == "before_thread_sync")
