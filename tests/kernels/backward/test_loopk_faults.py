"""Faults that a LoopK kernel has had, planted: each is found.

Five of them made it hang, and one overwrote dV in tensor memory before it was read, which a
tolerance of 15 to 85 % of the elements let through.
"""

import numpy as np
import pytest

from kernels_sm100.errors import BarrierOverrun, Deadlock, RaceError
from tests.kernels.backward.configs import K_64
from tests.kernels.backward.run import judge, problem

FAULTS = {
    "K waits for the barrier of Q": (
        Deadlock,
        "cute.arch.mbarrier_wait(barriers.k_empty + slot, phase)\n" + 20 * " " + "full",
        "cute.arch.mbarrier_wait(barriers.q_empty, q_phase)\n" + 20 * " " + "full",
    ),
    "K of a step is wanted before that of the last is released": (
        Deadlock,
        "K_STAGES = 2",
        "K_STAGES = 1",
    ),
    "dQ waits in every step for what its end says": (
        Deadlock,
        "pair = (buffer(of.ds, 0), buffer(of.k_t, slot))",
        "pair = (buffer(of.ds, 0), buffer(of.k_t, slot))\n"
        + 8 * " "
        + "wait_tmem(barriers.dq_full, step_phase)",
    ),
    "more warps are waited for than add dK and dV": (
        Deadlock,
        "init_all(getattr(barriers, name), 1, GROUP_WARPS)",
        "init_all(getattr(barriers, name), 1, COMPUTE_WARPS)",
    ),
    "the phase of Q stands still": (
        (Deadlock, RaceError, BarrierOverrun),
        "q_phase ^= 1\n                        self.load_queries",
        "q_phase ^= 0\n                        self.load_queries",
    ),
    "dV is overwritten before it is read": (
        RaceError,
        "wait_tmem(barriers.dv_empty, dv_phase)",
        "pass",
    ),
}


def two_items():
    """Three blocks for one Q tile, two for the next."""
    mask = np.ones((1, 1, 256, 384), dtype=bool)
    mask[..., 128:, 128:256] = False
    return mask


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(backward_kernel, tmp_path, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.backward.mutant import plant

    error, old, new = FAULTS[name]
    given = problem(K_64, two_items())
    judge(given, backward_kernel(K_64).run(given))

    faulty = plant(tmp_path, K_64, ("backward_loopk", old, new))

    with pytest.raises(error):
        faulty.run(given)
