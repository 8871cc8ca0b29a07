"""mbarriers, named barriers and deadlock reports."""

import numpy as np
import pytest

from kernels_sm100.errors import BarrierError, BarrierOverrun, Deadlock, DivergenceError
from tests.kernels.emulator.snippet import run

WARP = "shr.u32 %r5, %r0, 5;\nand.b32 %r6, %r0, 31;\nsetp.eq.u32 %p0, %r6, 0;"
INIT = f"""
    {WARP}
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r7, COUNT;
    @%p1 mbarrier.init.shared.b64 [%r1], %r7;
    @%p1 mbarrier.init.shared.b64 [%r1+8], %r7;
    bar.sync 0;
"""


def init(count: int) -> str:
    return INIT.replace("COUNT", str(count))


def wait(place: str, parity: object, label: str) -> str:
    return f"""
    {label}:
        mbarrier.try_wait.parity.shared::cta.b64 %p20, [{place}], {parity};
        @!%p20 bra {label};
    """


HANDOVER = (
    init(1)
    + """
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra CONSUMER;
    mov.u32 %r10, 42;
    @%p1 st.shared.b32 [%r1+64], %r10;
    @%p1 mbarrier.arrive.shared.b64 _, [%r1];
    bra END;
CONSUMER:
"""
    + wait("%r1", 0, "W0")
    + """
    ld.shared.b32 %r11, [%r1+64];
    st.global.b32 [%d0], %r11;
END:
"""
)


@pytest.mark.parametrize("schedule", ["round_robin", "random", "lazy", "random_eager"])
def test_a_value_is_handed_over(schedule):
    out = np.zeros(1, "u4")

    run(HANDOVER, out, threads=64, schedule=schedule, seed=3)

    assert out[0] == 42


def test_a_missing_arrival_is_a_deadlock_with_a_report():
    body = HANDOVER.replace("@%p1 mbarrier.arrive.shared.b64 _, [%r1];", "")

    with pytest.raises(Deadlock) as caught:
        run(body, np.zeros(1, "u4"), threads=64)

    text = str(caught.value)
    assert "deadlock in 1 warps of 1 resident CTAs" in text
    assert "CTA (0, 0, 0) warp 1, PTX line" in text
    assert "waits for mbarrier: parity 0 of mbarrier at offset 0x400 of CTA rank 0" in text
    assert "phase 0, 1 of 1 arrivals missing, 0 bytes to come; arrived so far: nobody" in text


def test_the_report_names_source_lines():
    body = '.file 7 "/a/kernel.py"\n' + HANDOVER.replace("_, [%r1];", "_, [%r1+8];").replace(
        "CONSUMER:", "CONSUMER:\n.loc 7 99 1"
    )

    with pytest.raises(Deadlock, match=r"\(kernel.py:99\): waits for mbarrier"):
        run(body, np.zeros(1, "u4"), threads=64)


def test_expected_bytes_hold_a_phase():
    body = init(1) + "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 48;" + wait("%r1", 0, "W")

    with pytest.raises(Deadlock, match="0 of 1 arrivals missing, 48 bytes to come; arrived so far"):
        run(body)

    run(
        body.replace("48;", "48;\n@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 48;")
    )


def test_phases_alternate_and_states_name_them():
    out = np.zeros(4, "u8")

    run(
        init(32)
        + """
        mbarrier.arrive.shared.b64 %d20, [%r1];
        mbarrier.test_wait.shared.b64 %p3, [%r1], %d20;
        mbarrier.test_wait.parity.shared.b64 %p4, [%r1], 1;
        mbarrier.arrive.shared::cta.b64 %d21, [%r1];
        mbarrier.try_wait.shared.b64 %p5, [%r1], %d21;
        selp.b64 %d22, 1, 0, %p3;
        selp.b64 %d23, 1, 0, %p4;
        selp.b64 %d24, 1, 0, %p5;
        st.global.b64 [%d0], %d22;
        st.global.b64 [%d0+8], %d23;
        st.global.b64 [%d0+16], %d24;
        sub.u64 %d25, %d21, %d20;
        st.global.b64 [%d0+24], %d25;
        """,
        out,
    )

    assert out.tolist() == [1, 0, 1, 1]


def test_drop_lowers_what_later_phases_expect():
    run(
        init(2)
        + "@%p1 mbarrier.arrive_drop.shared.b64 _, [%r1];\n@%p1 mbarrier.arrive.shared.b64 _, [%r1];"
        + wait("%r1", 0, "W0")
        + "@%p1 mbarrier.arrive.shared.b64 _, [%r1];"
        + wait("%r1", 1, "W1")
    )


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (init(1) + "mbarrier.arrive.shared.b64 _, [%r1+16];", BarrierError, "not initialised"),
        (init(1) + "@%p1 mbarrier.inval.shared.b64 [%r1];\nmbarrier.arrive.shared.b64 _, [%r1];",
         BarrierError, "not initialised"),
        (init(0), BarrierError, "got 0, wanted 1 to"),
        (init(2) + "@%p1 mbarrier.arrive.shared.b64 _, [%r1], 3;", BarrierError, "more arrivals"),
        (init(1) + "and.b32 %r9, %r6, 8;\nadd.u32 %r9, %r9, %r1;" + wait("%r9", 0, "W"),
         DivergenceError, "mbarrier address that differs between lanes"),
        (init(1) + "and.b32 %r9, %r6, 1;" + wait("%r1", "%r9", "W"), DivergenceError, "parity or state"),
        ("bar.sync 16, 32;", BarrierError, "got barrier 16 of 32 threads"),
        ("bar.sync 1, 33;", BarrierError, "multiple of 32"),
    ],
)  # fmt: skip
def test_misuse(body, error, said):
    with pytest.raises(error) as caught:
        run(body)

    assert said in str(caught.value)


