"""A verifier by others proves the kernel free of races and deadlocks, over every schedule.

For small plans, in builds whose ring of K and V has two stages, so that it wraps; one has three,
where K and V change places in it.
"""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from kernels_sm100.config import ForwardConfig
from kernels_sm100.verify import Captured, verify, vote_branches
from tests.kernels.forward.run import problem

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

ONE_TILE = ForwardConfig(
    head_dim=64, head_dim_v=64, q_tiles=1, parts=1, stages=2, lazy_rescale=False
)
LAZY = replace(ONE_TILE, lazy_rescale=True)
PAIR = replace(ONE_TILE, q_tiles=2, parts=2)
LAZY_THREE = replace(LAZY, stages=3)


def wide(config):
    """The same at D 128."""
    return replace(config, head_dim=128, head_dim_v=128)


TABLES = {"pattern_id": 4, "row_ptr": 8, "col": 4, "tile_id": 4, "order": 4}  # bytes an element


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


def tables_of(captured):
    """Those of `TABLES` that have entries, and so are memory."""
    return {name: TABLES[name] for name, _, _ in captured.regions if name in TABLES}


CASES = {
    "no block": (ONE_TILE, np.zeros((1, 1, 128, 128), dtype=bool), None),
    "one full block": (ONE_TILE, full(128, 128), None),
    "one block with bits": (ONE_TILE, bits(), None),
    "two blocks, rescale skipped": (LAZY, full(128, 256), True),
    "two blocks, three stages, rescale executed": (LAZY_THREE, full(128, 256), False),
    "two work items": (ONE_TILE, full(256, 128), None),
    "a pair, one tile skips": (PAIR, first_tile_skips(), None),
    "D 128, no block": (wide(ONE_TILE), np.zeros((1, 1, 128, 128), dtype=bool), None),
    "D 128, one full block": (wide(ONE_TILE), full(128, 128), None),
    "D 128, one block with bits": (wide(ONE_TILE), bits(), None),
    "D 128, two blocks, rescale executed": (wide(LAZY), full(128, 256), False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_proved_race_free(forward_kernel, name):
    config, mask, taken = CASES[name]
    captured = capture(forward_kernel(config), mask)
    branches = {} if taken is None else dict.fromkeys(vote_branches(captured.launch.ptx), taken)
    assert (taken is None) or branches

    found = verify(captured, tables=tables_of(captured), branches=branches)

    assert (found.result, found.warnings) == ("race_free", 0), found.diagnostics[:2]


def test_a_dropped_wait_is_no_proof(forward_kernel):
    captured = capture(forward_kernel(ONE_TILE), full(128, 128))
    text = captured.launch.ptx
    stored = "tcgen05.wait::st.sync.aligned;"
    assert stored in text

    found = verify(captured, tables=tables_of(captured), ptx=text.replace(stored, ""))

    assert found.result in {"potential_race", "invalid_lifecycle", "not_wellsynced"}
