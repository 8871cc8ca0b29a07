"""Names that generated code calls."""

from typing import Any

import numpy as np

from kernels_sm100.emulator.codegen.program import LOCAL_WINDOW, SHARED_WINDOW
from kernels_sm100.emulator.lanes import bits, convert, exchange, floating, half, integer
from kernels_sm100.emulator.lanes.poison import poison
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import (
    atomics,
    barriers,
    bulk,
    cpasync,
    generic,
    local,
    mbarrier,
    remote,
    shared,
    tma,
    tmem,
    umma,
)
from kernels_sm100.emulator.machine.fragment import branch


def before(value: Lanes | None, storage: np.dtype[Any]) -> Lanes:
    """What a register held before a blend; poison if nothing."""
    return poison(storage) if value is None else value


def pairs(mask: Mask) -> Mask:
    """A mask of lanes, for arrays with two values a lane."""
    return np.repeat(mask, 2)


MODULES = (
    bits, convert, exchange, floating, half, integer, atomics, barriers, bulk, cpasync, generic,
    local, mbarrier, remote, shared, tma, tmem, umma,
)  # fmt: skip
LIBRARY: dict[str, Any] = {module.__name__.rsplit(".", 1)[-1]: module for module in MODULES}
LIBRARY |= {
    "np": np,
    "where": np.where,
    "count_nonzero": np.count_nonzero,
    "branch": branch,
    "before": before,
    "pairs": pairs,
    "SHARED_WINDOW": np.uint64(SHARED_WINDOW),
    "LOCAL_WINDOW": np.uint64(LOCAL_WINDOW),
}
