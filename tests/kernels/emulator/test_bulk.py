"""Bulk copies and reductions, exchange between CTAs, and st.async."""

import numpy as np
import pytest

from kernels_sm100.errors import (
    Deadlock,
    EarlyExit,
    MemoryFault,
    MisalignedAccess,
    MissingFence,
    RaceError,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import aligned, run

SCHEDULES = ["round_robin", "lazy", "random"]


BARRIER = """
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r3, 1;
    @%p1 mbarrier.init.shared.b64 [%r1+8192], %r3;
    @%p1 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""


WAIT = "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8192], 0;\n@!%p2 bra W;"


LOAD = """
    mov.u32 %r4, 512;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+8192], %r4;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r4, [%r1+8192];
"""


OUT = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8];
    mad.wide.u32 %d21, %r0, 16, %d0;
    st.global.v4.b32 [%d21], {%r20, %r21, %r22, %r23};
"""


def numbers(count: int = 128, dtype: type = np.float32) -> np.ndarray:
    result = aligned((count,), dtype)
    result[:] = np.random.default_rng(0).integers(0, 100, count)
    return result


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_global_to_shared(schedule):
    a, out = numbers(), aligned((128,), np.float32)

    run(BARRIER + LOAD + WAIT + OUT, out, a, schedule=schedule)

    np.testing.assert_array_equal(out, a)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("[%r1], [%d1]", "[%r1+8], [%d1]", MisalignedAccess, "bulk copy (destination)"),
        ("[%d1], %r4", "[%d1+4], %r4", MisalignedAccess, "bulk copy (source)"),
        ("mov.u32 %r4, 512", "mov.u32 %r4, 500", MisalignedAccess, "size of a bulk copy"),
        ("[%d1], %r4", "[%d1+16], %r4", MemoryFault, "global memory bulk load out of bounds"),
        (
            "[%r1], [%d1]",
            "[%r1+16000], [%d1]",
            MemoryFault,
            "shared memory bulk load out of bounds",
        ),
        (
            "@%p1 fence.mbarrier_init.release.cluster;",
            "",
            MissingFence,
            "initialisation is not visible",
        ),
        (WAIT, "", RaceError, "read of a write, shared memory at 0x400"),
        ("_, [%r1+8192], %r4", "_, [%r1+8192], 496", Deadlock, "-16 bytes to come"),
    ],
)
def test_faults_of_loads(old, new, error, said):
    body = (BARRIER + LOAD + WAIT + OUT).replace(old, new)

    with pytest.raises(error) as caught:
        run(body, aligned((128,), np.float32), numbers())

    assert said in str(caught.value)


STORE = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d21, %r0, 16, %d1;
    ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%d21];
    st.shared.v4.b32 [%r8], {%r20, %r21, %r22, %r23};
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r4, 512;
    @%p1 FORM [%d0], [%r1], %r4;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group.read 0;
    bar.warp.sync -1;
    st.shared.v4.b32 [%r8], {%r0, %r0, %r0, %r0};
