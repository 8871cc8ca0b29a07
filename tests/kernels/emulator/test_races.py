"""Vector clocks against reachability in a graph of events, and the parts that a graph does not show."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_sm100.emulator.races.clock import HAPPENED, Clock
from kernels_sm100.emulator.races.detector import ClusterRaces
from kernels_sm100.emulator.races.global_shadow import Actor, GlobalRaces, cells_of, split
from kernels_sm100.emulator.races.shadow import ASYNC, GENERIC, Shadow
from kernels_sm100.errors import RaceError

WARPS, CELLS, BARRIERS = 4, 3, 2


class Warp(SimpleNamespace):
    def where(self) -> str:
        return f"warp {self.actor}"


def machine() -> tuple[ClusterRaces, list[Warp], SimpleNamespace]:
    """A relation without a machine: four warps of one CTA."""
    cta = SimpleNamespace(shared=SimpleNamespace(data=np.zeros(4 * 16, "u1")), rank=0)
    grid = SimpleNamespace(race_memory=GlobalRaces())
    races = ClusterRaces(SimpleNamespace(grid=grid, size=1, number=0, ctas=[cta]), WARPS)
    races.attach()
    return races, [Warp(actor=i, line=10 + i, cta=cta) for i in range(WARPS)], cta


events = st.one_of(
    st.tuples(
        st.sampled_from(["read", "write"]), st.integers(0, WARPS - 1), st.integers(0, CELLS - 1)
    ),
    st.tuples(
        st.sampled_from(["arrive", "wait"]), st.integers(0, WARPS - 1), st.integers(0, BARRIERS - 1)
    ),
    st.tuples(st.just("phase"), st.just(0), st.integers(0, BARRIERS - 1)),
)


def first_race_by_clocks(trace) -> int | None:
    races, warps, cta = machine()
    for at, (what, who, which) in enumerate(trace):
        if what == "arrive":
            races.barrier_arrive(warps[who], {which})
        elif what == "wait":
            races.barrier_wait(warps[who], which)
        elif what == "phase":
            races.barrier_phase(which)
        else:
            try:
                races.shared_access(warps[who], cta, np.array([which]), write=what == "write")
            except RaceError:
                return at
    return None


def first_race_by_graph(trace) -> int | None:
    """Arrivals precede the next end of a phase, and that precedes every later wait."""
    before: list[set[int]] = []  # events that happen before each
    last = dict.fromkeys(range(WARPS))
    arrivals = {b: set() for b in range(BARRIERS)}
    published = {b: set() for b in range(BARRIERS)}
    for at, (what, who, which) in enumerate(trace):
        known: set[int] = set()
        if what == "phase":
            published[which] |= arrivals[which]
            before.append(known)
            continue
        if last[who] is not None:
            known |= before[last[who]] | {last[who]}
        if what == "wait":
            known |= published[which]
        before.append(known)
        last[who] = at
        if what == "arrive":
            arrivals[which] |= known | {at}
        elif what in ("read", "write"):
            for earlier in range(at):
                kind, other, cell = trace[earlier]
                conflict = kind in ("read", "write") and cell == which and "write" in (kind, what)
                if conflict and other != who and earlier not in known:
                    return at
    return None


@given(st.lists(events, max_size=40))
def test_clocks_find_the_first_race_of_any_trace(trace):
    assert first_race_by_clocks(trace) == first_race_by_graph(trace)


def test_the_graph_finds_races():
    """The oracle is not blind: one trace of each kind."""
    for first, second in (("write", "read"), ("read", "write"), ("write", "write")):
        trace = [(first, 0, 1), (second, 1, 1)]
        ordered = [(first, 0, 1), ("arrive", 0, 0), ("phase", 0, 0), ("wait", 1, 0), (second, 1, 1)]
        assert first_race_by_graph(trace) == 1
        assert first_race_by_graph(ordered) is None


def test_knowledge_travels_through_other_clusters():
    a, b = Clock(4), Clock(4)
    a.rows[HAPPENED, 2] = 7
    b.join_foreign(1, 0, a)
    assert b.knows(1, 0, 2) == 7
    assert b.knows(1, 5, 2) == 0

    later = Clock(4)
    later.join_foreign(0, 1, b)  # cluster 0 learns its own past back from cluster 1
    assert later.knows(0, 0, 2) == 7
    assert 0 not in later.foreign


def test_more_readers_than_bits():
    shadow, clock = Shadow(8, 100), Clock(100)
    for reader in range(70):
        assert shadow.read(np.array([3]), reader, clock, 1, GENERIC, 1, 5) is None
    known = Clock(100)
    known.rows[HAPPENED, :69] = 1

    found = shadow.write(np.array([3]), 80, known, 1, GENERIC, 9)

    assert (found.what, found.other, found.cell) == ("write over a read", 69, 3)


def test_asynchronous_reads_need_the_fence_row_too():
    shadow, writer = Shadow(8, 4), Clock(4)
    writer.rows[HAPPENED, 0] = 1
    shadow.write(slice(0, 4), 0, writer, 1, GENERIC, 11)
    reader = writer.copy()

    found = shadow.read(slice(2, 6), 1, reader, 1, ASYNC, 1, 12)
    assert (found.what, found.other, found.line, found.cell) == ("fence", 0, 11, 2)
    reader.rows[1, 0] = 1
    assert shadow.read(slice(2, 6), 1, reader, 1, ASYNC, 1, 12) is None


def test_forgotten_cells_conflict_with_nothing():
    shadow, clock = Shadow(8, 4), Clock(4)
    shadow.write(slice(0, 4), 0, clock, 5, GENERIC, 11)
    shadow.read(slice(4, 8), 1, clock, 5, GENERIC, 1, 12)
    shadow.forget(slice(0, 8))

    assert shadow.write(slice(0, 8), 2, clock, 1, GENERIC, 13) is None


def test_names_of_actors():
    clock = Clock(4)
    for cluster, number in ((0, 0), (0, 4095), (7, 3)):
        assert split(Actor(cluster, number, clock, 1).name) == (cluster, number)


@pytest.mark.parametrize(
    ("starts", "size", "cells"),
    [([0], 4, [0]), ([2], 4, [0, 1]), ([8, 20], 8, [2, 3, 5, 6]), ([1], 1, [0]), ([6], 2, [1])],
)
def test_cells_of_ranges(starts, size, cells):
    assert cells_of(np.array(starts), size).tolist() == cells
