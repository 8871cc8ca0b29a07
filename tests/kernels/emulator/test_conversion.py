"""Conversions, moves and address arithmetic against rational arithmetic and Python integers."""

from fractions import Fraction
from math import ceil, floor, trunc

import numpy as np
import pytest

from tests.kernels.emulator.snippet import apply, run
from tests.kernels.emulator.test_floating import bf16, floats, near, rounded
from tests.kernels.emulator.test_integer import expect, samples


def even(x: Fraction) -> int:
    return round(x)  # Python rounds halves to even


@pytest.mark.parametrize("source", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_between_integers(source, target):
    a = samples(source[0], int(source[1:]))
    dtype = np.dtype(f"{'i' if target[0] == 's' else 'u'}{int(target[1:]) // 8}")

    got = apply(f"cvt.{target}.{source} $d, $a;", a, out=dtype)

    np.testing.assert_array_equal(got, expect(lambda x: x, a, out=dtype))


@pytest.mark.parametrize(("source", "target"), [("s32", "s16"), ("s32", "u16"), ("u32", "s16")])
def test_saturating_between_integers(source, target):
    a = samples(source[0], 32)
    dtype = np.dtype(f"{'i' if target[0] == 's' else 'u'}2")
    info = np.iinfo(dtype)

    got = apply(f"cvt.sat.{target}.{source} $d, $a;", a, out=dtype)

    np.testing.assert_array_equal(got, [min(max(int(x), info.min), info.max) for x in a])


@pytest.mark.parametrize(
    ("mode", "python"), [("rni", even), ("rzi", trunc), ("rmi", floor), ("rpi", ceil)]
)
@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u16"])
def test_float_to_integer(mode, python, target):
    a = np.concatenate([floats()[:16], near()[:12], np.array([0.5, 1.5, -2.5, 2.5], "f4")])
    dtype = np.dtype(f"{'i' if target[0] == 's' else 'u'}{int(target[1:]) // 8}")
    info = np.iinfo(dtype)

    got = apply(f"cvt.{mode}.{target}.f32 $d, $a;", a, out=dtype)

    def one(x: float) -> int:
        if np.isnan(x):
            return 0
        if np.isinf(x):
            return info.max if x > 0 else info.min
        return min(max(python(Fraction(x)), info.min), info.max)

    assert got.tolist() == [one(float(x)) for x in a]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s32", "u32"])
def test_integer_to_float(mode, source):
    a = samples(source[0], 32)

    got = apply(f"cvt.{mode}.f32.{source} $d, $a;", a, out="f4")

    np.testing.assert_array_equal(got, [rounded(Fraction(int(x)), mode) for x in a])


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_integral_floats(mode):
    a = near()

    got = apply(f"cvt.{mode}.f32.f32 $d, $a;", a, out="f4")

    python = {"rni": even, "rzi": trunc, "rmi": floor, "rpi": ceil}[mode]
    np.testing.assert_array_equal(got, [python(Fraction(float(x))) for x in a])


def test_bf16_both_ways():
    a = floats()
    finite = np.where(np.isnan(a), np.float32(1), a)

    narrow = apply("cvt.rn.bf16.f32 $d, $a;", finite, out="u2")
    cut = apply("cvt.rz.bf16.f32 $d, $a;", finite, out="u2")
    back = apply("cvt.f32.bf16 $d, $a;", narrow, out="f4")

    np.testing.assert_array_equal(narrow, bf16(finite))
    np.testing.assert_array_equal(cut, (finite.view("u4") >> 16).astype("u2"))
    np.testing.assert_array_equal(back, (narrow.astype("u4") << 16).view("f4"))


def test_bf16_of_nan_is_nan():
    narrow = apply("cvt.rn.bf16.f32 $d, $a;", np.full(32, np.nan, "f4"), out="u2")

    assert (narrow & 0x7F80 == 0x7F80).all()
    assert (narrow & 0x7F != 0).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_put_the_first_source_on_top(kind, relu):
    a, b = near(), near(1)

    got = apply(f"cvt.rn{'.relu' if relu else ''}.{kind}x2.f32 $d, $a, $b;", a, b, out="u4")

    if relu:
        a, b = np.maximum(a, 0), np.maximum(b, 0)
    narrow = bf16 if kind == "bf16" else (lambda x: x.astype("f2").view("u2"))
    np.testing.assert_array_equal(got >> 16, narrow(a))
    np.testing.assert_array_equal(got & 0xFFFF, narrow(b))


def test_f16_both_ways():
    a = near()

    narrow = apply("cvt.rn.f16.f32 $d, $a;", a, out="f2")
    cut = apply("cvt.rz.f16.f32 $d, $a;", a, out="f2")
    back = apply("cvt.f32.f16 $d, $a;", narrow, out="f4")

    np.testing.assert_array_equal(narrow, a.astype("f2"))
    np.testing.assert_array_equal(back, narrow.astype("f4"))
    assert (np.abs(cut.astype("f8")) <= np.abs(a)).all()
    assert (
        np.abs(np.nextafter(cut, np.copysign(np.float16(np.inf), cut)).astype("f8")) > np.abs(a)
    ).all()


def test_doubles():
    a = near()

    wide = apply("cvt.f64.f32 $d, $a;", a, out="f8")
    narrow = apply("cvt.rn.f32.f64 $d, $a;", wide / 3, out="f4")

    np.testing.assert_array_equal(wide, a.astype("f8"))
    np.testing.assert_array_equal(narrow, (wide / 3).astype("f4"))


def test_packs_and_unpacks():
    a, b = samples("u", 32), samples("u", 32, 1)

    packed = apply("mov.b64 $d, {$a, $b};", a, b, out="u8")
    high = apply("mov.b64 {_, $d}, $a;", packed, out="u4")
    halves = apply("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $a; mov.b32 $d, {hi, lo}; }", a, out="u4")

    np.testing.assert_array_equal(packed, a.astype("u8") | b.astype("u8") << 32)
    np.testing.assert_array_equal(high, b)
    np.testing.assert_array_equal(halves, a >> 16 | a << 16)


@pytest.mark.parametrize(
    ("literal", "bits"),
    [
        ("0f3F800000", 0x3F800000), ("0x10", 16), ("-1", 0xFFFFFFFF), ("017", 15), ("7U", 7),
        ("1.5", 0x3FC00000),
    ],
)  # fmt: skip
def test_literals(literal, bits):
    got = apply(
        f"mov.f32 $d, {literal};" if "." in literal else f"mov.b32 $d, {literal};", out="u4"
    )

    assert set(got.tolist()) == {bits}


def test_generic_addresses_of_shared_memory():
    out = np.zeros(32, "u4")

    run(
        """
        mad.wide.u32 %d12, %r0, 4, %d0;
        mul.lo.u32 %r2, %r0, 4;
        add.u32 %r2, %r2, %r1;
        st.shared.b32 [%r2], %r0;
        cvt.u64.u32 %d13, %r2;
        cvta.shared.u64 %d14, %d13;
        ld.b32 %r3, [%d14];
        isspacep.shared %p1, %d14;
        selp.b32 %r4, %r3, 99, %p1;
        st.global.b32 [%d12], %r4;
        """,
        out,
    )

    np.testing.assert_array_equal(out, np.arange(32))


def test_local_memory_is_private():
    out = np.zeros(32, "u4")

    run(
        """
        .local .align 4 .b8 depot[16];
        mov.u64 %d10, depot;
        cvta.local.u64 %d11, %d10;
        st.local.b32 [%d10+4], %r0;
        ld.b32 %r2, [%d11+4];
        mad.wide.u32 %d12, %r0, 4, %d0;
        st.global.b32 [%d12], %r2;
        """,
        out,
    )

    np.testing.assert_array_equal(out, np.arange(32))
