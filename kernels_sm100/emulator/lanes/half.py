"""16-bit floating point: through f64, where sums and products of two are exact.

The one inexact case is fma, whose f64 sum may round before the narrow rounding does; that needs
operands more than 2^29 apart, where the smaller one only breaks a tie.
"""

import numpy as np

from kernels_sm100.emulator.lanes import convert
from kernels_sm100.emulator.lanes.types import Lanes

F4 = np.dtype("f4")
F8 = np.dtype("f8")


def widen(x: Lanes) -> Lanes:
    """f16 values, or bf16 bits, as f64."""
    return (x if x.dtype.kind == "f" else convert.bf16_value(np.ascontiguousarray(x))).astype(F8)


def narrow(x: Lanes, brain: bool) -> Lanes:
    """f64 as f16 values, or as bf16 bits."""
    if not brain:
        return x.astype(np.float16)
    near = x.astype(F4)
    # Round to odd first: f32 keeps enough bits for the second rounding to be the only one.
    inexact = near.astype(F8) != x
    towards = np.where(np.abs(near.astype(F8)) > np.abs(x), np.nextafter(near, F4.type(0)), near)
    odd = np.where(inexact, (towards.view("u4") | np.uint32(1)).view(F4), near)
    return convert.bf16_bits(np.where(np.isfinite(x), odd, near))


def relu(x: Lanes) -> Lanes:
    """max(x, 0), NaN kept."""
    return np.where(np.isnan(x), x, np.maximum(x, 0.0))
