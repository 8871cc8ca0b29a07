"""Every wait, arrival and fence of the gathering loads is needed: a check misses each."""

import numpy as np
import pytest

from tests.kernels.forward.run import Outcome, judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.configs import MODE_IDS, MODES, config
from tests.kernels.gather.lists import token_tables

FILES = ("gather.py", "forward_gathered.py")
NOT_MODELLED = {
    "warp sync",
    "tmem fence",
}  # what lanes of a warp do to each other, and tests/forward


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_what_synchronises_is_needed(forward_kernel, mode):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import SCHEDULES, Subject, table

    made = config(mode, q_tiles=2, stages=2)
    mask = masks.with_counts(300, (200, 0, 129), 256)
    given = problem(made, mask, spread=3.0)
    walk = token_tables(mask, made)
    kernel = forward_kernel(made)
    wrote = []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch, walk=walk)

    def right():
        try:
            judge(given, Outcome(*wrote, None))
        except AssertionError:
            return False
        return True

    subject = Subject(call, right, strict=False)
    tried = [
        mutant
        for mutant in subject.mutants()
        if mutant.kind not in NOT_MODELLED
        and (mutant.source.split(":")[0] in FILES or "proxy fence" in mutant.kind)
    ]

    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    assert len(found) >= 4, table(found)
    assert all(v.killed for v in found), table(found)
    assert np.unique([v.mutant.kind for v in found]).size >= 2
