"""Faults of gathering and scattering in LoopK, planted in its source: each is found.

Fences and waits that are missing are found where mutants are tried.
"""

from dataclasses import replace

import numpy as np
import pytest

from kernels_sm100.errors import EmulatorError
from tests.kernels.backward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.test_loopk import BY_ROW, COUNTS

GATHERED = "backward_loopk_gathered"
FAULTS = {
    "slots past the count are added": (
        AssertionError,
        (GATHERED, "if thread < keys[entry]:", "if thread < TILE:"),
    ),
    "slots without a token are added": (
        (AssertionError, EmulatorError),
        (GATHERED, "if token >= 0:\n                    lines", "if True:\n" + 20 * " " + "lines"),
    ),
    "rows of the next chunk's tokens": (
        (AssertionError, EmulatorError),
        (GATHERED, "self.load_chunk(k, True, now,", "self.load_chunk(k, True, ahead,"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(gathered_loopk, tmp_path, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.backward.mutant import plant
    from tests.kernels.gather.backward import GatheredBackward

    error, change = FAULTS[name]
    given = problem(BY_ROW, masks.with_counts(400, COUNTS, 128))
    kernel = gathered_loopk(BY_ROW)
    walk = kernel.tables(given, seed=1)
    if name == "slots past the count are added":
        other = np.flatnonzero(~given.masks.any((0, 1, 2)))[0]
        walk = replace(walk, tokens=np.where(walk.tokens < 0, np.int32(other), walk.tokens))
    judge(given, kernel.run(given, walk=walk))

    faulty = plant(tmp_path, BY_ROW, change, runner=GatheredBackward)

    with pytest.raises(error):
        judge(given, faulty.run(given, walk=walk))
