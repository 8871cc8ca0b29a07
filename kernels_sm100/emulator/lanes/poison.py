"""What memory that nobody wrote reads as: bits that are a NaN in every float that fits them."""

from functools import cache
from typing import Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes

WORD = 0x7FFF  # a NaN in f16 and bf16; repeated, one in f32 and f64, and no address


@cache
def poison(storage: np.dtype[Any]) -> Lanes:
    """32 lanes of a register that nobody wrote; a predicate does not hold."""
    if storage.kind == "b":
        made = np.zeros(32, dtype=storage)
    else:
        repeated = int.from_bytes(WORD.to_bytes(2, "little") * 4, "little")
        made = np.full(32, repeated & (1 << 8 * storage.itemsize) - 1, dtype=storage)
    made.flags.writeable = False
    return made
