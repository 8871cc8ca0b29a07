"""Integer instructions against Python integers."""

import numpy as np
import pytest

from tests.kernels.emulator.snippet import apply

EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF]


def samples(kind: str, bits: int, seed: int = 0) -> np.ndarray:
    """Edge cases and random numbers of a type."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}")
    info = np.iinfo(dtype)
    edges = [info.min, info.max, info.max - 1, *[e for e in EDGES if e <= info.max]]
    values = [*edges, *[int(x) for x in random.integers(info.min, info.max, 32, dtype=dtype)]]
    return random.permutation(np.array(values[:32], dtype=dtype))


def wrap(values: list[int], dtype: np.dtype) -> np.ndarray:
    bits = 8 * dtype.itemsize
    unsigned = np.array([v & ((1 << bits) - 1) for v in values], dtype=f"u{dtype.itemsize}")
    return unsigned.view(dtype)


def expect(op, *arrays, out=None):
    dtype = np.dtype(out) if out is not None else arrays[0].dtype
    return wrap([op(*(int(x) for x in row)) for row in zip(*arrays, strict=True)], dtype)


def towards_zero(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": towards_zero,
    "rem": lambda a, b: a - towards_zero(a, b) * b if b else a,
}


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("op", sorted(TWO))
def test_two_operands(op, kind, bits):
    a, b = samples(kind, bits), samples(kind, bits, 1)

    got = apply(f"{op}.{kind}{bits} $d, $a, $b;", a, b, out=a.dtype)

    np.testing.assert_array_equal(got, expect(TWO[op], a, b))


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_high_halves(kind, bits):
    a, b, c = (samples(kind, bits, seed) for seed in range(3))

    got = apply(f"mad.hi.{kind}{bits} $d, $a, $b, $c;", a, b, c, out=a.dtype)

    np.testing.assert_array_equal(got, expect(lambda x, y, z: (x * y >> bits) + z, a, b, c))


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_wide_products(kind, bits):
    a, b, c = samples(kind, bits), samples(kind, bits, 1), samples(kind, 2 * bits, 2)

    got = apply(f"mad.wide.{kind}{bits} $d, $a, $b, $c;", a, b, c, out=c.dtype)

    np.testing.assert_array_equal(got, expect(lambda x, y, z: x * y + z, a, b, c, out=c.dtype))


def test_mad_low_sad_and_saturation():
    a, b, c = (samples("s", 32, seed) for seed in range(3))

    low = apply("mad.lo.s32 $d, $a, $b, $c;", a, b, c, out=np.int32)
    sad = apply("sad.s32 $d, $a, $b, $c;", a, b, c, out=np.int32)
    sat = apply("add.sat.s32 $d, $a, $b;", a, b, out=np.int32)

    np.testing.assert_array_equal(low, expect(lambda x, y, z: x * y + z, a, b, c))
    np.testing.assert_array_equal(sad, expect(lambda x, y, z: z + abs(x - y), a, b, c))
    np.testing.assert_array_equal(
        sat, expect(lambda x, y: max(min(x + y, 2**31 - 1), -(2**31)), a, b)
    )


@pytest.mark.parametrize("op", ["neg", "abs"])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_signs(op, bits):
    a = samples("s", bits)

    got = apply(f"{op}.s{bits} $d, $a;", a, out=a.dtype)

    np.testing.assert_array_equal(got, expect(abs if op == "abs" else lambda x: -x, a))


@pytest.mark.parametrize(
    ("op", "kind", "bits"),
    [(o, k, b) for b in (16, 32, 64) for o, k in (("shl", "b"), ("shr", "u"), ("shr", "s"))],
)
@pytest.mark.parametrize("amount", ["$b", "5", "15", "31", "63", "200"])
def test_shifts_clamp(op, kind, bits, amount):
    a = samples("u" if kind == "b" else kind, bits)
    by = np.array([0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 2**31, 2**32 - 1, 8] * 2, "u4")
    width = by if amount == "$b" else np.full(32, int(amount), "u4")

    got = apply(f"{op}.{kind}{bits} $d, $a, {amount};", a, by, out=a.dtype)

    def shift(x: int, n: int) -> int:
        return x << min(n, 64) if op == "shl" else x >> min(n, 64)

    np.testing.assert_array_equal(got, expect(shift, a, width))


@pytest.mark.parametrize("way", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(way, mode):
    a, b = samples("u", 32), samples("u", 32, 1)
    by = np.arange(32, dtype="u4") * 3

    got = apply(f"shf.{way}.{mode}.b32 $d, $a, $b, $c;", a, b, by, out="u4")

    def funnel(low: int, high: int, n: int) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        wide = high << 32 | low
        return wide << n >> 32 if way == "l" else wide >> n

    np.testing.assert_array_equal(got, expect(funnel, a, b, by))


def test_carries_make_wide_sums():
    a, b, c, e = (samples("u", 32, seed) for seed in range(4))

    for first, second, python in (
        ("add.cc.u32", "addc.u32", lambda x, y: x + y),
        ("sub.cc.u32", "subc.u32", lambda x, y: x - y),
    ):
        body = f"{{ .reg .b32 lo, hi; {first} lo, $a, $c; {second} hi, $b, $e; mov.b64 $d, {{lo, hi}}; }}"
        got = apply(body, a, b, c, e, out="u8")
        wide = [int(x) | int(y) << 32 for x, y in zip(a, b, strict=True)]
        other = [int(x) | int(y) << 32 for x, y in zip(c, e, strict=True)]
        wanted = [python(x, y) & (1 << 64) - 1 for x, y in zip(wide, other, strict=True)]
        assert got.tolist() == wanted


def test_carries_make_wide_products():
    a, b, c = (samples("u", 32, seed) for seed in range(3))

    body = """{ .reg .b32 lo, hi; mad.lo.cc.u32 lo, $a, $b, $c; madc.hi.u32 hi, $a, $b, 0;
        mov.b64 $d, {lo, hi}; }"""
    got = apply(body, a, b, c, out="u8")

    assert got.tolist() == [int(x) * int(y) + int(z) for x, y, z in zip(a, b, c, strict=True)]
