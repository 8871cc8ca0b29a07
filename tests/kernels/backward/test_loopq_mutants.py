"""Every wait, arrive, commit and fence of LoopQ, dropped in turn, is missed by some check."""

import numpy as np
import pytest
import torch

from kernels_sm100.backward_config import TILE
from tests.kernels.backward.configs import PACKED, SPLIT
from tests.kernels.backward.run import judge, problem

# One with turns at D = 128, which owns dK and dV, one without at D = 64, which adds them; how many
# Q tiles see each KV block but the last, which nothing sees; and CTAs. Rings of two wrap in both,
# and a CTA has two items with steps: blocks, or shares of a group.
CONFIGS = {"turns": (PACKED, (3, 1, 2), 2), "split": (SPLIT, (2,), 1)}

# The race detector is independent of the order in which warps run, and kills what can be killed
# under one schedule; benchmarks/emulator.py tries more.
SCHEDULES = (("round_robin", 0),)

# Lanes of a warp are one actor to the emulator; barriers that are not initialised are refused.
NOT_TRIED = {"warp sync", "init", "init fence"}

# What survives, (kind, source file), and why nothing can be lost without it.
Q_FULL = ("wait", "backward_loopq.py")  # of compute warps; S is made behind the MMA warp's own.
EXPLAINED = {
    # Between a turn taken and the first bulk addition, for the model of memory: what is added to is
    # touched by the async proxy alone, which the emulator knows.
    "turns": [Q_FULL, ("proxy fence", "backward.py")],
    # dO has as many buffers as Q, and is released by dV, before the dK that releases Q. Behind
    # ds_full the first access to what others have read is dQ's, for which dq_empty fences.
    "split": [Q_FULL, ("wait", "backward_loopq.py"), *[("tmem fence", "")] * 2],
}


def mask(rows, seen_by):
    """KV blocks seen by so many Q tiles of `rows` tokens, and one that nothing sees."""
    found = np.zeros((1, 1, max(seen_by) * rows, (len(seen_by) + 1) * TILE), dtype=bool)
    for block, tiles in enumerate(seen_by):
        found[:, :, : tiles * rows, block * TILE : (block + 1) * TILE] = True
    found[:, :, rows // 2 : rows, 3:50] = False
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_what_synchronises_is_needed(backward_kernel, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import Subject, table

    config, seen_by, ctas = CONFIGS[name]
    kernel = backward_kernel(config)
    given = problem(config, mask(TILE // config.rows_per_token, seen_by))
    wrote, first = [], []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch, ctas=ctas)

    def right():
        try:
            judge(given, kernel.outcome(given, tuple(wrote), None))
        except AssertionError:
            return False
        if not config.deterministic:
            return True
        first.append([tensor.clone() for tensor in wrote])
        return all(torch.equal(a, b) for a, b in zip(first[0], wrote, strict=True))

    subject = Subject(call, right)
    tried = [mutant for mutant in subject.mutants() if mutant.kind not in NOT_TRIED]
    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    survived = [
        (m.kind, "" if m.kind == "tmem fence" else m.source.split(":")[0])
        for m in (v.mutant for v in found if not v.killed)
    ]
    assert sorted(survived) == sorted(EXPLAINED[name]), table(found)
