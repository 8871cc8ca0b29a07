"""Floating point of one warp.

NOTE [Accuracy]: add, sub, mul and fma of f32 are rounded as IEEE 754 says, in the four directions
of PTX. `ex2`, `lg2`, `rcp`, `rsqrt`, `sqrt`, `sin`, `cos` and `tanh` are correctly rounded or
within 1 ulp here; the hardware's `.approx` forms are not: PTX promises a relative error of 2^-22.5
for ex2, 1 ulp for rcp, 2^-22.9 for rsqrt, an absolute 2^-22.6 for lg2 near 1 and 2^-11 for tanh. A
result that hangs on the last bit of one of them is not proved here. NaNs are NaNs, their payloads
are not kept.

NOTE [One rounding]: a product of two f32 is exact in f64, but its sum with a third is rounded to
53 bits and then to 24. The two roundings differ from one only if the first lands on a tie of the
second; then the error of the first says which way to go.
"""

from typing import Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes

F4 = np.dtype("f4")
F8 = np.dtype("f8")
U8 = np.dtype("u8")
TINY = np.float32(2.0**-126)
LOW = np.full(64, (1 << 29) - 1, dtype=U8)
TIE = np.full(64, 1 << 28, dtype=U8)
DOWN, UP = np.float32(-np.inf), np.float32(np.inf)


def flush(x: Lanes) -> Lanes:
    """`.ftz`: subnormals become zeros of the same sign."""
    small = np.abs(x) < TINY
    if np.count_nonzero(small):
        return np.where(small, np.copysign(np.float32(0), x), x)
    return x


def fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Product and sum, a * b + c, of f32, rounded once to nearest even (NOTE [One rounding])."""
    product = a.astype(F8) * b.astype(F8)
    total = product + c.astype(F8)
    tie = (total.view(U8) & LOW[: total.size]) == TIE[: total.size]
    if np.count_nonzero(tie):
        total = _towards(total, product, c.astype(F8), tie)
    return total.astype(F4)


def _towards(total: Lanes, a: Lanes, b: Lanes, where: Lanes) -> Lanes:
    """`total`, the rounded a + b, moved off a tie to the side on which the exact sum lies."""
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(where & (error != 0), moved, total)


def directed(wide: Lanes, error: Lanes, mode: str) -> Lanes:
    """f32 of the exact value wide + error (f64), rounded as `mode`: rn, rz, rm or rp."""
    near = wide.astype(F4)
    exact = near.astype(F8)
    above = (exact > wide) | ((exact == wide) & (error < 0))
    below = (exact < wide) | ((exact == wide) & (error > 0))
    down = np.where(above, np.nextafter(near, DOWN), near)
    up = np.where(below, np.nextafter(near, UP), near)
    if mode == "rm":
        return down
    if mode == "rp":
        return up
    if mode == "rz":
        return np.where(wide < 0, up, down)
    return near


def add(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Sum of two f32 in a directed mode; f64 holds it but for an error that is known."""
    x, y = a.astype(F8), b.astype(F8)
    total = x + y
    virtual = total - x
    error = (x - (total - virtual)) + (y - virtual)
    return directed(total, np.nan_to_num(error), mode)


def multiply(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Product of two f32 in a directed mode; f64 holds it exactly."""
    product = a.astype(F8) * b.astype(F8)
    return directed(product, np.zeros_like(product), mode)


def fma_directed(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """Product and sum, a * b + c, of f32 in a directed mode."""
    product = a.astype(F8) * b.astype(F8)
    other = c.astype(F8)
    total = product + other
    virtual = total - product
    error = (product - (total - virtual)) + (other - virtual)
    return directed(total, np.nan_to_num(error), mode)


def saturate(x: Lanes) -> Lanes:
    """`.sat`: clamped to [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)).astype(x.dtype)


def minimum(a: Lanes, b: Lanes, *, nan: bool) -> Lanes:
    """`min`: -0 below +0; a NaN loses, or wins with `nan`."""
    low: Lanes = np.minimum(a, b) if nan else np.fmin(a, b)
    zero = low == 0
    if np.count_nonzero(zero):
        return np.where(zero & (a == b), np.where(np.signbit(a), a, b), low)
    return low


def maximum(a: Lanes, b: Lanes, *, nan: bool) -> Lanes:
    """`max`: +0 above -0; a NaN loses, or wins with `nan`."""
    high: Lanes = np.maximum(a, b) if nan else np.fmax(a, b)
    zero = high == 0
    if np.count_nonzero(zero):
        return np.where(zero & (a == b), np.where(np.signbit(a), b, a), high)
    return high


def magnitude_xorsign(picked: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """`.xorsign`: |picked| with the exclusive or of the signs of a and b."""
    sign = np.where(np.signbit(a) != np.signbit(b), -1, 1).astype(picked.dtype)
    return np.copysign(picked, sign)


def power_of_two(x: Lanes) -> Lanes:
    """`ex2`."""
    return np.exp2(x)


def power_of_two_flushed(x: Lanes) -> Lanes:
    """`ex2.ftz`: subnormal sources give 1 anyway, and results are never negative."""
    power: Lanes = np.exp2(x)
    small = power < TINY
    return np.where(small, np.float32(0), power) if np.count_nonzero(small) else power


def logarithm(x: Lanes) -> Lanes:
    """`lg2`."""
    return np.log2(x)


def reciprocal(x: Lanes) -> Lanes:
    """`rcp`."""
    result: Lanes = x.dtype.type(1) / x
    return result


def reciprocal_root(x: Lanes) -> Lanes:
    """`rsqrt`, rounded once."""
    return (1.0 / np.sqrt(x.astype(F8))).astype(x.dtype)


def divide(a: Lanes, b: Lanes) -> Lanes:
    """`div`."""
    return a / b


def compare(a: Lanes, b: Lanes, how: str) -> Lanes:
    """`setp` of floats: ordered comparisons are false on NaN, `u` ones are true."""
    unordered = np.isnan(a) | np.isnan(b)
    if how == "num":
        return ~unordered
    if how == "nan":
        return unordered
    operator: Any = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less,
        "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    }[how[:2]]  # fmt: skip
    found: Lanes = operator(a, b)
    return found | unordered if how.endswith("u") else found & ~unordered
