"""Named barriers of a CTA, and the barrier of a cluster.

NOTE [Counting threads]: an aligned barrier counts whole warps; the forms without `.aligned` count
the lanes that execute them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.emulator.machine.uniform import uniform
from kernels_sm100.errors import BarrierError

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

BARRIERS = 16


class NamedBarrier:
    """One of the 16 barriers: who is there, of how many."""

    __slots__ = ("arrived", "count", "generation", "number", "result", "votes", "warps")

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived = 0
        self.count = 0
        self.generation = 0
        self.warps: list[str] = []
        self.votes: list[Any] = []
        self.result: list[Any] = []

    def __str__(self) -> str:
        there = ", ".join(self.warps) or "nobody"
        return f"barrier {self.number}: {self.arrived} of {self.count} threads, from {there}"


def _arrive(
    warp: "Warp", number: Lanes, count: Lanes | None, mask: Mask | None, *, aligned: bool
) -> NamedBarrier:
    index = uniform(warp, number, mask, "barrier number")
    size = warp.cta.threads if count is None else uniform(warp, count, mask, "thread count")
    rounded = -(-size // 32) * 32
    barrier = warp.cta.named.setdefault(index, NamedBarrier(index))
    if index >= BARRIERS or (count is not None and size % 32):
        warp.fault(
            BarrierError,
            what="impossible named barrier",
            got=f"barrier {index} of {size} threads",
            wanted=f"a number below {BARRIERS} and a multiple of 32 threads",
            remedy="correct the operands",
        )
    if barrier.arrived and barrier.count != rounded:
        warp.fault(
            BarrierError,
            what="named barrier with two thread counts",
            got=f"{rounded} here, {barrier.count} from {', '.join(barrier.warps)}",
            wanted="one count by all",
            remedy="let every role use the same number of threads",
        )
    barrier.count = rounded
    barrier.arrived += 32 if aligned or mask is None else int(np.count_nonzero(mask))
    barrier.warps.append(f"warp {warp.index} (line {warp.line})")
    if barrier.arrived > barrier.count:
        warp.fault(
            BarrierError,
            what="more threads at a named barrier than it counts",
            got=f"{barrier.arrived} threads: {', '.join(barrier.warps[-6:])}",
            wanted=f"{barrier.count}",
            remedy="correct the count, or give the roles barriers of their own",
        )
    warp.grid.events += 1
    if warp.races is not None:
        warp.races.named_arrive(warp, index)
    return barrier


def _complete(warp: "Warp", barrier: NamedBarrier) -> bool:
    """Open the barrier if all are there."""
    if barrier.arrived < barrier.count:
        return False
    barrier.arrived = 0
    barrier.generation += 1
    barrier.warps = []
    barrier.result, barrier.votes = barrier.votes, []
    if warp.races is not None:
        warp.races.named_complete(warp, barrier.number)
    return True


def arrive(
    warp: "Warp",
    number: Lanes,
    count: Lanes | None,
    mask: Mask | None,
    aligned: bool,
) -> None:
    """`bar.arrive`."""
    _complete(warp, _arrive(warp, number, count, mask, aligned=aligned))


def sync(
    warp: "Warp",
    number: Lanes,
    count: Lanes | None,
    mask: Mask | None,
    aligned: bool,
) -> bool:
    """`bar.sync`: True to block."""
    fragment = warp.current
    if fragment.pending is None:
        barrier = _arrive(warp, number, count, mask, aligned=aligned)
        generation = barrier.generation
        fragment.pending = (barrier, generation)
        if not _complete(warp, barrier):
            return warp.block_on(
                Wait("barrier", lambda: barrier.generation != generation, lambda: str(barrier))
            )
    joined, _ = fragment.pending
    assert isinstance(joined, NamedBarrier)
    fragment.pending = None
    if warp.races is not None:
        warp.races.named_wait(warp, joined.number)
    return False


def reduce(
    warp: "Warp",
    number: Lanes,
    count: Lanes | None,
    value: Mask,
    mask: Mask | None,
    how: str,
) -> Lanes | None:
    """`bar.red`: the result in all lanes, or None to block."""
    if warp.current.pending is None:
        index = uniform(warp, number, mask, "barrier number")
        barrier = warp.cta.named.setdefault(index, NamedBarrier(index))
        barrier.votes.append(value[warp.live] if mask is None else value[mask])
    index = uniform(warp, number, mask, "barrier number")
    if sync(warp, number, count, mask, aligned=True):
        return None
    votes = np.concatenate(warp.cta.named[index].result)
    if how == "popc":
        return np.full(32, np.count_nonzero(votes), dtype=np.uint32)
    return np.full(32, votes.all() if how == "and" else votes.any())


class ClusterBarrier:
    """All threads of all CTAs of a cluster."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.arrived = 0
        self.generation = 0

    def __str__(self) -> str:
        return f"cluster barrier: {self.arrived} of {self.threads} threads"


def cluster_arrive(warp: "Warp", mask: Mask | None, relaxed: bool) -> None:
    """`barrier.cluster.arrive`."""
    barrier = warp.cta.cluster.barrier
    if warp.cluster_phase is not None:
        warp.fault(
            BarrierError,
            what="second arrival at the cluster barrier without a wait",
            got="barrier.cluster.arrive twice",
            wanted="barrier.cluster.wait in between",
            remedy="pair them",
        )
    warp.cluster_phase = barrier.generation
    barrier.arrived += 32 if mask is None else int(np.count_nonzero(mask))
    warp.grid.events += 1
    if warp.races is not None and not relaxed:
        warp.races.cluster_arrive(warp)
    if barrier.arrived == barrier.threads:
        barrier.arrived = 0
        barrier.generation += 1
        if warp.races is not None:
            warp.races.cluster_complete()


def cluster_wait(warp: "Warp") -> bool:
    """`barrier.cluster.wait`: True to block."""
    barrier = warp.cta.cluster.barrier
    if warp.cluster_phase is None:
        warp.fault(
            BarrierError,
            what="wait at the cluster barrier without an arrival",
            got="barrier.cluster.wait",
            wanted="barrier.cluster.arrive before",
            remedy="pair them",
        )
    phase = warp.cluster_phase
    if barrier.generation == phase:
        return warp.block_on(
            Wait("cluster barrier", lambda: barrier.generation != phase, lambda: str(barrier))
        )
    warp.cluster_phase = None
    if warp.races is not None:
        warp.races.cluster_wait(warp)
    return False