"""


COPY = "cp.async.bulk.global.shared::cta.bulk_group"


ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_to_global(schedule):
    a, out = numbers(), aligned((128,), np.float32)

    run(STORE.replace("FORM", COPY), out, a, schedule=schedule)

    np.testing.assert_array_equal(out, a)


@pytest.mark.parametrize(
    ("form", "dtype", "kind"),
    [
        (f"{ADD}.f32", np.float32, "f32"),
        (f"{ADD}.u32", np.uint32, "u32"),
        (f"{ADD}.noftz.f16", np.float16, "f16"),
        (ADD.replace("add", "max") + ".s32", np.int32, "s32"),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reductions(form, dtype, kind, schedule):
    size = 512 // np.dtype(dtype).itemsize
    a, out = numbers(size, dtype), numbers(size, dtype)
    out[:] = np.roll(out, 7)
    wanted = np.maximum(out, a) if "max" in form else out + a

    run(STORE.replace("FORM", form), out, a, schedule=schedule)

    np.testing.assert_array_equal(out, wanted)
    assert kind in form


def test_sums_of_bf16_round_to_nearest_even():
    a, out = aligned((256,), np.uint16), aligned((256,), np.uint16)
    values = np.random.default_rng(0).standard_normal((2, 256)).astype("f4")
    a[:], out[:] = values.view("u4") >> 16
    real = [(x.astype("u4") << 16).view("f4").astype("f8") for x in (a, out)]

    run(STORE.replace("FORM", f"{ADD}.noftz.bf16"), out, a)

    got = (out.astype("u4") << 16).view("f4").astype("f8")
    wanted = real[0] + real[1]
    assert (np.abs(got - wanted) <= 2.0**-8 * np.abs(wanted) + 2.0**-130).all()


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("fence.proxy.async.shared::cta;", "", MissingFence, "missing fence.proxy.async"),
        ("@%p1 cp.async.bulk.wait_group.read 0;", "", RaceError, "write over a read"),
        ("wait_group.read 0", "wait_group.read 1", RaceError, "write over a read"),
        ("bar.warp.sync -1;\n    setp", "setp", None, ""),
        (
            "mov.u32 %r4, 512",
            "mov.u32 %r4, 1024",
            MemoryFault,
            "global memory bulk store out of bounds",
        ),
        (
            "[%d0], [%r1], %r4",
            "[%d0], [%r1+512], %r4",
            UninitialisedRead,
            "bulk store of shared memory",
        ),
        (
            "@%p1 cp.async.bulk.wait_group",
            "@!%p1 cp.async.bulk.wait_group",
            RaceError,
            "write over a read",
        ),
    ],
)
def test_faults_of_stores(old, new, error, said):
    body = STORE.replace("FORM", COPY)
    assert old in body
    body = body.replace(old, new)
    if error is None:  # one warp is one actor: what its lanes do to each other is not seen
        run(body, aligned((128,), np.float32), numbers())
        return

    with pytest.raises(error) as caught:
        run(body, aligned((128,), np.float32), numbers())

    assert said in str(caught.value)


ORDER = """
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r9, 0f3F800000;
    mad.lo.u32 %r8, %r0, 16, %r1;
    st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9};
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
SPIN:
    @%p1 ld.acquire.gpu.global.b32 %r3, [%d1];
    @!%p1 mov.u32 %r3, %r2;
    setp.ne.u32 %p2, %r3, %r2;
    @%p2 bra SPIN;
    bar.warp.sync -1;
    mov.u32 %r4, 512;
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r1], %r4;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.WAIT 0;
    mov.u32 %r5, 1;
    @%p1 red.release.gpu.global.add.u32 [%d1], %r5;
    @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(("wait", "ordered"), [("wait_group", True), ("wait_group.read", False)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reductions_in_turn_are_deterministic_only_behind_a_full_wait(wait, ordered, schedule):
    total, flag = aligned((128,), np.float32), np.zeros(1, "u4")

    report = run(ORDER.replace("WAIT", wait), total, flag, grid=3, schedule=schedule)

    assert set(total.tolist()) == {3.0}
    assert (report.counts["unordered_bulk_adds"] == 0) == ordered


EXCHANGE = BARRIER + """
    mov.u32 %r2, %cluster_ctarank;
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.lo.u32 %r9, %r2, 100, %r0;
    st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9};
    mov.u32 %r4, 512;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+8192], %r4;
    fence.proxy.async.shared::cta;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    xor.b32 %r5, %r2, 1;
    mapa.shared::cluster.u32 %r6, %r1, %r5;
    @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6+1024], [%r1], %r4, [%r6+8192];
""" + WAIT + """
    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8+1024];
    mad.wide.u32 %d21, %r2, 512, %d0;
    mad.wide.u32 %d21, %r0, 16, %d21;
    st.global.v4.b32 [%d21], {%r20, %r21, %r22, %r23};
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_exchange_shared_memory(schedule):
    out = aligned((2, 32, 4), np.uint32)

    run(EXCHANGE, out, grid=2, cluster=2, schedule=schedule)

    np.testing.assert_array_equal(out[:, :, 0], [100 + np.arange(32), np.arange(32)])


def test_stores_with_a_barrier_of_another_cta():
    out = np.zeros(2, "u4")
    start, end = EXCHANGE.index("@%p1 cp.async.bulk.shared::cluster"), EXCHANGE.index("W:\n")
    body = EXCHANGE[:start] + (
        "@%p1 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32"
        " [%r6+1024], {%r2, %r9}, [%r6+8192];\n"
    ) + EXCHANGE[end:].replace("ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8+1024];", """
        ld.shared.v2.b32 {%r20, %r21}, [%r1+1024];
        mad.wide.u32 %d21, %r2, 4, %d0;
        st.global.b32 [%d21], %r20;""")  # fmt: skip
    body = body.replace("mov.u32 %r4, 512", "mov.u32 %r4, 8")
    tail = body.index("mad.wide.u32 %d21, %r2, 512")
    body = body[:tail] + body[body.index("barrier.cluster.arrive", tail) :]

    run(body, out, grid=2, cluster=2)

    assert out.tolist() == [1, 0]


def test_groups_belong_to_the_lane_that_commits():
    body = STORE.replace("FORM", COPY).replace(
        "setp.eq.u32 %p1, %r0, 0;", "setp.eq.u32 %p1, %r0, 5;"
    )
    a, out = numbers(), aligned((128,), np.float32)

    run(body, out, a, schedule="lazy")
    np.testing.assert_array_equal(out, a)

    other = body.replace(
        "@%p1 cp.async.bulk.wait", "setp.eq.u32 %p1, %r0, 6;\n@%p1 cp.async.bulk.wait"
    )
    with pytest.raises(RaceError, match="write over a read"):
        run(other, out, a)


@pytest.mark.parametrize(
    "old",
    ["@%p1 cp.async.bulk.wait_group.read 0;", "@%p1 cp.async.bulk.commit_group;"],
)
def test_exit_before_a_store_has_read_its_source(old):
    body = STORE.replace("FORM", COPY).replace(old, "")
    body = body[: body.rindex("bar.warp.sync")]  # nothing overwrites the source

    for schedule in SCHEDULES:
        out = aligned((128,), np.float32)
        with pytest.raises(EarlyExit) as caught:
            run(body, out, numbers(), schedule=schedule)
        assert "bulk stores may still read shared memory in CTA (0, 0, 0) warp 0 lane 0" in str(
            caught.value
        )
        report = run(body, out, numbers(), schedule=schedule, strict_exit=False)
        np.testing.assert_array_equal(out, numbers())
    assert report.warnings == {"exit of a warp whose bulk stores may still read shared memory": 1}
    assert not run(STORE.replace("FORM", COPY), aligned((128,), np.float32), numbers()).warnings


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("left", "enough"), [(0, True), (1, True), (2, False)])
def test_groups_without_stores_count(left, enough, schedule):
    """A store, and an empty group behind it: waiting for all but one group waits for the store."""
    wait = "@%p1 cp.async.bulk.wait_group.read 0;"
    body = STORE.replace("FORM", COPY).replace(
        wait, f"@%p1 cp.async.bulk.commit_group;\n{wait.replace('0', str(left))}"
    )
    body += "@%p1 cp.async.bulk.wait_group.read 0;"
    out = aligned((128,), np.float32)

    if enough:
        run(body, out, numbers(), schedule=schedule)
        np.testing.assert_array_equal(out, numbers())
    else:
        with pytest.raises(RaceError, match="write over a read"):
            run(body, out, numbers(), schedule=schedule)


def test_a_fence_does_not_cover_later_stores():
    store = "st.shared.v4.b32 [%r8], {%r20, %r21, %r22, %r23};"
    fence = "fence.proxy.async.shared::cta;"
    body = STORE.replace("FORM", COPY).replace(f"{store}\n    {fence}", f"{fence}\n    {store}")
    assert body.index(fence) < body.index(store)

    with pytest.raises(MissingFence, match=r"missing fence\.proxy\.async"):
        run(body, aligned((128,), np.float32), numbers())


SPACES = {"": (True, True), ".global": (False, True), ".shared::cta": (True, False),
          ".shared::cluster": (True, False)}  # fmt: skip
RESTRICTED = {
    "::generic.release.sync_restrict::shared::cta.cluster": (True, False),
    "::generic.acquire.sync_restrict::shared::cluster.cluster": (True, False),
}


@pytest.mark.parametrize("space", [*SPACES, *RESTRICTED])
def test_a_fence_covers_its_state_space(space):
    """A bulk store reads shared memory, a bulk load global memory: each needs its own fence."""
    shared, device = (SPACES | RESTRICTED)[space]
    fence = f"fence.proxy.async{space};"
    store = STORE.replace("FORM", COPY).replace("fence.proxy.async.shared::cta;", fence)
    load = "mad.wide.u32 %d22, %r0, 16, %d1;\nst.global.v4.b32 [%d22], {%r0, %r0, %r0, %r0};\n"
    load += fence + BARRIER + LOAD + WAIT + OUT

    for body, covered in ((store, shared), (load, device)):
        out = aligned((128,), np.float32)
        if covered:
            run(body, out, numbers())
            continue
        with pytest.raises(MissingFence, match=r"missing fence\.proxy\.async"):
            run(body, out, numbers())


@pytest.mark.parametrize(("space", "covered"), [("::cta", False), ("::cluster", True)])
def test_a_fence_of_a_ctas_own_memory_covers_no_other(space, covered):
    """Rank 1 writes into rank 0's shared memory, which rank 0 then copies out in bulk."""
    body = """
        mov.u32 %r2, %cluster_ctarank;
        mad.lo.u32 %r8, %r0, 16, %r1;
        mov.u32 %r3, 0;
        mapa.shared::cluster.u32 %r9, %r8, %r3;
        setp.eq.u32 %p1, %r2, 1;
        @%p1 st.shared::cluster.v4.b32 [%r9], {%r0, %r0, %r0, %r0};
        fence.proxy.async.shared::cluster;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        @%p1 bra END;
        setp.eq.u32 %p2, %r0, 0;
        mov.u32 %r4, 512;
        @%p2 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], %r4;
        @%p2 cp.async.bulk.commit_group;
        @%p2 cp.async.bulk.wait_group 0;
    END:
    """.replace("::cluster;\n        barrier", f"{space};\n        barrier")
    out = aligned((128,), np.uint32)

    if covered:
        run(body, out, grid=2, cluster=2)
        np.testing.assert_array_equal(out, np.repeat(np.arange(32), 4))
    else:
        with pytest.raises(MissingFence):
            run(body, out, grid=2, cluster=2)
