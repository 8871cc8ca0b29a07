"""Operands that must be, or are taken to be, the same in all running lanes."""

from typing import TYPE_CHECKING

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.errors import DivergenceError

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp


def first(value: Lanes, mask: Mask | None) -> int:
    """The value of the first running lane."""
    return int(value[0 if mask is None else int(np.argmax(mask))])


def running(mask: Mask | None) -> list[int]:
    """Numbers of the running lanes."""
    return list(range(32)) if mask is None else np.flatnonzero(mask).tolist()


def uniform(warp: "Warp", value: Lanes, mask: Mask | None, what: str) -> int:
    """The one value of all running lanes.

    Raises:
        DivergenceError: they differ.
    """
    taken = value if mask is None else value[mask]
    lowest, highest = int(taken.min()), int(taken.max())
    if lowest != highest:
        warp.fault(
            DivergenceError,
            what=f"{what} that differs between lanes",
            got=f"{lowest:#x} and {highest:#x}",
            wanted="one value",
            remedy="let one lane execute it, or compute it from uniform values",
        )
    return lowest
