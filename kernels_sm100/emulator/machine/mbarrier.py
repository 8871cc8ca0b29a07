"""mbarriers: phases that end when all arrivals and all announced bytes are in.

NOTE [Phases]: a barrier counts phases from 0. The phase ends when no arrival is pending and the
transaction count is 0; arrivals are then pending anew. Waiting for parity p succeeds once the
phase with that parity has ended, so a waiter that is two phases behind waits for the wrong one:
that is an overrun, and an error here, where hardware would hang or go on too early. `try_wait` may
give up and return false, which a loop around it has to expect: random schedules do so at times.

NOTE [Initialisation]: the async proxy and other CTAs see an initialised barrier only behind
`fence.mbarrier_init` or `fence.proxy.async` of the warp that initialised it.
"""

from typing import TYPE_CHECKING

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import shared
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.emulator.machine.uniform import running, uniform
from kernels_sm100.errors import BarrierError, BarrierOverrun, MissingFence

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cluster import Cluster
    from kernels_sm100.emulator.machine.warp import Warp

MOST = (1 << 20) - 1  # arrivals and bytes that a barrier can count


class Mbarrier:
    """One barrier: its place, what it expects and what is still to come.

    `arrived` and `before` say who arrived in this phase and in the last one, for reports.
    """

    __slots__ = (
        "address", "arrived", "before", "expected", "maker", "pending", "phase", "published",
        "transactions",
    )  # fmt: skip

    def __init__(self, address: int, expected: int, maker: "Warp") -> None:
        self.address = address
        self.expected = expected
        self.pending = expected
        self.transactions = 0
        self.phase = 0
        self.maker = maker
        self.published = False
        self.arrived: list[str] = []
        self.before: list[str] = []

    def __str__(self) -> str:
        return (
            f"mbarrier at offset {self.address & 0xFFFFFF:#x} of CTA rank {self.address >> 24}: "
            f"phase {self.phase}, {self.pending} of {self.expected} arrivals missing, "
            f"{self.transactions} bytes to come; {self._who()}"
        )

    def _who(self) -> str:
        now = ", ".join(self.arrived) or "nobody"
        if self.phase == 0:
            return f"arrived so far: {now}"
        return (
            f"arrived so far: {now}; phase {self.phase - 1} had {', '.join(self.before) or 'bytes'}"
        )


