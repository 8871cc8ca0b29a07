"""`cvt`: between integers, f16, bf16 and f32. bf16 are raw 16-bit patterns."""

from typing import Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes

F4 = np.dtype("f4")
U2 = np.dtype("u2")
U4 = np.dtype("u4")
ONE, HALF, SIXTEEN = (np.full(64, value, dtype=U4) for value in (1, 0x7FFF, 16))
SCALARS = (U4.type(1), U4.type(0x7FFF), U4.type(16))
BF16_NAN = 0x7FFF
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _constants(x: Lanes) -> tuple[Any, Any, Any]:
    """1, 0x7FFF and 16 to combine with `x`: for lanes as arrays, which NumPy is quicker with."""
    if x.ndim == 1 and x.size <= 64:
        return ONE[: x.size], HALF[: x.size], SIXTEEN[: x.size]
    return SCALARS


def bf16_bits(x: Lanes, *, truncate: bool = False) -> Lanes:
    """f32 to bf16, to nearest even or towards zero.

    >>> hex(bf16_bits(np.array([1.00390625], F4))[0])
    '0x3f80'
    """
    raw = np.ascontiguousarray(x).view(U4)
    one, half, sixteen = _constants(raw)
    rounded = raw if truncate else raw + half + ((raw >> sixteen) & one)
    result = (rounded >> sixteen).astype(U2)
    nan = x != x  # noqa: PLR0124 - only NaN differs from itself, and this is faster than isnan
    return np.where(nan, U2.type(BF16_NAN), result) if np.count_nonzero(nan) else result


def bf16_value(raw: Lanes) -> Lanes:
    """bf16 to f32, exactly."""
    return (raw.astype(U4) << _constants(raw)[2]).view(F4)


def interleave(high: Lanes, low: Lanes) -> Lanes:
    """64 values: the low then the high of each lane."""
    both = np.empty(64, dtype=low.dtype)
    both[0::2] = low
    both[1::2] = high
    return both


def bf16_pair(high: Lanes, low: Lanes, *, relu: bool = False, truncate: bool = False) -> Lanes:
    """`cvt.bf16x2.f32`, as u4 lanes."""
    both = interleave(high, low)
    if relu:
        both = np.maximum(both, F4.type(0)) if not np.isnan(both).any() else _relu(both)
    return bf16_bits(both, truncate=truncate).view(U4)


def f16_pair(high: Lanes, low: Lanes, *, relu: bool = False, truncate: bool = False) -> Lanes:
    """`cvt.f16x2.f32`, as u4 lanes."""
    both = interleave(high, low)
    if relu:
        both = _relu(both)
    return f16(both, truncate=truncate).view(U4)


def _relu(x: Lanes) -> Lanes:
    return np.where(np.isnan(x), x, np.maximum(x, F4.type(0)))


def f16(x: Lanes, *, truncate: bool = False) -> Lanes:
    """f32 to f16, to nearest even or towards zero."""
    near = x.astype(np.float16)
    if not truncate:
        return near
    over = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
    return np.where(over, np.nextafter(near, np.float16(0)), near)


def to_integer(x: Lanes, dtype: np.dtype, mode: str) -> Lanes:
    """Float to integer, rounded as `mode` and clamped to the type; NaN gives 0."""
    info = np.iinfo(dtype)
    whole = ROUND[mode](x.astype(np.float64))
    whole = np.nan_to_num(whole, nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = whole <= float(info.min), whole >= float(info.max)
    inside = np.where(low | high, 0.0, whole).astype(dtype)
    return np.where(low, dtype.type(info.min), np.where(high, dtype.type(info.max), inside))


def saturated(x: Lanes, dtype: np.dtype) -> Lanes:
    """`.sat` between integers."""
    info = np.iinfo(dtype)
    if x.dtype.kind == "u":
        return np.minimum(x, x.dtype.type(min(info.max, np.iinfo(x.dtype).max))).astype(dtype)
    low, high = max(info.min, np.iinfo(x.dtype).min), min(info.max, np.iinfo(x.dtype).max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)


def whole(x: Lanes, mode: str) -> Lanes:
    """Float rounded to an integral float."""
    rounded: Lanes = ROUND[mode](x)
    return rounded


def pack(parts: tuple[Lanes, ...], dtype: np.dtype) -> Lanes:
    """`mov.b64 d, {a, b}`: the first part lies lowest."""
    joined = np.empty((32, len(parts)), dtype=parts[0].dtype)
    for at, part in enumerate(parts):
        joined[:, at] = part
    return joined.view(dtype)[:, 0]
