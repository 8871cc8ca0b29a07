"""Bit fields, permutations and counts."""

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes

U4 = np.uint32
ROWS = np.arange(32)


def lookup3(a: Lanes, b: Lanes, c: Lanes, table: int) -> Lanes:
    """`lop3`: bit 4a + 2b + c of `table`, for each bit."""
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result = result | term
    return result


def permute(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """`prmt`: each nibble of the selector picks a byte of b:a; its top bit copies the sign."""
    octets = np.concatenate(
        [np.ascontiguousarray(x).view(np.uint8).reshape(32, 4) for x in (a, b)], axis=1
    )
    result = np.zeros(32, dtype=U4)
    for at in range(4):
        nibble = (selector >> U4(4 * at)) & U4(15)
        octet = octets[ROWS, (nibble & U4(7)).astype(np.intp)].astype(U4)
        sign = np.where(octet & U4(128), U4(255), U4(0))
        result |= np.where(nibble & U4(8), sign, octet) << U4(8 * at)
    return result


def permute_mode(a: Lanes, b: Lanes, selector: Lanes, mode: str) -> Lanes:
    """`prmt` with a mode (f4e, b4e, rc8, ecl, ecr, rc16): the selector's low 2 bits choose."""
    tables = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }
    chosen = np.array(tables[mode], dtype=U4)[(selector & U4(3)).astype(np.intp)]
    return permute(a, b, chosen)


def extract(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """`bfe`: a field, sign-extended for signed lanes; bits past the top copy the sign or are 0."""
    bits = 8 * a.itemsize
    result = []
    for value, start, count in zip(a, position & U4(255), length & U4(255), strict=True):
        first, size = int(start), int(count)
        if size == 0:
            result.append(0)
            continue
        field = int(value) >> min(first, bits)  # Python shifts keep the sign
        last = min(first + size - 1, bits - 1)
        kept = min(size, max(last - first + 1, 1))
        if a.dtype.kind == "u":
            result.append(field & ((1 << kept) - 1) if first < bits else 0)
            continue
        sign = (int(value) >> last) & 1
        low = field & ((1 << kept) - 1) if first < bits else 0
        result.append((low - (1 << kept) if first < bits else -1) if sign else low)
    return np.array(result, dtype=a.dtype)


def insert(field: Lanes, base: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """`bfi`: `base` with `field` in `length` bits from `position`."""
    bits = 8 * base.itemsize
    result = []
    for new, old, start, count in zip(
        field, base, position & U4(255), length & U4(255), strict=True
    ):
        first, size = min(int(start), bits), int(count)
        mask = ((1 << size) - 1) << first & ((1 << bits) - 1)
        result.append((int(old) & ~mask) | (int(new) << first & mask))
    return np.array(result, dtype=base.dtype)


def population(a: Lanes) -> Lanes:
    """`popc`, as u4."""
    return np.bitwise_count(a).astype(U4)


def leading_zeros(a: Lanes) -> Lanes:
    """`clz` of unsigned lanes, as u4."""
    bits = 8 * a.itemsize
    return np.array([bits - int(x).bit_length() for x in a], dtype=U4)


def reverse(a: Lanes) -> Lanes:
    """`brev`."""
    bits = 8 * a.itemsize
    return np.array([int(f"{int(x):0{bits}b}"[::-1], 2) for x in a], dtype=a.dtype)


def highest(a: Lanes, *, shift: bool) -> Lanes:
    """`bfind`: position of the top bit that differs from the sign; all ones if there is none."""
    bits = 8 * a.itemsize
    found = [(int(x) if x >= 0 else ~int(x)).bit_length() - 1 for x in a]
    return np.array([(bits - 1 - n if shift else n) if n >= 0 else 0xFFFFFFFF for n in found], U4)


def field_mask(position: Lanes, length: Lanes) -> Lanes:
    """`bmsk.clamp`: `length` ones from `position` on."""
    result = []
    for start, count in zip(position, length, strict=True):
        first, size = min(int(start), 32), min(int(count), 32)
        result.append(((1 << size) - 1) << first & 0xFFFFFFFF)
    return np.array(result, dtype=U4)
