"""What a CTA may not leave behind: asynchronous work on its shared memory that nobody waited for.

Bulk stores are in test_bulk.py, tensor memory in test_tmem.py.
"""

import numpy as np
import pytest

from kernels_sm100.errors import EarlyExit
from tests.kernels.emulator.products import multiply
from tests.kernels.emulator.snippet import aligned, run
from tests.kernels.emulator.test_bulk import BARRIER, LOAD, SCHEDULES, WAIT, numbers
from tests.kernels.emulator.test_copy_async import BY_BARRIER, BY_GROUP

ANOTHER_WARP = (
    "bar.sync 0;\nshr.u32 %r5, %r0, 5;\nsetp.ne.u32 %p3, %r5, 1;\n@%p3 bra END;\nWAIT\nEND:"
)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "wait", "who"),
    [
        (BARRIER + LOAD + WAIT, WAIT, "a copy for the mbarrier at 0x2400"),
        (BY_BARRIER, WAIT, "cp.async of warp 0"),
        (BY_GROUP, "cp.async.wait_all;", "cp.async of warp 0"),
    ],
    ids=["bulk load", "cp.async by barrier", "cp.async by group"],
)
def test_copies_that_nobody_waited_for(body, wait, who, schedule):
    assert wait in body
    arrays = (aligned((128,), np.float32), numbers())
    options = {"schedule": schedule}
    early = body.replace(wait, "")

    assert not run(body, *arrays, **options).warnings
    with pytest.raises(
        EarlyExit, match=rf"CTA \(0, 0, 0\): got nobody waited for the last of {who}"
    ):
        run(early, *arrays, **options)
    report = run(early, *arrays, strict_exit=False, **options)
    assert report.warnings == {f"exit before {who} was waited for": 1}
    run(early, *arrays, races=False, **options)  # clocks tell who has waited


def test_any_warp_may_wait():
    arrays = (aligned((128,), np.float32), numbers())
    body = BARRIER + LOAD + ANOTHER_WARP.replace("WAIT", WAIT)

    run(body, *arrays, threads=64)


def test_the_last_commit():
    """A commit behind the one that is waited for: its arrival may come when the CTA has ended."""
    again = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+40968];"

    def edit(text: str) -> str:
        made = text.replace(
            "@%p4 mbarrier.init.shared.b64 [%r1+40960], %r7;",
            "@%p4 mbarrier.init.shared.b64 [%r1+40960], %r7;\n"
            "@%p4 mbarrier.init.shared.b64 [%r1+40968], %r7;",
        ).replace("WAIT:\n", f"{again}\nWAIT:\n")
        assert made.count("40968") == 2
        return made

    multiply(128, 64)
    with pytest.raises(EarlyExit, match="the last of the tensor pipe of CTA rank 0"):
        multiply(128, 64, edit=edit)


def test_a_pair_ends_together():
    """Rank 1 waits for what rank 0 loads into its own memory: ranks end after the cluster's warps."""
    body = """
        mov.u32 %r2, %cluster_ctarank;
        setp.eq.u32 %p1, %r0, 0;
        mov.u32 %r3, 1;
        @%p1 mbarrier.init.shared.b64 [%r1+8192], %r3;
        @%p1 fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        xor.b32 %r5, %r2, 1;
        mapa.shared::cluster.u32 %r6, %r1, %r5;
        mov.u32 %r4, 512;
        @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+8192], %r4;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%d1], %r4, [%r6+8192];
    """
    arrays = (aligned((128,), np.float32), numbers())

    run(body + WAIT, *arrays, grid=2, cluster=2)
    with pytest.raises(EarlyExit):
        run(body, *arrays, grid=2, cluster=2)
