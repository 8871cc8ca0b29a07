"""A verifier by others proves LoopK over tokens free of races and deadlocks, over every schedule.

For lists of no chunk and of one, which tokens do not fill. As of the gathered forward, it is given
copies whose size tokens do not decide. With a second chunk it cannot tell rows of dV that tokens
point to from other memory, and answers "unsupported". That it refuses faulty kernels is shown where
the forward is proved.
"""

import importlib.util
from dataclasses import replace

import pytest

from kernels_sm100.verify import Captured, verify
from tests.kernels.backward.run import problem
from tests.kernels.gather import masks
from tests.kernels.gather.test_loopk import BY_ROW
from tests.kernels.gather.test_sentryward import BYTES, TABLES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)


def capture(kernel, mask):
    """The launch on `mask`, not run, and the tables that are memory."""
    seen = []
    given = problem(kernel.config, mask)
    kernel.launch(
        given,
        lambda launch, memory: seen.append(Captured.of(launch, memory)),
        walk=kernel.tables(given),
    )
    names = {name for name, _, _ in seen[0].regions}
    return seen[0], {name: size for name, size in TABLES.items() if name in names}


@pytest.mark.parametrize("count", [0, 32])
def test_the_kernel_is_proved_race_free(gathered_loopk, count):
    captured, tables = capture(gathered_loopk(BY_ROW), masks.with_counts(300, (count,), 128))
    launch = captured.launch
    assert BYTES in launch.ptx
    whole = replace(launch, ptx=launch.ptx.replace(BYTES, ", 16;"))

    found = verify(replace(captured, launch=whole), tables=tables, timeout=900)

    assert (found.result, found.warnings) == ("race_free", 0), found.diagnostics[:3]
