"""A verifier by others proves the kernel free of races and deadlocks, over every schedule.

For small plans, in builds whose ring of K and V has two stages, so that it wraps.
"""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward.run import problem
from tests.kernels.forward.sentryward import Captured, verdict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

ONE_TILE = ForwardConfig(
    head_dim=64, head_dim_v=64, q_tiles=1, parts=1, stages=2, lazy_rescale=False
)
LAZY = replace(ONE_TILE, lazy_rescale=True)
PAIR = replace(ONE_TILE, q_tiles=2, parts=2)
TABLES = {
    "pattern_id": np.int32,
    "row_ptr": np.int64,
    "col": np.int32,
    "tile_id": np.int32,
    "order": np.int32,
}


def full(seqlen_q, seqlen_k):
    return np.ones((1, 1, seqlen_q, seqlen_k), dtype=bool)


def bits():
    mask = full(128, 128)
    mask[..., ::3] = False
    return mask


def first_tile_skips():
    mask = full(256, 128)
    mask[:, :, :128] = False
    return mask


def capture(kernel, mask):
    """The launch on `mask`, not run."""
    seen = []
    kernel.launch(
        problem(kernel.config, mask),
        lambda launch, memory: seen.append(Captured.of(launch, memory)),
    )
    return seen[0]


CASES = {
    "no block": (ONE_TILE, np.zeros((1, 1, 128, 128), dtype=bool), None),
    "one block with bits": (ONE_TILE, bits(), None),
    "two blocks": (ONE_TILE, full(128, 256), None),
    "two blocks, rescale skipped": (LAZY, full(128, 256), True),
    "two blocks, rescale executed": (LAZY, full(128, 256), False),
    "two work items": (ONE_TILE, full(256, 128), None),
    "a pair, one tile skips": (PAIR, first_tile_skips(), None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_proved_race_free(forward_kernel, tmp_path, name):
    config, mask, taken = CASES[name]
    captured = capture(forward_kernel(config), mask)

    found = verdict(tmp_path, captured, TABLES, taken=taken)

    assert found["result"] == "race_free", found["diagnostics"][:2]
    assert found["checks"]["memory"] == found["checks"]["synchronization"] == "passed"
    assert found["warning_count"] == 0


def test_a_dropped_wait_is_no_proof(forward_kernel, tmp_path):
    captured = capture(forward_kernel(ONE_TILE), full(128, 128))
    text = captured.launch.ptx
    stored = "tcgen05.wait::st.sync.aligned;"
    assert stored in text

    found = verdict(tmp_path, captured, TABLES, ptx=text.replace(stored, ""))

    assert found["result"] in {"potential_race", "invalid_lifecycle", "not_wellsynced"}
