"""A verifier by others proves LoopK free of races and deadlocks, over every schedule.

That it refuses faulty kernels is shown where the forward is proved.
"""

import importlib.util

import numpy as np
import pytest

from kernels_sm100.verify import Captured, verify
from tests.kernels.backward.configs import K_64
from tests.kernels.backward.run import problem

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

TABLES = {"pattern_id": 4, "row_ptr": 8, "col": 4, "tile_id": 4, "order": 4}  # bytes an element


def full(seqlen_q, seqlen_k):
    return np.ones((1, 1, seqlen_q, seqlen_k), dtype=bool)


def bits():
    mask = full(128, 128)
    mask[..., ::3] = False
    return mask


CASES = {
    "no block": np.zeros((1, 1, 128, 128), dtype=bool),
    "one full block": full(128, 128),
    "one block with bits": bits(),
    "two blocks": full(128, 256),
}


def capture(kernel, mask):
    """The launch on `mask`, not run."""
    seen = []
    kernel.launch(
        problem(kernel.config, mask),
        lambda launch, memory: seen.append(Captured.of(launch, memory)),
    )
    return seen[0]


def tables_of(captured):
    """Those of `TABLES` that have entries, and so are memory."""
    return {name: TABLES[name] for name, _, _ in captured.regions if name in TABLES}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_proved_race_free(backward_kernel, name):
    captured = capture(backward_kernel(K_64), CASES[name])

    found = verify(captured, tables=tables_of(captured), timeout=900)

    assert (found.result, found.warnings) == ("race_free", 0), found.diagnostics[:2]
