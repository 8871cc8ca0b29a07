"""Every wait, arrive, commit and fence of LoopK, dropped in turn, is missed by some check."""

import numpy as np
import pytest

from tests.kernels.backward.configs import K_64, K_128
from tests.kernels.backward.run import judge, problem

CONFIGS = {64: K_64, 128: K_128}

# The race detector is independent of the order in which warps run: of these mutants none is killed
# by the lazy or a random schedule alone.
SCHEDULES = (("round_robin", 0),)

# Lanes of a warp are one actor to the emulator; barriers that are not initialised are refused.
NOT_TRIED = {"warp sync", "init", "init fence"}
# Of D = 128, whose sums have the loop of D = 64, unrolled four times where that is twice.
NOT_TRIED_AGAIN = {"barrier sync", "proxy fence", "group commit", "group wait"}

# What survives, (kind, source file), and why nothing can be lost without it.
AT_THE_END = [("wait", "backward_loopk.py")] * 2  # of the load warp, for commits of K and V, which
# are performed before that of Q; waits for Q's are missed.
Q_FULL = [("wait", "backward_loopk.py")]  # of compute warps; S is made behind the MMA warp's own.
EXPLAINED = {
    # K has as many buffers as V, and is released by dQ, behind the dP that releases V. Behind
    # ds_full the first access to what others have read is dK's, for which dk_empty fences.
    64: [*AT_THE_END, *Q_FULL, ("wait", "backward_loopk.py"), *[("tmem fence", "")] * 2],
    # The sums' warps read dV before dK, for whose dk_empty dP has waited: dv_empty and its fence.
    128: [*AT_THE_END, *Q_FULL, ("wait", "barriers.py"), ("tmem fence", "")],
}


def mask(heads):
    """Three blocks for one Q tile, so that the rings of two wrap; one for the next, or its head."""
    found = np.ones((1, 1, 256, 384), dtype=bool)
    found[..., 128:, 128:] = False
    found[..., 5:100, 3:50] = False
    return found.reshape(1, heads, -1, 384)


@pytest.mark.parametrize("head_dim", CONFIGS)
def test_what_synchronises_is_needed(backward_kernel, head_dim):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import Subject, table

    kernel = backward_kernel(CONFIGS[head_dim])
    given = problem(kernel.config, mask(kernel.config.group))
    wrote = []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch)

    def right():
        try:
            judge(given, kernel.outcome(given, tuple(wrote), None))
        except AssertionError:
            return False
        return True

    subject = Subject(call, right)
    tried = [
        mutant
        for mutant in subject.mutants()
        if mutant.kind not in NOT_TRIED and not (head_dim == 128 and mutant.kind in NOT_TRIED_AGAIN)
    ]
    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    survived = [
        (m.kind, "" if m.kind == "tmem fence" else m.source.split(":")[0])
        for m in (v.mutant for v in found if not v.killed)
    ]
    assert sorted(survived) == sorted(EXPLAINED[head_dim]), table(found)
