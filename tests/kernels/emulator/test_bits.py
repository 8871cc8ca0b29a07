"""Logic, bit fields and permutations against loops over bits."""

import numpy as np
import pytest

from tests.kernels.emulator.snippet import apply
from tests.kernels.emulator.test_integer import expect, samples


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize(
    ("op", "python"),
    [("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)],
)
def test_logic(op, python, bits):
    a, b = samples("u", bits), samples("u", bits, 1)

    got = apply(f"{op}.b{bits} $d, $a, $b;", a, b, out=a.dtype)

    np.testing.assert_array_equal(got, expect(python, a, b))


def test_complements():
    a = samples("u", 32)

    got, cnot = (apply(f"{op}.b32 $d, $a;", a, out="u4") for op in ("not", "cnot"))

    np.testing.assert_array_equal(got, expect(lambda x: ~x, a))
    np.testing.assert_array_equal(cnot, expect(lambda x: int(x == 0), a))


@pytest.mark.parametrize("table", [0x00, 0xC0, 0xFE, 0x96, 0xE8, 0xCA, 0x1B, 0xFF])
def test_lookup_of_three(table):
    a, b, c = (samples("u", 32, seed) for seed in range(3))

    got = apply(f"lop3.b32 $d, $a, $b, $c, {table};", a, b, c, out="u4")

    def lookup(x: int, y: int, z: int) -> int:
        rows = [(x >> i & 1) * 4 + (y >> i & 1) * 2 + (z >> i & 1) for i in range(32)]
        return sum((table >> row & 1) << i for i, row in enumerate(rows))

    np.testing.assert_array_equal(got, expect(lookup, a, b, c))


def test_byte_permutation():
    a, b, c = (samples("u", 32, seed) for seed in range(3))

    got = apply("prmt.b32 $d, $a, $b, $c;", a, b, c, out="u4")

    def permute(x: int, y: int, s: int) -> int:
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = [s >> 4 * i & 15 for i in range(4)]
        return int.from_bytes(
            [(0xFF if octets[n & 7] & 0x80 else 0) if n & 8 else octets[n] for n in chosen],
            "little",
        )

    np.testing.assert_array_equal(got, expect(permute, a, b, c))


@pytest.mark.parametrize(
    ("mode", "selector", "bytes_"),
    [
        ("f4e", 1, (1, 2, 3, 4)),
        ("b4e", 1, (1, 0, 7, 6)),
        ("rc8", 2, (2, 2, 2, 2)),
        ("ecl", 2, (2, 2, 2, 3)),
        ("ecr", 2, (0, 1, 2, 2)),
        ("rc16", 1, (2, 3, 2, 3)),
    ],
)
def test_modes_of_permutation(mode, selector, bytes_):
    a, b = np.full(32, 0x03020100, "u4"), np.full(32, 0x07060504, "u4")

    got = apply(f"prmt.b32.{mode} $d, $a, $b, {selector};", a, b, out="u4")

    assert tuple(int(got[0]).to_bytes(4, "little")) == bytes_


FIELDS = np.array([0, 1, 5, 8, 16, 24, 31, 32, 33, 63, 64, 200, 255, 2, 3, 4] * 2, "u4")


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_extracted_fields(kind, bits):
    a, length = samples(kind, bits), np.roll(FIELDS, 5)

    got = apply(f"bfe.{kind}{bits} $d, $a, $b, $c;", a, FIELDS, length, out=a.dtype)

    def extract(x: int, position: int, count: int) -> int:  # the pseudo-code of the PTX manual
        value = [x >> i & 1 for i in range(bits)]
        last = min(position + count - 1, bits - 1)
        sign = 0 if kind == "u" or count == 0 else value[last]
        return sum(
            (value[position + i] if i < count and position + i < bits else sign) << i
            for i in range(bits)
        )

    np.testing.assert_array_equal(got, expect(extract, a, FIELDS, length))


@pytest.mark.parametrize("bits", [32, 64])
def test_inserted_fields(bits):
    a, b, length = samples("u", bits), samples("u", bits, 1), np.roll(FIELDS, 3)

    got = apply(f"bfi.b{bits} $d, $a, $b, $c, $e;", a, b, FIELDS, length, out=a.dtype)

    def insert(new: int, old: int, position: int, count: int) -> int:
        for i in range(count):
            if position + i < bits:
                old = old & ~(1 << position + i) | (new >> i & 1) << position + i
        return old

    np.testing.assert_array_equal(got, expect(insert, a, b, FIELDS, length))


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits):
    a = samples("u", bits)

    ones, zeros = (apply(f"{op}.b{bits} $d, $a;", a, out="u4") for op in ("popc", "clz"))
    top = apply(f"bfind.u{bits} $d, $a;", a, out="u4")
    shift = apply(f"bfind.shiftamt.u{bits} $d, $a;", a, out="u4")
    backwards = apply(f"brev.b{bits} $d, $a;", a, out=a.dtype)

    np.testing.assert_array_equal(ones, expect(lambda x: f"{x:b}".count("1"), a, out="u4"))
    np.testing.assert_array_equal(
        zeros, expect(lambda x: bits - len(f"{x:b}") * (x > 0), a, out="u4")
    )
    np.testing.assert_array_equal(
        top, expect(lambda x: len(f"{x:b}") - 1 if x else -1, a, out="u4")
    )
    np.testing.assert_array_equal(
        shift, expect(lambda x: bits - len(f"{x:b}") if x else -1, a, out="u4")
    )
    np.testing.assert_array_equal(backwards, expect(lambda x: int(f"{x:0{bits}b}"[::-1], 2), a))


def test_top_bit_of_negative_numbers():
    a = np.array([-1, -2, -129, 5] * 8, "i4")

    got = apply("bfind.s32 $d, $a;", a, out="u4")

    assert got[:4].tolist() == [0xFFFFFFFF, 0, 7, 2]


def test_masks_of_ones():
    position, length = np.arange(32, dtype="u4"), np.arange(32, dtype="u4")[::-1].copy()

    got = apply("bmsk.clamp.b32 $d, $a, $b;", position, length, out="u4")

    np.testing.assert_array_equal(got, expect(lambda p, n: ((1 << n) - 1) << p, position, length))


def test_selection():
    a, b, p = samples("u", 32), samples("u", 32, 1), np.arange(32) % 3 == 0

    chosen = apply("selp.b32 $d, $a, $b, $c;", a, b, p, out="u4")
    signed = apply("slct.b32.s32 $d, $a, $b, $c;", a, b, samples("s", 32), out="u4")

    np.testing.assert_array_equal(chosen, np.where(p, a, b))
    np.testing.assert_array_equal(signed, np.where(samples("s", 32) >= 0, a, b))


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "u16", "s16"])
@pytest.mark.parametrize("how", sorted(COMPARISONS))
def test_comparisons(how, kind):
    a = samples(kind[0], int(kind[1:]))
    b = np.where(np.arange(32) % 4 == 0, a, samples(kind[0], int(kind[1:]), 1))

    got = apply(f"setp.{how}.{kind} $d, $a, $b;", a, b, out=bool)

    assert got.tolist() == [COMPARISONS[how](int(x), int(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("unsigned", "name"), [("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")]
)
def test_unsigned_names_of_comparisons(unsigned, name):
    a, b = samples("u", 32), samples("u", 32, 1)

    got = [
        apply(f"setp.{how}.u32 $d, $a, $b;", a, b, out=bool).tolist() for how in (unsigned, name)
    ]

    assert got[0] == got[1]


def test_two_results_and_a_join():
    a, b = samples("s", 32), samples("s", 32, 1)
    p = np.arange(32) % 2 == 0

    first = apply("setp.lt.and.s32 $d|%p1, $a, $b, $c;", a, b, p, out=bool)
    second = apply("setp.lt.xor.s32 %p1|$d, $a, $b, !$c;", a, b, p, out=bool)

    np.testing.assert_array_equal(first, (a < b) & p)
    np.testing.assert_array_equal(second, ~(a < b) ^ ~p)