def test_a_waiter_that_is_overtaken_twice():
    """Warp 1 waits for phase 0, warp 0 goes on to phase 2 before it looks."""
    body = (
        init(1)
        + "setp.ne.u32 %p2, %r5, 0;\n@%p2 bra WAITER;\n"
        + "bar.sync 1, 64;\n" * 0
        + "mov.u32 %r20, 0;\nSPIN:\nadd.u32 %r20, %r20, 1;\nsetp.lt.u32 %p5, %r20, 6000;\n@%p5 bra SPIN;\n"
        + "@%p1 mbarrier.arrive.shared.b64 _, [%r1];\n" * 2
        + "bra END;\nWAITER:"
        + wait("%r1", 0, "W")
        + "END:"
    )

    with pytest.raises(BarrierOverrun, match="ran two phases ahead of a waiter"):
        run(body, threads=64)


def test_named_barriers_join_some_warps():
    out = np.zeros(4, "u4")

    run(
        f"""
        {WARP}
        setp.eq.u32 %p2, %r5, 3;
        @%p2 bra END;
        setp.eq.u32 %p3, %r5, 0;
        mul.lo.u32 %r10, %r5, 4;
        add.u32 %r10, %r10, %r1;
        add.u32 %r11, %r5, 10;
        @%p0 st.shared.b32 [%r10], %r11;
        @!%p3 bra READER;
        bar.arrive 2, 96;
        bra END;
    READER:
        bar.sync 2, 96;
        ld.shared.b32 %r12, [%r1];
        mad.wide.u32 %d10, %r5, 4, %d0;
        @%p0 st.global.b32 [%d10], %r12;
    END:
        """,
        out,
        threads=128,
    )

    assert out.tolist() == [0, 10, 10, 0]


def test_a_named_barrier_that_some_warp_misses():
    with pytest.raises(
        Deadlock, match="waits for barrier: barrier 3: 32 of 96 threads, from warp 0"
    ):
        run("bar.sync 3, 96;")


def test_too_many_threads_at_a_named_barrier():
    body = f"{WARP}\nsetp.eq.u32 %p2, %r5, 0;\n@%p2 bra FIRST;\nbar.sync 1, 64;\nbra END;\nFIRST:\nbar.arrive 1, 96;\nEND:"

    with pytest.raises(BarrierError, match="named barrier with two thread counts"):
        run(body, threads=96)


@pytest.mark.parametrize(("how", "wanted"), [("popc.u32", 43), ("and.pred", 0), ("or.pred", 1)])
def test_reductions_of_barriers(how, wanted):
    out = np.zeros(1, "u4")
    register = "%r9" if "popc" in how else "%p9"
    convert = "" if "popc" in how else "selp.b32 %r9, 1, 0, %p9;"

    run(
        f"setp.lt.u32 %p2, %r0, 43;\nbar.red.{how} {register}, 1, 64, %p2;\n{convert}\nst.global.b32 [%d0], %r9;",
        out,
        threads=64,
    )

    assert out[0] == wanted


def test_registers_are_handed_over():
    """512 threads hold 128 each; the second half can grow only when the first has shrunk."""
    body = f"""
        {WARP}
        setp.lt.u32 %p2, %r5, 8;
        @%p2 bra SMALL;
        setmaxnreg.inc.sync.aligned.u32 200;
        bra END;
    SMALL:
        setmaxnreg.dec.sync.aligned.u32 COUNT;
    END:
    """

    run(body.replace("COUNT", "56"), threads=512)
    with pytest.raises(
        Deadlock, match="waits for registers: 2304 registers, of which 256 are free"
    ):
        run(body.replace("COUNT", "64"), threads=512)


@pytest.mark.parametrize(
    "store",
    [
        "@%p1 st.shared.b32 [%r1+12], %r0;",
        "@%p1 st.shared.v4.b32 [%r1], {%r0, %r0, %r0, %r0};",
        "@%p1 cp.async.ca.shared.global [%r1+8], [%d0], 4;",
    ],
)
def test_stores_over_barriers(store):
    with pytest.raises(BarrierError, match="store over an mbarrier"):
        run(init(1) + store, np.zeros(4, "u4"))
    gone = "@%p1 mbarrier.inval.shared.b64 [%r1];\n@%p1 mbarrier.inval.shared.b64 [%r1+8];\n"
    run(init(1) + gone + store + "\ncp.async.wait_all;", np.zeros(4, "u4"))


def test_more_lanes_than_a_named_barrier_counts():
    body = f"{WARP}\nsetp.ge.u32 %p2, %r6, 20;\n@%p2 bra END;\nbarrier.arrive 1, 32;\nEND:"

    with pytest.raises(BarrierError, match=r"got 40 threads: warp 0 .*, warp 1 .*, wanted 32"):
        run(body, threads=64)
