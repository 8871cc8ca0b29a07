"""Which instructions are dropped, and that nothing else of the text changes."""

import re

import pytest

from kernels_sm100.emulator.mutation import (
    KINDS,
    Mutant,
    Verdict,
    WrongValues,
    kill_rates,
    kind_of,
    mutants,
    try_mutant,
)
from kernels_sm100.errors import Deadlock

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, 8;
    mbarrier.init.shared.b64 [%r1], %r1; mbarrier.init.shared.b64 [%r1+8], %r1;
    bar.sync 0; bar.sync 0;
    {
    .reg .pred P1;
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0,
        10000000;
    @P1 bra.uni DONE;
    bra.uni AGAIN;
    DONE:
    }
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], %r2;
    mbarrier.arrive.shared.b64 %rd1, [%r1];
    fence.proxy.async.shared::cta;
    ret;
}
"""


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("mbarrier.try_wait.parity.shared.b64", "wait"),
        ("mbarrier.arrive.expect_tx.shared.b64", "expect_tx"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", "expect_tx"),
        ("mbarrier.arrive.shared::cluster.b64", "arrive"),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64", "commit"),
        ("cp.async.bulk.commit_group", "group commit"),
        ("cp.async.wait_all", "group wait"),
        ("cp.async.bulk.wait_group.read", "group wait"),
        ("fence.proxy.async.global", "proxy fence"),
        ("fence.mbarrier_init.release.cluster", "init fence"),
        ("fence.acq_rel.gpu", "fence"),
        ("tcgen05.fence::after_thread_sync", "tmem fence"),
        ("tcgen05.wait::ld.sync.aligned", "tmem wait"),
        ("barrier.cluster.arrive.release.aligned", "cluster barrier"),
        ("bar.warp.sync", "warp sync"),
        ("barrier.cta.sync.aligned", "barrier sync"),
        ("bar.arrive", "barrier arrive"),
        ("ld.shared.b32", None),
        ("barrier_like.sync", None),
    ],
)
def test_kinds(op, kind):
    assert kind_of(op) == kind


def test_each_instruction_is_dropped_alone():
    found = mutants(PTX, "k")

    assert [m.kind for m in found] == [
        "init", "init", "barrier sync", "barrier sync",
        "wait", "expect_tx", "arrive", "proxy fence",
    ]  # fmt: skip
    assert len({m.ptx for m in found}) == len(found)
    for mutant in found:
        before, after = PTX.split("\n"), mutant.ptx.split("\n")
        assert len(before) == len(after)  # so that lines of reports stay true
        changed = [i for i, (x, y) in enumerate(zip(before, after, strict=True), 1) if x != y]
        assert changed[0] == mutant.line
        assert changed == list(range(changed[0], changed[0] + len(changed)))


def test_a_wait_becomes_one_that_succeeds():
    (mutant,) = mutants(PTX, "k", kinds=["wait"])

    assert "try_wait" not in mutant.ptx
    assert re.search(r"AGAIN:\n\s*setp\.eq\.u32 P1, 0, 0;\n\n\s*@P1 bra", mutant.ptx)


def test_a_guard_goes_with_its_instruction():
    (mutant,) = mutants(PTX, "k", kinds=["expect_tx"])

    assert "%p1 " not in mutant.ptx.split("ret")[0].split("DONE:")[1]


def test_the_second_on_a_line_is_the_second():
    first, second = mutants(PTX, "k", kinds=["init"])

    assert "[%r1]," not in first.ptx.split("bar.sync")[0].split("mov")[1]
    assert "[%r1+8]" not in second.ptx


def test_only_executed_lines():
    line = PTX.split("\n").index("    fence.proxy.async.shared::cta;") + 1

    assert [m.kind for m in mutants(PTX, "k", executed=[line])] == ["proxy fence"]
    assert mutants(PTX, "k", executed=[]) == []


def verdict(kind, *killers):
    mutant = Mutant(kind, 1, "", "", "")
    return Verdict(mutant, {("lazy", i): killer for i, killer in enumerate(killers)}, "")


def test_schedules_behind_the_first_that_kills_are_not_tried():
    tried = []

    def run(ptx, schedule, seed):
        tried.append((ptx, schedule, seed))
        if schedule == "lazy":
            raise Deadlock("stuck")
        if schedule == "random":
            raise WrongValues

    mutant = mutants(PTX, "k")[0]
    order = [("round_robin", 0), ("lazy", 0), ("random", 1)]
    found = try_mutant(mutant, run, order)

    assert tried == [(mutant.ptx, "round_robin", 0), (mutant.ptx, "lazy", 0)]
    assert found.killers == {("round_robin", 0): None, ("lazy", 0): "Deadlock"}
    assert found.killed
    assert found.killer == "Deadlock"
    assert found.message == "stuck"
    assert try_mutant(mutant, run, order[2:]).killer == "WrongValues"
    assert not try_mutant(mutant, run, order[:1]).killed


def test_faults_of_the_tool_are_no_kills():
    def run(*_):
        raise KeyError("a fault of the test itself")

    with pytest.raises(KeyError):
        try_mutant(mutants(PTX, "k")[0], run, [("lazy", 0)])


def test_rates():
    found = kill_rates(
        [verdict("wait", None, "RaceError"), verdict("wait", None), verdict("wait", "RaceError"),
         verdict("init", "BarrierError")]
    )  # fmt: skip

    assert found == {"wait": (2, 3, {"RaceError": 2}), "init": (1, 1, {"BarrierError": 1})}
    assert {kind for kind, _ in KINDS} >= set(found)
