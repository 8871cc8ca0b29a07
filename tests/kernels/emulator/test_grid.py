"""Several CTAs: clusters, residency, flags in global memory, schedules."""

import numpy as np
import pytest

from kernels_sm100.errors import BarrierError, Deadlock, MissingFence, RaceError
from tests.kernels.emulator.snippet import run

SCHEDULES = ["round_robin", "random", "lazy", "random_eager"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_cta_runs_once(schedule):
    out = np.zeros(64, "u4")

    report = run(
        "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %nctaid.x;\nadd.u32 %r3, %r3, %r2;\n"
        "mad.wide.u32 %d10, %r2, 4, %d0;\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 red.global.add.u32 [%d10], %r3;",
        out,
        grid=64,
        ctas_resident=5,
        schedule=schedule,
    )  # fmt: skip

    assert out.tolist() == [64 + i for i in range(64)]
    assert report.ctas == 64


CHAIN = """
    mov.u32 %r2, %ctaid.x;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra JOIN;
SPIN:
    ld.ACQUIRE.gpu.global.b32 %r3, [%d0];
    setp.ne.u32 %p2, %r3, %r2;
    @%p2 bra SPIN;
JOIN:
    bar.sync 0;
    mad.wide.u32 %d10, %r0, 4, %d1;
    ld.global.b32 %r4, [%d10];
    mul.lo.u32 %r4, %r4, 3;
    add.u32 %r4, %r4, %r2;
    st.global.b32 [%d10], %r4;
    bar.sync 0;
    mov.u32 %r5, 1;
    @%p1 bra END;
    red.RELEASE.gpu.global.add.u32 [%d0], %r5;
END:
"""


def chain(acquire: str = "acquire", release: str = "release", **options) -> np.ndarray:
    values = np.zeros(64, "u4")
    body = CHAIN.replace("ACQUIRE", acquire).replace("RELEASE", release)
    run(body, np.zeros(1, "u4"), values, grid=4, threads=64, **options)
    return values


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_take_turns_by_a_semaphore(schedule):
    assert set(chain(schedule=schedule, seed=1).tolist()) == {(1 * 3 + 2) * 3 + 3}


def test_one_resident_cta_at_a_time_suffices_in_order():
    assert set(chain(ctas_resident=1).tolist()) == {18}


@pytest.mark.parametrize(("acquire", "release"), [("relaxed", "release"), ("acquire", "relaxed")])
def test_a_semaphore_without_order_is_a_race(acquire, release):
    with pytest.raises(RaceError, match=r"race: .* byte 0 of 'a1'"):
        chain(acquire, release)


def test_fences_order_relaxed_accesses():
    body = CHAIN.replace("ACQUIRE", "relaxed").replace("RELEASE", "relaxed")
    body = body.replace("JOIN:", "fence.acq_rel.gpu;\nJOIN:").replace(
        "red.", "fence.acq_rel.gpu;\nred."
    )
    values = np.zeros(64, "u4")

    run(body, np.zeros(1, "u4"), values, grid=4, threads=64)

    assert set(values.tolist()) == {18}


def test_waiting_for_a_cta_that_is_not_resident():
    body = CHAIN.replace(
        "setp.ne.u32 %p2, %r3, %r2;", "sub.u32 %r9, 3, %r2;\nsetp.ne.u32 %p2, %r3, %r9;"
    )
    body = body.replace("ACQUIRE", "acquire").replace("RELEASE", "release")

    run(body, np.zeros(1, "u4"), np.zeros(64, "u4"), grid=4, threads=64)
    with pytest.raises(Deadlock, match=r"(?s)livelock in .* spins, and nothing it can see changes"):
        run(body, np.zeros(1, "u4"), np.zeros(64, "u4"), grid=4, threads=64, ctas_resident=2)


def test_atomic_sums_of_ctas_are_no_race_but_counted():
    total = np.zeros(1, "f4")

    report = run("mov.f32 %r2, 0f3F800000;\nred.global.add.f32 [%d0], %r2;", total, grid=3)

    assert total[0] == 96
    assert report.counts["unordered_atomic_adds"] > 0


def test_stores_of_two_ctas_to_one_place():
    with pytest.raises(RaceError, match="write over a write"):
        run("mov.u32 %r2, %ctaid.x;\nst.global.b32 [%d0], %r2;", np.zeros(1, "u4"), grid=2)
    report = run("mov.u32 %r2, 5;\nst.global.b32 [%d0], %r2;", np.zeros(1, "u4"), grid=2)

    assert report.warnings["unordered stores of the same value"] > 0


def test_a_store_over_what_another_cta_reads():
    body = """
        mov.u32 %r2, %ctaid.x;
        setp.eq.u32 %p1, %r2, 0;
        @%p1 ld.global.b32 %r3, [%d0];
        @!%p1 st.global.b32 [%d0], %r2;
    """

    with pytest.raises(RaceError, match=r"write over a read.*warp 0 of CTA \(0, 0, 0\)"):
        run(body, np.zeros(1, "u4"), grid=2)


REMOTE = """
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r3, 1;
    @%p1 mbarrier.init.shared.b64 [%r1], %r3;
    @%p1 st.shared.b32 [%r1+64], %r3;
    FENCE
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r4, %r2, 1;
    mapa.shared::cluster.u32 %r5, %r1, %r4;
    add.u32 %r6, %r2, 70;
    @%p1 st.shared::cluster.b32 [%r5+64], %r6;
    @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
W:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra W;
    ld.shared.b32 %r7, [%r1+64];
    mad.wide.u32 %d10, %r2, 4, %d0;
    st.global.b32 [%d10], %r7;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ctas_of_a_cluster_write_into_each_other(schedule):
    out = np.zeros(2, "u4")

    run(
        REMOTE.replace("FENCE", "fence.mbarrier_init.release.cluster;"),
        out,
        grid=2,
        cluster=2,
        schedule=schedule,
    )

    assert out.tolist() == [71, 70]


def test_remote_barriers_need_the_fence_of_their_initialisation():
    with pytest.raises(MissingFence, match=r"fence.mbarrier_init"):
        run(REMOTE.replace("FENCE", ""), np.zeros(2, "u4"), grid=2, cluster=2)


def test_reading_before_the_remote_arrival_is_a_race():
    body = REMOTE.replace("FENCE", "fence.mbarrier_init.release.cluster;")
    start, end = body.index("W:"), body.index("ld.shared.b32 %r7")

    with pytest.raises(RaceError, match="shared memory at 0x440"):
        run(
            body[:start] + body[end:],
            np.zeros(2, "u4"),
            grid=2,
            cluster=2,
            schedule="random",
            seed=0,
        )


def test_cluster_barriers_pair_up():
    with pytest.raises(BarrierError, match="without an arrival"):
        run("barrier.cluster.wait.aligned;", grid=2, cluster=2)
    with pytest.raises(BarrierError, match="second arrival"):
        run("barrier.cluster.arrive.aligned;\n" * 2, grid=2, cluster=2)
    with pytest.raises(Deadlock, match="cluster barrier: 32 of 64 threads"):
        run("mov.u32 %r2, %cluster_ctarank;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra END;\n"
            "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nEND:", grid=2, cluster=2)  # fmt: skip


def test_reports_count_instructions():
    report = run(
        "mov.u32 %r2, 0;\nL:\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, 5;\n@%p1 bra L;",
        threads=64,
    )

    assert report.instructions == 2 * (3 + 5 * 3 + 1)
    assert sum(report.executed.values()) == report.instructions
    assert max(report.lines.values()) == 10
