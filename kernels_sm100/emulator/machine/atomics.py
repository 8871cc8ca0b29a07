"""Atomic read-modify-writes on shared and global memory, lane after lane.

Which lane comes first is not defined on hardware; here it is the lowest.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.codegen.program import SHARED_WINDOW
from kernels_sm100.emulator.codegen.tokens import BYTES, DTYPE
from kernels_sm100.emulator.global_memory import LOWEST_ADDRESS
from kernels_sm100.emulator.lanes import convert, half
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import generic, shared
from kernels_sm100.emulator.machine.uniform import running

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

Array = np.ndarray[Any, Any]


def combine(op: str, kind: str, old: Array, new: Array) -> Array:
    """`old op new`, elementwise, of PTX type `kind`; bf16 are raw bits."""
    if op == "exch":
        return new
    if kind.startswith("bf16"):
        a, b = convert.bf16_value(old), convert.bf16_value(new)
        if op == "add":
            return half.narrow(a.astype("f8") + b.astype("f8"), True)
        return convert.bf16_bits(np.fmin(a, b) if op == "min" else np.fmax(a, b))
    floating = kind.startswith("f")
    if op == "add":
        if kind.startswith("f16"):
            return half.narrow(old.astype("f8") + new.astype("f8"), False)
        return np.asarray(old + new)
    if op in ("min", "max"):
        table = (
            {"min": np.fmin, "max": np.fmax} if floating else {"min": np.minimum, "max": np.maximum}
        )
        result: Array = table[op](old, new)
        return result
    if op == "inc":
        return np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    if op == "dec":
        return np.where((old == 0) | (old > new), new, old - old.dtype.type(1))
    bitwise = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    joined: Array = bitwise[op](old, new)
    return joined


def update(
    warp: "Warp",
    op: str,
    space: str,
    address: Lanes,
    token: str,
    kind: str,
    values: tuple[Lanes, ...],
    compare: Lanes | None,
    mask: Mask | None,
    order: str,
) -> list[Lanes]:
    """`atom` and `red`: returns the old values."""
    dtype, size = DTYPE[token], BYTES[token]
    per_lane = size // dtype.itemsize
    results = [np.zeros(32 * per_lane, dtype) for _ in values]
    width = size * len(values)
    for lane in running(mask):
        place = int(address[lane])
        if place % width:
            shared.misaligned(warp, "atomic", place, width)
        memory, offset = _memory(warp, place, width, space, order, op)
        for j, value in enumerate(values):
            cell = memory[offset + j * size : offset + (j + 1) * size].view(dtype)
            mine = slice(lane * per_lane, (lane + 1) * per_lane)
            old = cell.copy()
            results[j][mine] = old
            if op == "cas":
                assert compare is not None
                new = value[mine] if old[0] == compare[lane] else old
            else:
                new = combine(op, kind, old, value[mine])
            if new.tobytes() != old.tobytes():
                warp.grid.events += 1
            cell[:] = new
    return results


def _memory(
    warp: "Warp", place: int, width: int, space: str, order: str, op: str
) -> tuple[Array, int]:
    """Bytes that hold the cell, and its offset; checked, and noted for races."""
    in_window = SHARED_WINDOW <= place < LOWEST_ADDRESS
    if space == "shared" or in_window:
        place &= 0xFFFFFFFF
        cta = warp.cta.cluster.ctas[min(place >> 24, warp.cta.cluster.size - 1)]
        offset = place & 0xFFFFFF
        shared.check_range(warp, cta.shared, offset, width, "atomic")
        shared.check_written(warp, cta.shared, offset, width, "atomic")
        if warp.races is not None:
            warp.races.shared_atomic(warp, cta, offset, width, order)
        return cta.shared.data, offset
    found, offset = generic.locate(warp, place, width, "atomic")
    generic.check_written(warp, found, offset, width, "atomic")
    if warp.races is not None:
        warp.races.global_atomic(warp, found, offset, width, order, op)
    return found.data, offset