def initialise(warp: "Warp", address: Lanes, count: Lanes, mask: Mask | None) -> None:
    """`mbarrier.init`, by each running lane."""
    for lane in running(mask):
        place, expected = int(address[lane]), int(count[lane])
        if place % 8:
            shared.misaligned(warp, "mbarrier", place, 8)
        shared.check_range(warp, warp.cta.shared, place & 0xFFFFFF, 8, "mbarrier")
        if not 0 < expected <= MOST:
            warp.fault(
                BarrierError,
                what="mbarrier with an impossible count",
                got=expected,
                wanted=f"1 to {MOST}",
                remedy="count the threads that arrive",
            )
        warp.cta.cluster.mbarriers[place] = Mbarrier(place, expected, warp)
        warp.cta.shared.barriers[(place & 0xFFFFFF) // 8] = True
        if warp.races is not None:
            warp.races.barrier_made(place)
        warp.grid.events += 1


def invalidate(warp: "Warp", address: Lanes, mask: Mask | None) -> None:
    """`mbarrier.inval`."""
    for lane in running(mask):
        find(warp, int(address[lane]))
        del warp.cta.cluster.mbarriers[int(address[lane])]
        warp.cta.shared.barriers[(int(address[lane]) & 0xFFFFFF) // 8] = False


def publish(warp: "Warp") -> None:
    """A fence makes the barriers that this warp initialised visible."""
    for barrier in warp.cta.cluster.mbarriers.values():
        if barrier.maker is warp:
            barrier.published = True


def find(warp: "Warp", address: int, *, remote: bool = False) -> Mbarrier:
    """The barrier at an address; `remote` if the async proxy or another CTA uses it."""
    found = warp.cta.cluster.mbarriers.get(address)
    if found is None:
        warp.fault(
            BarrierError,
            what="mbarrier that is not initialised",
            got=f"offset {address & 0xFFFFFF:#x} of CTA rank {address >> 24}",
            wanted="mbarrier.init, ordered before",
            remedy="initialise it, and synchronise the CTA or the cluster after that",
        )
    remote = remote or address >> 24 != warp.cta.rank
    if warp.races is not None and remote and not found.published:
        warp.fault(
            MissingFence,
            what="mbarrier whose initialisation is not visible here",
            got="no fence since mbarrier.init",
            wanted="fence.mbarrier_init.release.cluster (or fence.proxy.async)",
            remedy="fence after the last mbarrier.init, before the synchronisation",
        )
    return found


def _advance(cluster: "Cluster", barrier: Mbarrier) -> None:
    """End the phase if nothing is missing."""
    if barrier.pending == 0 and barrier.transactions == 0:
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.before, barrier.arrived = barrier.arrived[-8:], []
        cluster.grid.events += 1
        if cluster.races is not None:
            cluster.races.barrier_phase(barrier.address)


def count_down(warp: "Warp", barrier: Mbarrier, arrivals: int, who: str) -> None:
    """Take arrivals off, refusing more than were expected."""
    barrier.pending -= arrivals
    if barrier.pending < 0:
        earlier = ", ".join(barrier.arrived[-6:]) or "nobody"
        warp.fault(
            BarrierError,
            what="more arrivals at an mbarrier than it expects",
            got=f"arrival by {who} after {earlier} in phase {barrier.phase}",
            wanted=f"{barrier.expected} arrivals a phase",
            remedy="correct the count of mbarrier.init, or the role that arrives twice",
        )
    barrier.arrived.append(who)
    warp.grid.events += 1
    _advance(warp.cta.cluster, barrier)


def deliver(warp: "Warp", barrier: Mbarrier, size: int) -> None:
    """`complete_tx`: bytes have arrived."""
    barrier.transactions -= size
    warp.grid.events += 1
    _advance(warp.cta.cluster, barrier)


def expect_tx(warp: "Warp", address: Lanes, count: Lanes, mask: Mask | None) -> None:
    """`mbarrier.expect_tx`, by each running lane."""
    for lane in running(mask):
        find(warp, int(address[lane])).transactions += int(count[lane])


def complete_tx(warp: "Warp", address: Lanes, count: Lanes, mask: Mask | None) -> None:
    """`mbarrier.complete_tx`."""
    for lane in running(mask):
        deliver(warp, find(warp, int(address[lane])), int(count[lane]))


def arrive(
    warp: "Warp",
    address: Lanes,
    number: Lanes,
    mask: Mask | None,
    expect: bool,
    drop: bool,
) -> list[Lanes]:
    """`mbarrier.arrive`: returns, a lane, the phase arrived in."""
    states = np.zeros(32, dtype=np.uint64)
    lanes = running(mask)
    if warp.races is not None:
        warp.races.barrier_arrive(warp, {int(address[lane]) for lane in lanes})
    who = f"warp {warp.index} (line {warp.line})"
    for lane in lanes:
        barrier = find(warp, int(address[lane]))
        states[lane] = barrier.phase
        if expect:
            barrier.transactions += int(number[lane])
        if drop:
            barrier.expected -= 1
        count_down(warp, barrier, 1 if expect else int(number[lane]), who)
    return [states]


def wait(
    warp: "Warp",
    address: Lanes,
    state: Lanes,
    mask: Mask | None,
    parity: bool,
    test: bool,
) -> bool | None:
    """`try_wait` and `test_wait`: whether the phase has ended; None to block."""
    place = uniform(warp, address, mask, "mbarrier address")
    wanted = uniform(warp, state, mask, "mbarrier parity or state")
    barrier = find(warp, place)
    fragment = warp.current
    ended = (barrier.phase & 1) != (wanted & 1) if parity else barrier.phase > wanted
    if fragment.pending is not None and fragment.pending[0] is barrier:
        since = fragment.pending[1]
        if barrier.phase >= since + 2:
            warp.fault(
                BarrierOverrun,
                what="mbarrier that ran two phases ahead of a waiter",
                got=f"phase {barrier.phase}",
                wanted=f"phase {since + 1}, which the waiter has yet to see",
                remedy="let the producer wait for the consumer before it goes round again",
            )
    if ended:
        fragment.pending = None
        if warp.races is not None:
            warp.races.barrier_wait(warp, place)
        return True
    if test or warp.grid.gives_up():
        return False
    fragment.pending = (barrier, barrier.phase)
    phase = barrier.phase
    warp.block_on(
        Wait(
            "mbarrier",
            lambda: barrier.phase != phase,
            lambda: f"{_wanted(wanted, parity)} of {barrier}",
        )
    )
    return None


def _wanted(wanted: int, parity: bool) -> str:
    return f"parity {wanted & 1}" if parity else f"the end of phase {wanted}"
