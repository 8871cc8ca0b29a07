"""Integer arithmetic that NumPy has no single operator for; results wrap as on the machine."""

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes


def shift_left(a: Lanes, by: Lanes) -> Lanes:
    """`shl`: amounts past the width give 0.

    Args:
        a: unsigned lanes.
        by: u4 lanes.
    """
    bits = 8 * a.itemsize
    kept = np.minimum(by, bits - 1).astype(a.dtype)
    return np.where(by < bits, a << kept, a.dtype.type(0))


def shift_right(a: Lanes, by: Lanes) -> Lanes:
    """`shr`: amounts past the width give 0, or copies of the sign for signed lanes."""
    bits = 8 * a.itemsize
    kept = a >> np.minimum(by, bits - 1).astype(a.dtype)
    if a.dtype.kind == "i":
        return np.asarray(kept)
    return np.where(by < bits, kept, a.dtype.type(0))


def funnel(low: Lanes, high: Lanes, by: Lanes, *, left: bool, wrap: bool) -> Lanes:
    """`shf`: 32 bits out of the 64 of high:low, shifted."""
    by = by.astype(np.uint64)
    by = by & np.uint64(31) if wrap else np.minimum(by, np.uint64(32))
    wide = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    shifted = (wide << by) >> np.uint64(32) if left else wide >> by
    return shifted.astype(np.uint32)


def divide(a: Lanes, b: Lanes) -> Lanes:
    """`div` of integers, towards zero; division by 0 gives all ones, as hardware does."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, a.dtype.type(np.iinfo(a.dtype).max), a // safe)
    quotient = a // safe
    inexact = (a % safe != 0) & ((a < 0) != (safe < 0))
    return np.where(zero, a.dtype.type(-1), quotient + inexact.astype(a.dtype))


def remainder(a: Lanes, b: Lanes) -> Lanes:
    """`rem` of integers: the sign is that of `a`; by 0 it is `a`."""
    quotient = divide(a, b)
    return np.where(b == 0, a, a - quotient * b)


def multiply_high(a: Lanes, b: Lanes) -> Lanes:
    """Upper half of the double-width product."""
    bits = 8 * a.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    products = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    return np.array([p & 0xFFFFFFFFFFFFFFFF for p in products], dtype=np.uint64).view(a.dtype)


def add_with_carry(a: Lanes, b: Lanes, carry: Lanes | None, subtract: bool) -> tuple[Lanes, Lanes]:
    """`add.cc` and its kin on unsigned lanes: sum or difference, and the carry or borrow out."""
    one = np.zeros(32, dtype=a.dtype) if carry is None else carry.astype(a.dtype)
    if subtract:
        first = a - b
        return first - one, (a < b) | (first < one)
    first = a + b
    total = first + one
    return total, (first < a) | (total < first)


def saturating_add(a: Lanes, b: Lanes) -> Lanes:
    """`add.sat.s32`: clamped instead of wrapped."""
    wide = a.astype(np.int64) + b.astype(np.int64)
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def absolute_difference(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """`sad`: c + |a - b|."""
    return c + (np.maximum(a, b) - np.minimum(a, b)).view(c.dtype)
