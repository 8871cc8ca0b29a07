"""Local memory: a private array of each lane."""

from typing import TYPE_CHECKING

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine.shared import misaligned
from kernels_sm100.errors import MemoryFault, UninitialisedRead

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

LANE = np.arange(32)


def _resolve(warp: "Warp", address: Lanes, size: int, mask: Mask | None) -> tuple[Lanes, Lanes]:
    """Running lanes and their checked offsets."""
    limit = warp.grid.program.local_bytes
    if warp.local is None:
        warp.local = (np.zeros((32, limit), np.uint8), np.zeros((32, limit), np.bool_))
    lanes = LANE if mask is None else np.flatnonzero(mask)
    offsets = address[lanes].astype(np.int64)
    if int(offsets.min()) < 0 or int(offsets.max()) + size > limit:
        warp.fault(
            MemoryFault,
            what="local memory access out of bounds",
            got=f"offsets {int(offsets.min())} to {int(offsets.max()) + size}",
            wanted=f"below {limit}",
            remedy="check the index",
        )
    if (offsets % size).any():
        misaligned(warp, "local access", int(offsets[(offsets % size) != 0][0]), size)
    return lanes, offsets


def load(warp: "Warp", address: Lanes, size: int, count: int, mask: Mask | None) -> list[Lanes]:
    """`ld.local`."""
    lanes, offsets = _resolve(warp, address, size * count, mask)
    data, written = warp.local
    values = []
    for j in range(count):
        at = offsets[:, None] + np.arange(j * size, (j + 1) * size)
        if not written[lanes[:, None], at].all():
            warp.fault(
                UninitialisedRead,
                what="load of local memory that nobody wrote",
                got=f"offset {int(offsets[0]) + j * size}",
                wanted="a store before",
                remedy="initialise the array",
            )
        full = np.zeros((32, size), np.uint8)
        full[lanes] = data[lanes[:, None], at]
        values.append(full.view(f"u{size}")[:, 0])
    return values


def store(
    warp: "Warp", address: Lanes, size: int, values: tuple[Lanes, ...], mask: Mask | None
) -> None:
    """`st.local`."""
    lanes, offsets = _resolve(warp, address, size * len(values), mask)
    data, written = warp.local
    for j, value in enumerate(values):
        at = offsets[:, None] + np.arange(j * size, (j + 1) * size)
        octets = np.ascontiguousarray(value).view(np.uint8).reshape(32, size)
        data[lanes[:, None], at] = octets[lanes]
        written[lanes[:, None], at] = True
