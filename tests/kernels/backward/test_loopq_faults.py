"""Faults that a backward kernel has had, in LoopQ: each, planted, is found.

Five of them made it hang, and one overwrote dV in tensor memory before it was read. They were a
LoopK kernel's; here is what each would be in a loop over queries.
"""

import numpy as np
import pytest

from kernels_sm100.errors import BarrierOverrun, Deadlock, RaceError
from tests.kernels.backward.configs import SPLIT
from tests.kernels.backward.run import judge, problem

# Planted in SPLIT, so that there is a reader of dV that no other barrier waits for.
FAULTS = {
    "K and V wait for the barrier of Q": (
        (Deadlock, RaceError),
        "mbarrier_wait(barriers.kv_empty, kv_phase)\n                        kv_phase ^= 1",
        "mbarrier_wait(barriers.q_empty + slot, phase ^ 1)\n                        kv_phase ^= 1",
    ),
    "Q of a step is wanted before that of the last is released": (
        Deadlock,
        "Q_STAGES = 2",
        "Q_STAGES = 1",
    ),
    "dQ waits for its reader twice": (
        Deadlock,
        "if const_expr(self.shares_dp):",
        "if const_expr(True):",
    ),
    "more warps are waited for than add dK and dV": (
        Deadlock,
        "init_all(getattr(barriers, name), 1, GROUP_WARPS)",
        "init_all(getattr(barriers, name), 1, COMPUTE_WARPS)",
    ),
    "the slot of Q stands still": (
        (Deadlock, RaceError, BarrierOverrun),
        "slot, full)\n                    slot, phase = next_slot(slot, phase, Q_STAGES)",
        "slot, full)",
    ),
    "dV is overwritten before it is read": (
        RaceError,
        "self.wait_where(steps == 0, barriers.dv_empty, empty_phase)",
        "pass",
    ),
}


def two_items():
    """Two Q tiles for one KV block, three for the next."""
    mask = np.ones((1, 1, 300, 256), dtype=bool)
    mask[:, :, 256:, :128] = False
    return mask


@pytest.fixture(scope="module")
def given(backward_kernel):
    """What the kernel as it is gets right."""
    found = problem(SPLIT, two_items())
    judge(found, backward_kernel(SPLIT).run(found))
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(given, tmp_path, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.backward.mutant import plant

    error, old, new = FAULTS[name]
    faulty = plant(tmp_path, SPLIT, ("backward_loopq", old, new))

    with pytest.raises(error):
        faulty.run(given)
