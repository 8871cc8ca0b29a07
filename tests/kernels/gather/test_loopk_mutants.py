"""What synchronises LoopK's gathering loads and its scattered sums, dropped in turn, is missed."""

import pytest

from tests.kernels.backward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.test_loopk import GATHER4, WIDE

# Of what is LoopK's own too, loads of Q and dO and products, mutants are tried in
# tests/kernels/backward. By gather4 only what differs is tried: its loads, and rows of sums that
# have two buffers. Sums by element wait for nothing of their own.
OWN = {"gather.py", "backward_loopk_gathered.py", "bulk.py"}
# Lanes of a warp are one actor to the emulator; barriers that are not initialised are refused.
NOT_TRIED = {"warp sync", "init", "init fence", "commit"}

# What survives, (kind, source file), and why nothing can be lost without it: as of LoopK.
V_STAGE = ("wait", "backward_loopk_gathered.py")  # K has as many buffers as V, and the dQ that
# releases K comes behind the dP that releases V.
DV_EMPTY = ("wait", "barriers.py")  # dV is read before dK, for whose dk_empty dP has waited
EXPLAINED = {
    "cp.async, D 128": (WIDE, OWN | {"barriers.py"}, NOT_TRIED, [DV_EMPTY, ("tmem fence", "")]),
    "gather4, D 64": (GATHER4, OWN, NOT_TRIED | {"tmem fence"}, [V_STAGE]),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_synchronises_is_needed(gathered_loopk, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import Subject, table

    config, files, not_tried, explained = EXPLAINED[name]
    kernel = gathered_loopk(config)
    given = problem(config, masks.with_counts(400, (300, 100), 128))
    walk = kernel.tables(given, seed=1)
    wrote = []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch, walk=walk)

    def right():
        try:
            judge(given, kernel.outcome(given, tuple(wrote), None))
        except AssertionError:
            return False
        return True

    subject = Subject(call, right)
    tried = [
        mutant
        for mutant in subject.mutants()
        if mutant.kind not in not_tried
        and (mutant.source.split(":")[0] in files or mutant.kind == "proxy fence")
    ]
    found = [try_mutant(mutant, subject.run, [("round_robin", 0)]) for mutant in tried]

    kinds = {mutant.kind for mutant in tried}
    assert kinds >= {"wait", "tmem wait", "group commit", "group wait", "proxy fence"}
    assert kinds & {"arrive", "expect_tx"}
    survived = [
        (m.kind, "" if m.kind == "tmem fence" else m.source.split(":")[0])
        for m in (v.mutant for v in found if not v.killed)
    ]
    assert sorted(survived) == sorted(explained), table(found)
