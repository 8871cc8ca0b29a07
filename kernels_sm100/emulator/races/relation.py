"""Happens-before in one cluster: its actors, and the barriers and fences that order them.

A warp's epoch advances whenever something may learn of what it did so far. Asynchronous work gets
an actor of its own (NOTE [Actors]), which starts from a snapshot of its issuer's clock.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernels_sm100.emulator.races.clock import (
    FENCED_GLOBAL,
    FENCED_SHARED,
    HAPPENED,
    RELEASED,
    STORED,
    Clock,
    Gate,
)
from kernels_sm100.emulator.races.global_shadow import GlobalRaces
from kernels_sm100.emulator.races.shadow import Conflict, Shadow
from kernels_sm100.errors import MissingFence, RaceError, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cluster import Cluster
    from kernels_sm100.emulator.machine.warp import Warp

SPARE = 192  # actors besides warps; more mbarriers than that share actors
QUARTERS, COLUMNS = 4, 512


class Access(NamedTuple):
    """Asynchronous work: actor, clock, epoch, and the actor that writes global memory for it."""

    warp: "Warp"
    line: int
    actor: int
    clock: Clock
    epoch: int
    proxy: int
    writer: int


class Relation:
    """Clocks of one cluster's actors, and the synchronisation that joins them."""

    def __init__(self, cluster: "Cluster", warps: int) -> None:
        self.cluster = cluster
        assert cluster.grid.race_memory is not None
        self.memory: GlobalRaces = cluster.grid.race_memory
        self.warps = warps * cluster.size
        self.actors = self.warps + SPARE
        self.clocks = [Clock(self.actors, cluster.size) for _ in range(self.warps)]
        for number, clock in enumerate(self.clocks):
            clock.rows[HAPPENED, number] = 1
        self.names: dict[int, str] = {}
        self.numbers: dict[Hashable, int] = {}
        self.sequence = np.zeros(self.actors, dtype=np.int64)
        self.acquired = np.zeros((self.warps, self.actors), dtype=np.int32)
        self.gates: dict[Hashable, Gate] = {}
        self.fenced: dict[int, Clock] = {}  # by warp: what a fence covers, for relaxed stores after
        self.seen: dict[int, list[tuple[int, Clock]]] = {}  # what relaxed loads saw, for a fence
        self.groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.copies: dict[int, list[int]] = {}

    def attach(self) -> None:
        """Make the shadows, once the CTAs exist."""
        ctas = self.cluster.ctas
        self.shared = [Shadow(cta.shared.data.size // 4, self.actors) for cta in ctas]
        self.tensor = [Shadow(QUARTERS * COLUMNS, self.actors) for _ in ctas]

    def detach(self) -> None:
        """Drop shadows and clocks, once the CTAs are gone."""
        self.shared, self.tensor, self.clocks = [], [], []
        self.gates.clear()

    # Actors

    def actor(self, key: Hashable, name: str) -> int:
        """The number of an actor; more than there is room for share one."""
        number = self.numbers.get(key)
        if number is None:
            number = self.warps + len(self.numbers) % SPARE
            self.numbers[key] = number
            self.names[number] = name
        return number

    def name_of(self, actor: int) -> str:
        """What reports call an actor."""
        if actor < self.warps:
            per_cta = self.warps // self.cluster.size
            rank = f" of CTA rank {actor // per_cta}" if self.cluster.size > 1 else ""
            return f"warp {actor % per_cta}{rank}"
        return self.names.get(actor, f"actor {actor}")

    def tick(self, warp: "Warp") -> None:
        """What the warp does next is new."""
        self.clocks[warp.actor].rows[HAPPENED, warp.actor] += 1

    def issue(self, warp: "Warp", actor: int, proxy: int, writer: int | None = None) -> Access:
        """Start asynchronous work; `writer` is the actor that writes global memory for it."""
        clock = self.clocks[warp.actor].copy()
        writer = actor if writer is None else writer
        for each in {actor, writer}:
            self.sequence[each] += 1
            clock.rows[:, each] = self.sequence[each]
        self.tick(warp)
        return Access(warp, warp.line, actor, clock, int(self.sequence[actor]), proxy, writer)

    # Fences

    def fence(self, warp: "Warp") -> None:
        """`fence.acq_rel` and stronger."""
        clock = self.clocks[warp.actor]
        for number, seen in self.seen.pop(warp.actor, ()):
            clock.join_foreign(self.cluster.number, number, seen)
        self.fenced[warp.actor] = clock.copy()
        self.tick(warp)

    def fence_proxy(self, warp: "Warp", space: str | None) -> None:
        """`fence.proxy.async`: everything known so far is visible to the async proxy.

        `space`, one of "global", "shared::cta" and "shared::cluster", says in which memory; all of
        them if None.
        """
        rows = self.clocks[warp.actor].rows
        start, stop = FENCED_GLOBAL, len(rows)
        if space == "global":
            stop = FENCED_SHARED
        elif space == "shared::cluster":
            start = FENCED_SHARED
        elif space is not None:
            start = FENCED_SHARED + warp.cta.rank
            stop = start + 1
        np.maximum(rows[start:stop], rows[HAPPENED], out=rows[start:stop])
        self.tick(warp)

    def wait_tmem_stores(self, warp: "Warp") -> None:
        """`tcgen05.wait::st`: the warp's own stores are complete."""
        rows = self.clocks[warp.actor].rows
        rows[STORED, warp.actor] = rows[HAPPENED, warp.actor]
        self.tick(warp)

    def fence_tensor(self, warp: "Warp", *, before: bool) -> None:
        """`tcgen05.fence`, see NOTE [Fences of tensor memory]."""
        rows = self.clocks[warp.actor].rows
        if before:
            rows[RELEASED, warp.actor] = rows[HAPPENED, warp.actor]
            self.tick(warp)
        else:
            mine = self.acquired[warp.actor]
            np.maximum(mine, rows[RELEASED], out=mine)

    # Barriers

    def _arrive(self, warp: "Warp", key: Hashable) -> None:
        self.gate(key).arrived.join(self.clocks[warp.actor])

    def gate(self, key: Hashable) -> Gate:
        """The clocks of a barrier, made when it is first used."""
        found = self.gates.get(key)
        if found is None:
            found = self.gates[key] = Gate(self.actors, self.cluster.size)
        return found

    def barrier_made(self, address: int) -> None:
        """`mbarrier.init`."""
        self.gates[address] = Gate(self.actors, self.cluster.size)

    def barrier_arrive(self, warp: "Warp", addresses: set[int]) -> None:
        """Arrivals of a warp at mbarriers."""
        for address in addresses:
            self._arrive(warp, address)
        self.tick(warp)

    def barrier_phase(self, address: int) -> None:
        """The phase of an mbarrier ends."""
        self.gate(address).open()

    def barrier_wait(self, warp: "Warp", address: int) -> None:
        """A warp sees the end of a phase."""
        self.clocks[warp.actor].join(self.gate(address).published)

    def named_arrive(self, warp: "Warp", number: int) -> None:
        """Arrival at a named barrier."""
        self._arrive(warp, ("named", warp.cta.rank, number))
        self.tick(warp)

    def named_complete(self, warp: "Warp", number: int) -> None:
        """A named barrier opens."""
        self.gates["named", warp.cta.rank, number].open()

    def named_wait(self, warp: "Warp", number: int) -> None:
        """A warp passes a named barrier."""
        self.clocks[warp.actor].join(self.gates["named", warp.cta.rank, number].published)

    def cluster_arrive(self, warp: "Warp") -> None:
        """Arrival at the cluster barrier."""
        self._arrive(warp, "cluster")
        self.tick(warp)

    def cluster_complete(self) -> None:
        """The cluster barrier opens."""
        self.gate("cluster").open()

    def cluster_wait(self, warp: "Warp") -> None:
        """A warp passes the cluster barrier."""
        self.clocks[warp.actor].join(self.gate("cluster").published)

    def unfinished(self) -> list[str]:
        """Who may still access the CTAs' memory: work whose end no warp has waited for."""
        known = np.maximum.reduce([clock.rows[HAPPENED] for clock in self.clocks])
        kinds = ("load", "mma", "copy")
        return [
            self.names[number]
            for key, number in self.numbers.items()
            if isinstance(key, tuple) and key[0] in kinds and self.sequence[number] > known[number]
        ]

    # Reports

    def conflict(self, warp: "Warp", found: Conflict, me: int, where: str, fence: str) -> None:
        """Stop at two accesses that nothing orders, or that no fence joins."""
        line = f" at PTX line {found.line}" if found.line else ""
        other = self.name_of(found.other)
        kind, what, wanted = RaceError, f"race: {found.what}", "synchronisation between the two"
        got = f"{self.name_of(me)} is not ordered after {other}{line}"
        remedy = "wait for the barrier that the other signals"
        if found.what == "fence":
            kind, what, wanted = MissingFence, f"missing {fence}", f"{fence} by the writer"
            got = f"{self.name_of(me)} reads what {other} wrote{line} without it"
            remedy = "put it between the write and the barrier"
        raise kind(
            sentence(
                what=f"{what}, {where}", where=warp.where(), got=got, wanted=wanted, remedy=remedy
            )
        )
