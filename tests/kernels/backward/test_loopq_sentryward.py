"""A verifier by others proves LoopQ free of races and deadlocks, over every schedule.

That it refuses faulty kernels is shown where the forward is proved.
"""

import importlib.util

import numpy as np
import pytest

from kernels_sm100.verify import Captured, verify
from tests.kernels.backward.configs import DOWN
from tests.kernels.backward.run import problem

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

# Bytes an element of the tables that steer.
TABLES = {"pattern_id": 4, "row_ptr": 8, "col": 4, "tile_id": 4, "order": 4}


def two_blocks():
    """Two Q tiles for a KV block: one with bits, then one that is full."""
    mask = np.ones((1, 1, 256, 128), dtype=bool)
    mask[:, :, 128:, ::3] = False
    return mask


def full():
    return np.ones((1, 1, 128, 128), dtype=bool)


def bits():
    mask = full()
    mask[..., ::3] = False
    return mask


CASES = {
    "no block": ~full(),
    "one full block": full(),
    "one block with bits": bits(),
    "two blocks": two_blocks(),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_proved_race_free(backward_kernel, name):
    kernel, seen = backward_kernel(DOWN), []
    kernel.launch(
        problem(DOWN, CASES[name]),
        lambda launch, memory: seen.append(Captured.of(launch, memory)),
    )
    (captured,) = seen
    tables = {name: TABLES[name] for name, _, _ in captured.regions if name in TABLES}

    found = verify(captured, tables=tables, timeout=900)

    assert (found.result, found.warnings) == ("race_free", 0), found.diagnostics[:2]
