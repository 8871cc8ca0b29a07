"""Every wait, arrive, commit and fence of the kernel, dropped in turn, is missed by some check."""

import pytest

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward import masks
from tests.kernels.forward.run import Outcome, judge, problem

# Two stages, several work items on one CTA, a pair of tiles, and a rescale in every step.
CONFIG = ForwardConfig(head_dim=16, head_dim_v=16, stages=2, lazy_rescale=False)

# Not modelled: what lanes of a warp do to each other. SentryWard sees that.
NOT_MODELLED = {"warp sync"}
SOURCE = "forward.py"


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

    subject = Subject(call, right)
    tried = [mutant for mutant in subject.mutants() if mutant.kind not in NOT_MODELLED]
    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    unseen = [v.mutant for v in found if not v.killed]
    # The load warp's last wait, for the commit that Q is done with: the commit that frees the last
    # stage comes behind it in the same pipe, and is waited for just before.
    assert [(m.kind, m.source.split(":")[0]) for m in unseen] == [("wait", SOURCE)], table(found)
    rates = kill_rates(found)
    for kind in (
        "arrive", "expect_tx", "commit", "proxy fence", "group commit", "group wait",
        "barrier sync", "tmem wait", "tmem fence",
    ):  # fmt: skip
        assert rates[kind][0] == rates[kind][1] > 0, table(found)
