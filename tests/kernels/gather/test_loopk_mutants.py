"""What synchronises LoopK's gathering loads and its scattered sums, dropped in turn, is missed."""

import pytest

from tests.kernels.backward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.test_loopk import WIDE

# The rest is LoopK's, whose mutants are tried in tests/kernels/backward.
FILES = {"gather.py", "backward_loopk_gathered.py", "bulk.py"}
KINDS = {"wait", "arrive", "expect_tx", "group commit", "group wait", "proxy fence"}


def test_what_synchronises_is_needed(gathered_loopk):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import Subject, table

    kernel = gathered_loopk(WIDE)
    given = problem(WIDE, masks.with_counts(400, (300, 129), 128))
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
        if mutant.kind in KINDS
        and (mutant.source.split(":")[0] in FILES or mutant.kind == "proxy fence")
    ]
    found = [try_mutant(mutant, subject.run, [("round_robin", 0)]) for mutant in tried]

    assert {mutant.kind for mutant in tried} >= KINDS - {"expect_tx"}, table(found)
    assert all(verdict.killed for verdict in found), table(found)
