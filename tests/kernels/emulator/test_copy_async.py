"""cp.async: groups of a thread, and arrivals at mbarriers."""

import numpy as np
import pytest

from kernels_sm100.errors import (
    BarrierError,
    MemoryFault,
    MisalignedAccess,
    MissingFence,
    RaceError,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import aligned, run
from tests.kernels.emulator.test_bulk import BARRIER, SCHEDULES, WAIT, numbers

ASYNC = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d20, %r0, 16, %d1;
    cp.async.cg.shared.global.L2::128B [%r8], [%d20], 16;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r8+512], [%d20], 16, TAKEN;
    cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.b32 %r9, [%r8+4];
    cp.async.wait_all;
    ld.shared.b32 %r10, [%r8+516];
    mad.wide.u32 %d21, %r0, 8, %d0;
    st.global.v2.b32 [%d21], {%r9, %r10};
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("taken", "kept"), [("16", 1), ("0", 0), ("4", 0)])
def test_copies_in_groups(schedule, taken, kept):
    a, out = numbers(), aligned((32, 2), np.float32)

    report = run(ASYNC.replace("TAKEN", taken), out, a, schedule=schedule)

    np.testing.assert_array_equal(out, np.stack([a[1::4], a[1::4] * kept], axis=1))
    assert report.counts["cp_async_bytes"] == 32 * (16 + int(taken))


@pytest.mark.parametrize("wait", ["cp.async.wait_group 1;", "cp.async.wait_all;"])
def test_reading_a_copy_without_its_wait(wait):
    body = ASYNC.replace("TAKEN", "16").replace(wait, "")

    with pytest.raises(RaceError, match=r"cp.async of warp 0"):
        run(body, aligned((32, 2), np.float32), numbers())
    with pytest.raises(UninitialisedRead):
        run(body, aligned((32, 2), np.float32), numbers(), schedule="lazy", races=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_arrive_at_a_barrier(schedule):
    a, out = numbers(), aligned((32,), np.float32)
    body = (
        BARRIER.replace("mov.u32 %r3, 1;", "mov.u32 %r3, 32;")
        + """
        mad.lo.u32 %r8, %r0, 4, %r1;
        mad.wide.u32 %d20, %r0, 4, %d1;
        cp.async.ca.shared.global [%r8], [%d20], 4;
        cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1+8192];
        """
        + WAIT
        + "mad.wide.u32 %d21, %r0, 4, %d0;\nld.shared.b32 %r9, [%r8];\nst.global.b32 [%d21], %r9;"
    )

    run(body, out, a, schedule=schedule)

    np.testing.assert_array_equal(out, a[:32])


BY_BARRIER = (
    BARRIER.replace("mov.u32 %r3, 1;", "mov.u32 %r3, 32;")
    + """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d20, %r0, 16, %d1;
    cp.async.cg.shared.global [%r8], [%d20], 16;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1+8192];
    """
    + WAIT
)
BY_GROUP = """
    setp.eq.u32 %p1, %r0, 0;
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d20, %r0, 16, %d1;
    cp.async.cg.shared.global [%r8], [%d20], 16;
    cp.async.wait_all;
"""
STORE = """
    FENCE
    bar.warp.sync -1;
    mov.u32 %r4, 512;
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], %r4;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("copy", [BY_BARRIER, BY_GROUP])
def test_copies_are_generic_writes_to_the_async_proxy(copy):
    a, out = numbers(), aligned((128,), np.float32)

    run(copy + STORE.replace("FENCE", "fence.proxy.async.shared::cta;"), out, a)
    np.testing.assert_array_equal(out, a)
    with pytest.raises(MissingFence, match=r"missing fence\.proxy\.async"):
        run(copy + STORE.replace("FENCE", ""), out, a)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups_without_copies_count(schedule):
    body = ASYNC.replace("TAKEN", "16").replace(
        "cp.async.wait_all;", "cp.async.commit_group;\ncp.async.wait_group 1;"
    )
    a, out = numbers(), aligned((32, 2), np.float32)

    run(body, out, a, schedule=schedule)

    np.testing.assert_array_equal(out, np.stack([a[1::4], a[1::4]], axis=1))


LANES = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d20, %r0, 16, %d1;
    setp.ge.u32 %p3, %r0, 20;
    @%p3 mad.wide.u32 %d20, %r0, 16, %d2;
    setp.ge.u32 %p4, %r0, 28;
    selp.b32 %r5, 4, 16, %p4;
    cp.async.cg.shared.global [%r8], [%d20], 16, %r5;
    cp.async.wait_all;
    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8];
    mad.wide.u32 %d21, %r0, 16, %d0;
    st.global.v4.b32 [%d21], {%r20, %r21, %r22, %r23};
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_that_copy_from_several_allocations(schedule):
    a, b, out = numbers(), numbers(), aligned((128,), np.float32)
    b += 1000

    run(LANES, out, a, b, schedule=schedule)

    wanted = np.concatenate([a[:80], b[80:]])
    wanted[112:].reshape(4, 4)[:, 1:] = 0  # four bytes of these, then zeros
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("[%r8], [%d20], 16, %r5", "[%r8], [%d20+4], 16, %r5", MisalignedAccess, "cp.async"),
        ("[%r8], [%d20], 16, %r5", "[%r8+4], [%d20], 16, %r5", MisalignedAccess, "cp.async"),
        ("[%d20], 16, %r5", "[%d20+16], 16, %r5", MemoryFault, "cp.async out of bounds"),
        ("mad.lo.u32 %r8, %r0, 16", "mad.lo.u32 %r8, %r0, 1024", MemoryFault, "shared memory"),
    ],
)
def test_faults_of_one_lane(old, new, error, said):
    assert old in LANES
    with pytest.raises(error) as caught:
        run(LANES.replace(old, new), aligned((128,), np.float32), numbers(), numbers())

    assert said in str(caught.value)


def test_a_copy_over_a_barrier():
    body = BARRIER + LANES.replace("mad.lo.u32 %r8, %r0, 16, %r1;", "mad.lo.u32 %r8, %r0, 16, %r1;"
        "\nadd.u32 %r8, %r8, 8064;")  # fmt: skip

    with pytest.raises(BarrierError, match="store over an mbarrier"):
        run(body, aligned((128,), np.float32), numbers(), numbers())
