"""Every wait, arrive, commit and fence of the kernel, dropped in turn, is missed by some check."""

import pytest

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward import masks
from tests.kernels.forward.run import Outcome, judge, problem

# Two stages, several work items on one CTA, a pair of tiles, and a rescale in every step.
CONFIG = ForwardConfig(head_dim=16, head_dim_v=16, stages=2, lazy_rescale=False)

# Not modelled: what lanes of a warp do to each other, tensor memory's order apart from
# happens-before, and loads from it that are used before their wait (compilers track those).
NOT_MODELLED = {"warp sync", "tmem fence"}
LOAD_WAIT = "tcgen05.wait::ld"


def mask():
    found = masks.blocks((1, 1, 768, 400), 0.8, seed=2)
    found[:, :, 300:310] = False
    found[:, :, 512:640] = False
    return found


def test_what_synchronises_is_needed(forward_kernel):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import kill_rates, try_mutant
    from tests.kernels.mutation.subjects import SCHEDULES, Subject, table

    kernel = forward_kernel(CONFIG)
    given = problem(CONFIG, mask(), spread=3.0)
    wrote = []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch)

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
        if mutant.kind not in NOT_MODELLED and not mutant.text.startswith(LOAD_WAIT)
    ]
    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    unseen = [v.mutant for v in found if not v.killed]
    # At its end the load warp waits for commits that may still arrive at its barriers, so that the
    # CTA does not end before them; nothing in the kernel follows that could be too early.
    assert [(m.kind, m.source.split(":")[0]) for m in unseen] == [("wait", "forward.py")] * 2, (
        table(found)
    )
    rates = kill_rates(found)
    for kind in ("arrive", "expect_tx", "commit", "proxy fence", "group wait", "barrier sync"):
        assert rates[kind][0] == rates[kind][1] > 0, table(found)
