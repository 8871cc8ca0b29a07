"""A verifier by others proves the gathering by cp.async free of races and deadlocks.

For small lists and a ring of two stages, which wraps. It wants to know how many bytes each copy
reads, which tokens decide; so it is given the kernel without that operand, which changes no
synchronisation. Work items come one at a time, as it cannot tell LSE, once written, from rows that
tokens point to. It does not know TMA gathers, and says so.
"""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from kernels_sm100.modes import InnerLoadMode
from kernels_sm100.verify import Captured, verify
from tests.kernels.forward.run import problem
from tests.kernels.gather import masks
from tests.kernels.gather.configs import config
from tests.kernels.gather.lists import token_tables

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

TABLES = {
    "pattern_id": 4, "row_ptr": 8, "col": 4, "tile_id": 4, "order": 4, "keys": 4, "tokens": 4,
}  # fmt: skip
BYTES = ", 16, none;"  # of a copy: 16, or none


def capture(kernel, mask):
    """The launch on `mask`, not run, and the tables that are memory."""
    seen = []
    kernel.launch(
        problem(kernel.config, mask),
        lambda launch, memory: seen.append(Captured.of(launch, memory)),
        walk=token_tables(mask, kernel.config),
    )
    names = {name for name, _, _ in seen[0].regions}
    return seen[0], {name: size for name, size in TABLES.items() if name in names}


CASES = {
    "no token": masks.with_counts(300, (0,), 128),
    "one chunk": masks.with_counts(300, (128,), 128),
    "two chunks, the last ragged": masks.with_counts(300, (130,), 128),
    "queries differ": masks.by_query((1, 1, 128, 300), 40, 100, 128),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_proved_race_free(forward_kernel, name):
    made = config(InnerLoadMode.CP_ASYNC, stages=2, lazy_rescale=False)
    captured, tables = capture(forward_kernel(made), CASES[name])
    launch = captured.launch
    assert BYTES in launch.ptx
    whole = replace(launch, ptx=launch.ptx.replace(BYTES, ", 16;"))

    found = verify(replace(captured, launch=whole), tables=tables)

    assert found.result == "race_free", found.diagnostics


def test_gathers_by_tma_are_beyond_it(forward_kernel):
    """When this fails, the proof above can be had for them too."""
    made = config(InnerLoadMode.TMA_GATHER4, stages=2, lazy_rescale=False)
    captured, tables = capture(forward_kernel(made), np.ones((1, 1, 128, 128), dtype=bool))

    found = verify(captured, tables=tables)

    assert found.result == "unsupported"
    assert {d["code"] for d in found.diagnostics} == {"tma_opcode_variant"}
