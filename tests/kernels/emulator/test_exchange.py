"""Shuffles, votes, elections and reductions against loops over lanes."""

import numpy as np
import pytest

from tests.kernels.emulator.snippet import apply, run
from tests.kernels.emulator.test_integer import samples

FULL = "0xffffffff"


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("by", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("width", [8, 32])
def test_shuffles(mode, by, width):
    a = samples("u", 32)
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)

    got = apply(f"shfl.sync.{mode}.b32 $d, $a, {by}, {clamp}, {FULL};", a, out="u4")
    valid = apply(f"shfl.sync.{mode}.b32 %r99|$d, $a, {by}, {clamp}, {FULL};", a, out=bool)

    for lane in range(32):
        base = lane // width * width
        source = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": base + by % width,
        }[mode]
        inside = source >= base if mode == "up" else source < base + width
        assert valid[lane] == inside
        assert got[lane] == a[source if inside else lane]


def test_votes():
    p = np.arange(32) % 3 == 0

    ballot = apply(f"vote.sync.ballot.b32 $d, $a, {FULL};", p, out="u4")
    any_ = apply(f"vote.sync.any.pred $d, $a, {FULL};", p, out=bool)
    all_ = apply(f"vote.sync.all.pred $d, !$a, {FULL};", np.zeros(32, bool), out=bool)
    uni = apply(f"vote.sync.uni.pred $d, $a, {FULL};", p, out=bool)

    assert set(ballot.tolist()) == {sum(1 << i for i in range(0, 32, 3))}
    assert any_.all()
    assert all_.all()
    assert not uni.any()


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor"])
def test_reductions(op):
    a = samples("u", 32)
    kind = "b32" if op in ("and", "or", "xor") else "u32"

    got = apply(f"redux.sync.{op}.{kind} $d, $a, {FULL};", a, out="u4")

    total = int(a[0])
    for value in a[1:].tolist():
        total = {
            "add": total + value, "min": min(total, value), "max": max(total, value),
            "and": total & value, "or": total | value, "xor": total ^ value,
        }[op]  # fmt: skip
    assert set(got.tolist()) == {total & 0xFFFFFFFF}


def test_matches():
    a = (np.arange(32) % 5).astype("u4")

    any_ = apply(f"match.any.sync.b32 $d, $a, {FULL};", a, out="u4")
    same = apply(f"match.all.sync.b32 $d|%p9, $a, {FULL};", np.full(32, 7, "u4"), out="u4")
    other = apply(f"match.all.sync.b32 %r99|$d, $a, {FULL};", a, out=bool)

    assert any_.tolist() == [sum(1 << j for j in range(32) if a[j] == a[i]) for i in range(32)]
    assert set(same.tolist()) == {0xFFFFFFFF}
    assert not other.any()


def test_one_lane_is_elected():
    got = apply(f"elect.sync _|$d, {FULL};", out=bool)

    assert got.tolist() == [True] + [False] * 31


def test_votes_of_the_lanes_that_are_there():
    out = np.zeros(32, "u4")

    run(
        """
        mad.wide.u32 %d10, %r0, 4, %d0;
        setp.ge.u32 %p1, %r0, 20;
        @%p1 bra HIGH;
        setp.ge.u32 %p2, %r0, 10;
        vote.sync.ballot.b32 %r2, %p2, 0x000fffff;
        activemask.b32 %r3;
        and.b32 %r2, %r2, %r3;
        bra JOIN;
    HIGH:
        elect.sync %r2|%p3, 0xfff00000;
    JOIN:
        st.global.b32 [%d10], %r2;
        """,
        out,
    )

    assert set(out[:20].tolist()) == {0x000FFC00}
    assert set(out[20:].tolist()) == {20}


@pytest.mark.parametrize("op", ["min", "max"])
def test_reductions_of_floats(op):
    a = np.random.default_rng(0).standard_normal(32).astype("f4")
    a[5] = np.nan
    kept = np.delete(a, 5)
    pick = min if op == "min" else max

    plain = apply(f"redux.sync.{op}.f32 $d, $a, {FULL};", a, out="f4")
    absolute = apply(f"redux.sync.{op}.abs.f32 $d, $a, {FULL};", a, out="f4")
    nan = apply(f"redux.sync.{op}.NaN.f32 $d, $a, {FULL};", a, out="f4")

    assert set(plain.tolist()) == {pick(kept.tolist())}
    assert set(absolute.tolist()) == {pick(np.abs(kept).tolist())}
    assert np.isnan(nan).all()
