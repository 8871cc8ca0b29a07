"""Lanes that part and meet again."""

import numpy as np
import pytest

from kernels_sm100.emulator.lanes.poison import poison
from kernels_sm100.errors import (
    Deadlock,
    DivergenceError,
    MemoryFault,
    Trap,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import run

STORE = "mad.wide.u32 %d10, %r0, 4, %d0;\nst.global.b32 [%d10], %r2;"


def test_lanes_loop_different_numbers_of_times():
    out = np.zeros(32, "u4")

    run(
        f"""
        mov.u32 %r2, 0;
        mov.u32 %r3, 0;
    LOOP:
        add.u32 %r2, %r2, %r3;
        add.u32 %r3, %r3, 1;
        setp.le.u32 %p1, %r3, %r0;
        @%p1 bra LOOP;
        {STORE}
        """,
        out,
    )

    assert out.tolist() == [i * (i + 1) // 2 for i in range(32)]


def test_a_spinning_lane_lets_the_others_arrive():
    out = np.zeros(33, "u4")

    run(
        f"""
        mov.u32 %r2, 5;
        setp.eq.u32 %p1, %r0, 0;
        @!%p1 bra OTHERS;
    SPIN:
        ld.relaxed.gpu.global.b32 %r2, [%d0+128];
        setp.eq.u32 %p2, %r2, 0;
        @%p2 bra SPIN;
        bra JOIN;
    OTHERS:
        mov.u32 %r4, 9;
        setp.eq.u32 %p3, %r0, 7;
        @%p3 st.relaxed.gpu.global.b32 [%d0+128], %r4;
    JOIN:
        bar.warp.sync 0xffffffff;
        shfl.sync.idx.b32 %r2, %r2, 0, 31, 0xffffffff;
        {STORE}
        """,
        out,
    )

    assert set(out[:32].tolist()) == {9}


def test_lanes_may_exit_early():
    out = np.zeros(32, "u4")

    run(f"mov.u32 %r2, 1;\nsetp.lt.u32 %p1, %r0, 5;\n@%p1 exit;\nbar.warp.sync -1;\n{STORE}", out)

    assert out.tolist() == [0] * 5 + [1] * 27


def test_predicated_instructions_keep_other_lanes():
    out = np.zeros(32, "u4")

    run(
        f"""
        mov.u32 %r2, 100;
        setp.lt.u32 %p1, %r0, 3;
        @%p1 add.u32 %r2, %r2, %r0;
        @!%p1 mov.u32 %r2, 7;
        {STORE}
        """,
        out,
    )

    assert out.tolist() == [100, 101, 102] + [7] * 29


def test_partial_warps_have_fewer_lanes():
    out = np.zeros(48, "u4")

    run(f"vote.sync.ballot.b32 %r2, %p9, -1;\n{STORE}".replace("%p9", "%p1").replace(
        "vote", "setp.ge.u32 %p1, %r0, 0;\nvote"), out, threads=40)  # fmt: skip

    assert out.tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8 + [0] * 8


def test_lanes_that_never_meet():
    with pytest.raises(Deadlock, match="waits for lanes of its warp that went another way"):
        run(
            """
            setp.lt.u32 %p1, %r0, 5;
            @%p1 bra A;
            bar.warp.sync 0xffffffff;
            bra END;
        A:
            bar.sync 1, 64;
        END:
            """
        )


def test_registers_that_nobody_wrote_are_refused_or_poison():
    out = np.zeros(32, "u4")
    body = """
        setp.lt.u32 %p1, %r0, 16;
        @%p1 mov.u32 %r2, 5;
        mad.wide.u32 %d9, %r0, 4, %d0;
        VALUE
        st.global.b32 [%d9], %r4;
    """

    with pytest.raises(UninitialisedRead, match=r"read before it is written.* PTX line .*got %r3"):
        run(body.replace("VALUE", "add.u32 %r4, %r3, 1;"), out, strict_registers=True)
    report = run(body.replace("VALUE", "add.u32 %r4, %r3, 1;\nmov.u32 %r5, %r3;"), out)
    assert report.warnings == {"registers read before they are written": 1}  # of one warp
    assert np.isnan((out - 1).view("f4")).all()

    # Lanes that a predicate left out hold poison too, which no warning tells: it is a NaN.
    report = run(body.replace("VALUE", "mov.u32 %r4, %r2;"), out, strict_registers=True)
    assert not report.warnings
    assert (out[:16] == 5).all()
    assert np.isnan(out[16:].view("f4")).all()


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "bf16"])
def test_poison_is_no_number(kind):
    bits = poison(np.dtype("u2" if kind == "bf16" else f"u{kind[1]}"))
    value = (bits.astype("u4") << 16).view("f4") if kind == "bf16" else bits.view(kind)

    assert np.isnan(value).all()
    assert not poison(np.dtype(bool)).any()


def test_poison_is_no_address():
    with pytest.raises(MemoryFault, match="0x7fff7fff7fff7fff"):
        run("ld.global.b32 %r2, [%d3];")


def test_trap():
    with pytest.raises(Trap, match="CTA \\(0, 0, 0\\) warp 0 at PTX line"):
        run("setp.eq.u32 %p1, %r0, 3;\n@%p1 trap;")


def test_no_trap_without_lanes():
    run("setp.eq.u32 %p1, %r0, 77;\n@%p1 trap;")


@pytest.mark.parametrize(
    "instruction", ["shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;", "bar.arrive 1, 64;"]
)
def test_predicates_of_warp_wide_instructions(instruction):
    body = f"mov.u32 %r2, 5;\nsetp.CONDITION %p1, %r0, 40;\n@%p1 {instruction}"

    run(body.replace("CONDITION", "lt.u32"))
    run(body.replace("CONDITION", "ge.u32"))
    with pytest.raises(DivergenceError, match="got 7 lanes, wanted all lanes or none"):
        run(body.replace("CONDITION", "lt.u32").replace("40", "7"))


def test_a_predicate_that_does_not_hold_keeps_the_register():
    out = np.zeros(32, "u4")

    run(
        f"mov.u32 %r2, 5;\nsetp.ge.u32 %p1, %r0, 40;\n@%p1 shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;\n{STORE}",
        out,
    )

    assert set(out.tolist()) == {5}


def test_a_branch_over_a_named_arrival_waits_for_the_warp():
    out = np.zeros(32, "u4")

    run(
        f"""
        mov.u32 %r2, 1;
        setp.lt.u32 %p1, %r0, 9;
        @%p1 bra LOW;
        mov.u32 %r2, 2;
    LOW:
        bar.arrive 1, 64;
        {STORE}
        """,
        out,
    )

    assert out.tolist() == [1] * 9 + [2] * 23
