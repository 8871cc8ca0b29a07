"""A ring of two stages that wraps three times, and what each missing piece of it is caught by."""

import numpy as np
import pytest

from kernels_sm100.errors import (
    BarrierError,
    Deadlock,
    EmulatorError,
    MissingFence,
    RaceError,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import aligned, run

TILES, STAGES = 6, 2
# Stage s: 512 bytes at 512 s; full barriers at 8192 + 8 s, empty ones at 8256 + 8 s.
RING = """
    shr.u32 %r5, %r0, 5;
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r3, 1;
    mov.u32 %r4, 512;
    @%p1 mbarrier.init.shared.b64 [%r1+8192], %r3;
    @%p1 mbarrier.init.shared.b64 [%r1+8200], %r3;
    @%p1 mbarrier.init.shared.b64 [%r1+8256], %r3;
    @%p1 mbarrier.init.shared.b64 [%r1+8264], %r3;
    @%p1 fence.mbarrier_init.release.cluster; // init fence
    bar.sync 0; // after init
    mov.u32 %r10, 0;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra CONSUMER;
    @!%p1 bra END;
PRODUCER:
    and.b32 %r11, %r10, 1;
    shr.u32 %r12, %r10, 1;
    and.b32 %r12, %r12, 1;
    xor.b32 %r13, %r12, 1;
    mad.lo.u32 %r14, %r11, 8, %r1;
    mad.lo.u32 %r15, %r11, 512, %r1;
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r14+8256], %r13; // wait empty
    @!%p3 bra EMPTY; // loop empty
    mbarrier.arrive.expect_tx.shared.b64 _, [%r14+8192], %r4; // expect
    mul.wide.u32 %d10, %r10, 512;
    add.s64 %d10, %d10, %d1;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r15], [%d10], %r4, [%r14+8192]; // copy
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p4, %r10, 6;
    @%p4 bra PRODUCER;
    bra END;
CONSUMER:
    and.b32 %r6, %r0, 31;
    and.b32 %r11, %r10, 1;
    shr.u32 %r12, %r10, 1;
    and.b32 %r12, %r12, 1;
    mad.lo.u32 %r14, %r11, 8, %r1;
    mad.lo.u32 %r15, %r11, 512, %r1;
    mad.lo.u32 %r15, %r6, 16, %r15;
FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r14+8192], %r12; // wait full
    @!%p3 bra FULL; // loop full
    ld.shared.v4.f32 {%r20, %r21, %r22, %r23}, [%r15];
    mul.wide.u32 %d10, %r10, 512;
    mad.wide.u32 %d10, %r6, 16, %d10;
    add.s64 %d10, %d10, %d0;
    st.global.v4.f32 [%d10], {%r20, %r21, %r22, %r23};
    bar.warp.sync -1;
    setp.eq.u32 %p5, %r6, 0;
    @%p5 mbarrier.arrive.shared.b64 _, [%r14+8256]; // release
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p4, %r10, 6;
    @%p4 bra CONSUMER;
END:
"""


def go(body: str = RING, **options) -> np.ndarray:
    source, out = aligned((TILES, 128), np.float32), aligned((TILES, 128), np.float32)
    source[:] = np.random.default_rng(0).standard_normal(source.shape)
    run(body, out, source, threads=64, **options)
    return out - source


def without(mark: str) -> str:
    """The ring without the instruction on the line that carries a mark; a wait succeeds at once."""
    lines = RING.split("\n")
    (at,) = (i for i, line in enumerate(lines) if line.endswith(f"// {mark}"))
    lines[at] = "setp.eq.u32 %p3, 0, 0;" if "try_wait" in lines[at] else ""
    return "\n".join(lines)


@pytest.mark.parametrize("schedule", ["round_robin", "lazy", "random", "random_eager"])
@pytest.mark.parametrize("seed", range(4))
def test_the_ring_is_right_in_every_schedule(schedule, seed):
    assert not go(schedule=schedule, seed=seed).any()


@pytest.mark.parametrize(
    ("mark", "errors"),
    [
        ("init fence", MissingFence),
        ("wait empty", (RaceError, BarrierError)),
        ("wait full", (RaceError, UninitialisedRead)),
        ("expect", Deadlock),
        ("copy", Deadlock),
        ("release", Deadlock),
    ],
)
@pytest.mark.parametrize("schedule", ["round_robin", "random_eager"])
def test_each_missing_piece_is_found(mark, errors, schedule):
    with pytest.raises(errors):
        go(without(mark), schedule=schedule)


def found(body: str, **options) -> bool:
    """Whether a run stops with an error, or gives wrong values."""
    try:
        return bool(go(body, **options).any())
    except EmulatorError:
        return True


def test_values_alone_hide_a_missing_wait():
    """Values may be right by luck: why there are other checks."""
    body = without("wait empty")

    assert found(body, races=True)
    assert found(body, races=False, schedule="lazy")


@pytest.mark.parametrize("mark", ["loop empty", "loop full"])
def test_a_try_wait_without_its_loop(mark):
    assert not found(without(mark), schedule="round_robin")  # there a try_wait never gives up
    assert any(found(without(mark), schedule="random_eager", seed=seed) for seed in range(8))


def test_wrong_parity_and_wrong_bytes():
    with pytest.raises((Deadlock, BarrierError, RaceError)):
        go(RING.replace("xor.b32 %r13, %r12, 1;", "mov.b32 %r13, %r12;"))
    with pytest.raises(Deadlock, match="16 bytes to come"):
        go(RING.replace("mov.u32 %r4, 512;", "mov.u32 %r4, 512;\nmov.u32 %r7, 528;").replace(
            "[%r14+8192], %r4; // expect", "[%r14+8192], %r7; // expect"))  # fmt: skip


def test_stages_that_overlap():
    with pytest.raises(RaceError, match="race: write over a"):
        go(
            RING.replace("mad.lo.u32 %r15, %r11, 512, %r1;", "mad.lo.u32 %r15, %r11, 256, %r1;"),
            schedule="random_eager",
        )


TWO_WARPS = """
    shr.u32 %r5, %r0, 5;
    setp.eq.u32 %p1, %r5, 0;
    and.b32 %r6, %r0, 31;
    mad.lo.u32 %r8, %r6, 4, %r1;
    @%p1 st.shared.b32 [%r8], %r0;
    bar.sync 0;
    FIRST
    BARRIER
    SECOND
"""


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("@%p1 st.shared.b32 [%r8], %r0;", "@!%p1 ld.shared.b32 %r9, [%r8];", "read of a write"),
        ("@%p1 st.shared.b32 [%r8], %r0;", "@!%p1 st.shared.b32 [%r8], %r0;", "write over a write"),
        ("@%p1 ld.shared.b32 %r9, [%r8];", "@!%p1 st.shared.b32 [%r8], %r0;", "write over a read"),
    ],
)
def test_generic_accesses_of_two_warps(first, second, said):
    body = TWO_WARPS.replace("FIRST", first).replace("SECOND", second)

    run(body.replace("BARRIER", "bar.sync 0;"), threads=64)
    seen = set()
    for seed in range(6):
        with pytest.raises(RaceError) as caught:
            run(body.replace("BARRIER", ""), threads=64, schedule="random_eager", seed=seed)
        seen.add(str(caught.value).split(" in ")[0])
    assert f"race: {said}, shared memory at 0x400" in seen


def test_neighbouring_words_are_not_confused():
    run(
        "mad.lo.u32 %r8, %r0, 4, %r1;\nst.shared.b32 [%r8], %r0;\nld.shared.b32 %r9, [%r8];",
        threads=64,
    )


def test_atomics_on_shared_memory_are_no_race():
    out = np.zeros(1, "u4")

    run(
        """
        setp.eq.u32 %p1, %r0, 0;
        mov.u32 %r2, 0;
        @%p1 st.shared.b32 [%r1], %r2;
        bar.sync 0;
        mov.u32 %r2, 1;
        atom.shared.add.u32 %r3, [%r1], %r2;
        bar.sync 0;
        ld.shared.b32 %r4, [%r1];
        @%p1 st.global.b32 [%d0], %r4;
        """,
        out,
        threads=128,
    )

    assert out[0] == 128


@pytest.mark.parametrize("place", ["shared.b32 [%r1]", "global.b32 [%d0]"])
def test_lanes_of_one_store_that_disagree(place):
    with pytest.raises(RaceError, match="lanes of one store write different values to one place"):
        run(f"st.{place}, %r0;", np.zeros(1, "u4"))
    run(f"mov.u32 %r2, 7;\nst.{place}, %r2;", np.zeros(1, "u4"))
