"""The events of a cluster: what orders accesses, and what they conflict with.

The machine reports here every access and every synchronisation. A warp's epoch advances whenever
something may learn of what it did so far. Asynchronous work gets an actor of its own (NOTE [Actors]),
which starts from a snapshot of its issuer's clock.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernels_sm100.emulator.launch import Allocation
from kernels_sm100.emulator.races.clock import FENCED, HAPPENED, STORED, Clock, Gate
from kernels_sm100.emulator.races.global_shadow import (
    ATOMIC,
    BULK,
    PLAIN,
    Actor,
    GlobalConflict,
    cells_of,
)
from kernels_sm100.emulator.races.shadow import ASYNC, GENERIC, Conflict, Shadow
from kernels_sm100.errors import MissingFence, RaceError, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.bulk import Item
    from kernels_sm100.emulator.machine.cluster import Cluster
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp

SPARE = 192  # actors besides warps; more mbarriers than that share actors
QUARTERS, COLUMNS = 4, 512
RELEASING = ("release", "acq_rel")
ACQUIRING = ("acquire", "acq_rel")
Array = np.ndarray[Any, Any]


class Access(NamedTuple):
    """Asynchronous work: its actor, clock, epoch, and the actor that writes global memory for it."""

    warp: "Warp"
    line: int
    actor: int
    clock: Clock
    epoch: int
    proxy: int
    writer: int


class ClusterRaces:
    """The happens-before relation of one cluster, and its shadow memory."""

    def __init__(self, cluster: "Cluster", warps: int) -> None:
        self.cluster = cluster
        self.memory = cluster.grid.race_memory
        assert self.memory is not None
        self.warps = warps * cluster.size
        self.actors = self.warps + SPARE
        self.clocks = [Clock(self.actors) for _ in range(self.warps)]
        for number, clock in enumerate(self.clocks):
            clock.rows[HAPPENED, number] = 1
        self.names: dict[int, str] = {}
        self.numbers: dict[Hashable, int] = {}
        self.sequence = np.zeros(self.actors, dtype=np.int64)
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

    def _issue(self, warp: "Warp", actor: int, proxy: int, writer: int | None = None) -> Access:
        clock = self.clocks[warp.actor].copy()
        writer = actor if writer is None else writer
        for each in {actor, writer}:
            self.sequence[each] += 1
            clock.rows[:, each] = self.sequence[each]
        self.tick(warp)
        return Access(warp, warp.line, actor, clock, int(self.sequence[actor]), proxy, writer)

    # Accesses

    def shared_access(self, warp: "Warp", cta: "Cta", cells: Any, *, write: bool) -> None:
        """A generic access to shared memory."""
        clock, me = self.clocks[warp.actor], warp.actor
        epoch, shadow = int(clock.rows[HAPPENED, me]), self.shared[cta.rank]
        if write:
            found = shadow.write(cells, me, clock, epoch, GENERIC, warp.line)
        else:
            found = shadow.read(cells, me, clock, epoch, GENERIC, FENCED, warp.line)
        if found is not None:
            self._report(warp, found, me, f"shared memory at {4 * found.cell:#x}", "fence.proxy.async")

    def shared_atomic(self, warp: "Warp", cta: "Cta", offset: int, size: int, order: str) -> None:
        """An atomic on shared memory: ordered after all earlier ones on the cell."""
        gate = self.gates.setdefault(("atomic", cta.rank, offset), Gate(self.actors))
        self.clocks[warp.actor].join(gate.arrived)
        cells = slice(offset // 4, max(offset // 4 + 1, (offset + size) // 4))
        self.shared_access(warp, cta, cells, write=True)
        del order
        gate.arrived.join(self.clocks[warp.actor])
        self.tick(warp)

    def tmem_access(self, warp: "Warp", quarter: int, column: int, count: int, *, write: bool) -> None:
        """`tcgen05.ld` and `tcgen05.st`."""
        clock, me, shadow = self.clocks[warp.actor], warp.actor, self.tensor[warp.cta.rank]
        cells = slice(quarter * COLUMNS + column, quarter * COLUMNS + column + count)
        epoch = int(clock.rows[HAPPENED, me])
        if write:
            found = shadow.write(cells, me, clock, epoch, GENERIC, warp.line)
        else:
            found = shadow.read(cells, me, clock, epoch, GENERIC, STORED, warp.line)
        if found is not None:
            self._report(warp, found, me, _column(found), "tcgen05.wait::st")

    def tmem_freed(self, warp: "Warp", start: int, count: int) -> None:
        """Deallocation: as a write, behind every reader."""
        clock, shadow = self.clocks[warp.actor], self.tensor[warp.cta.rank]
        epoch = int(clock.rows[HAPPENED, warp.actor])
        for quarter in range(QUARTERS):
            cells = slice(quarter * COLUMNS + start, quarter * COLUMNS + start + count)
            found = shadow.write(cells, warp.actor, clock, epoch, ASYNC, warp.line)
            if found is not None:
                self._report(warp, found, warp.actor, _column(found), "tcgen05.wait::st")

    def async_shared(self, access: Access, cta: "Cta", cells: Any, *, write: bool) -> None:
        """An access of asynchronous work to shared memory."""
        shadow = self.shared[cta.rank]
        if write:
            found = shadow.write(
                cells, access.actor, access.clock, access.epoch, access.proxy, access.line
            )
        else:
            found = shadow.read(
                cells, access.actor, access.clock, access.epoch, access.proxy, FENCED, access.line
            )
        if found is not None:
            where = f"shared memory at {4 * found.cell:#x}"
            self._report(access.warp, found, access.actor, where, "fence.proxy.async")

    def issue_mma(self, warp: "Warp", halves: list[Any]) -> None:
        """The accesses of a `tcgen05.mma`, for each CTA it touches."""
        rank = halves[0][0].rank if len(halves) > 1 else warp.cta.rank
        pipe = self.actor(("mma", rank), f"the tensor pipe of CTA rank {rank}")
        access = self._issue(warp, pipe, ASYNC)
        me, clock, epoch, line = access.actor, access.clock, access.epoch, access.line
        for cta, chunks, read, (start, count), add in halves:
            shared, tensor = self.shared[cta.rank], self.tensor[cta.rank]
            for each in chunks:
                found = shared.read_chunks(each, me, clock, epoch, FENCED, line)
                if found is not None:
                    where = f"shared memory at {4 * found.cell:#x}"
                    self._report(warp, found, me, where, "fence.proxy.async")
            for column, columns in read + ([(start, count)] if add else []):
                self._tensor(warp, access, tensor, column, columns, write=False)
            self._tensor(warp, access, tensor, start, count, write=True)

    def _tensor(
        self, warp: "Warp", access: Access, shadow: Shadow, start: int, count: int, *, write: bool
    ) -> None:
        me, clock, epoch, line = access.actor, access.clock, access.epoch, access.line
        for quarter in range(QUARTERS):
            cells = slice(quarter * COLUMNS + start, quarter * COLUMNS + start + count)
            if write:
                found = shadow.write(cells, me, clock, epoch, ASYNC, line)
            else:
                found = shadow.read(cells, me, clock, epoch, ASYNC, STORED, line)
            if found is not None:
                self._report(warp, found, me, _column(found), "tcgen05.wait::st")

    # Global memory

    def _global(self, warp: "Warp", found: Allocation, conflict: GlobalConflict | None, who: str) -> None:
        if conflict is None:
            return
        other = self.cluster.grid.actor_name(conflict.cluster, conflict.actor)
        line = f" at PTX line {conflict.line}" if conflict.line else ""
        raise RaceError(
            sentence(
                what=f"race: {conflict.what} in global memory, byte {conflict.offset} of {found.name!r}",
                where=warp.where(),
                got=f"{who} is not ordered after {other}{line}",
                wanted="synchronisation between the two",
                remedy="release and acquire a flag, or give each CTA memory of its own",
            )
        )

    def _me(self, warp: "Warp") -> Actor:
        clock = self.clocks[warp.actor]
        return Actor(self.cluster.number, warp.actor, clock, int(clock.rows[HAPPENED, warp.actor]))

    def global_access(
        self,
        warp: "Warp",
        found: Allocation,
        offsets: Array,
        size: int,
        *,
        write: Array | None,
        order: str | None,
    ) -> None:
        """A generic load, or a store of `write`: uint8 [lanes, size]."""
        shadow, cells = self.memory.shadow(found), cells_of(offsets, size)
        if write is None:
            if order in ("acquire", "relaxed", "volatile"):
                self._acquire(warp, found, offsets, order)
            self._global(warp, found, shadow.read(cells, self._me(warp), ordered=order is not None), "the load")
            return
        if order in ("release", "relaxed", "volatile"):
            self._release(warp, found, offsets, order, replace=True)
        same = None
        if size % 4 == 0:
            old = found.data[offsets[:, None] + np.arange(size)]
            same = (old == write).reshape(-1, 4).all(axis=1)
        kind = PLAIN if order is None else ATOMIC
        conflict, twins = shadow.write(cells, self._me(warp), kind, warp.line, same)
        if twins:
            self.cluster.grid.report.warnings["unordered stores of the same value"] += twins
        self._global(warp, found, conflict, "the store")
        if order is not None:
            self.tick(warp)

    def global_atomic(
        self, warp: "Warp", found: Allocation, offset: int, size: int, order: str, op: str
    ) -> None:
        """An atomic on global memory."""
        offsets = np.array([offset])
        if order in ("acquire", "acq_rel", "relaxed"):
            self._acquire(warp, found, offsets, order)
        self._release(warp, found, offsets, order, replace=False)
        shadow = self.memory.shadow(found)
        cells = cells_of(offsets, size)
        conflict, unordered = shadow.write(cells, self._me(warp), ATOMIC, warp.line, None)
        if unordered and op == "add":
            self.cluster.grid.report.counts["unordered_atomic_adds"] += unordered
        self._global(warp, found, conflict, f"the atomic {op}")
        self.tick(warp)

    def async_global(
        self, access: Access, found: Allocation, starts: Array, size: int, *, write: str | None
    ) -> None:
        """An access of asynchronous work to global memory."""
        shadow, cells = self.memory.shadow(found), cells_of(starts, size)
        actor = access.actor if write is None else access.writer
        me = Actor(self.cluster.number, actor, access.clock, int(access.clock.rows[HAPPENED, actor]))
        if write is None:
            self._global(access.warp, found, shadow.read(cells, me, ordered=False), "the copy")
            return
        kind = BULK if write == "store" else ATOMIC
        conflict, unordered = shadow.write(cells, me, kind, access.line, None)
        if unordered and write == "add":
            self.cluster.grid.report.counts["unordered_bulk_adds"] += unordered
        self._global(access.warp, found, conflict, f"the bulk {write}")

    def _acquire(self, warp: "Warp", found: Allocation, offsets: Array, order: str) -> None:
        for address in {found.address + int(o) for o in offsets}:
            known = self.memory.releases.get(address)
            if known is None:
                continue
            if order in ACQUIRING:
                self.clocks[warp.actor].join_foreign(self.cluster.number, *known)
            else:
                self.seen.setdefault(warp.actor, []).append((known[0], known[1].copy()))

    def _release(
        self, warp: "Warp", found: Allocation, offsets: Array, order: str, *, replace: bool
    ) -> None:
        clock = self.clocks[warp.actor] if order in RELEASING else self.fenced.get(warp.actor)
        for address in {found.address + int(o) for o in offsets}:
            before = self.memory.releases.get(address)
            if clock is None:
                if replace:
                    self.memory.releases.pop(address, None)
                continue
            made = clock.copy()
            if before is not None and not replace:
                made.join_foreign(self.cluster.number, *before)
            self.memory.releases[address] = (self.cluster.number, made)
        self.tick(warp)

    # Fences

    def fence(self, warp: "Warp") -> None:
        """`fence.acq_rel` and stronger."""
        clock = self.clocks[warp.actor]
        for number, seen in self.seen.pop(warp.actor, ()):
            clock.join_foreign(self.cluster.number, number, seen)
        self.fenced[warp.actor] = clock.copy()
        self.tick(warp)

    def fence_proxy(self, warp: "Warp") -> None:
        """`fence.proxy.async`: everything known so far is visible to the async proxy."""
        rows = self.clocks[warp.actor].rows
        np.maximum(rows[FENCED], rows[HAPPENED], out=rows[FENCED])
        self.tick(warp)

    def wait_tmem_stores(self, warp: "Warp") -> None:
        """`tcgen05.wait::st`: the warp's own stores are complete."""
        rows = self.clocks[warp.actor].rows
        rows[STORED, warp.actor] = rows[HAPPENED, warp.actor]
        self.tick(warp)

    # Barriers

    def _arrive(self, warp: "Warp", key: Hashable) -> None:
        self.gates.setdefault(key, Gate(self.actors)).arrived.join(self.clocks[warp.actor])

    def barrier_made(self, address: int) -> None:
        """`mbarrier.init`."""
        self.gates[address] = Gate(self.actors)

    def barrier_arrive(self, warp: "Warp", addresses: set[int]) -> None:
        """Arrivals of a warp at mbarriers."""
        for address in addresses:
            self._arrive(warp, address)
        self.tick(warp)

    def barrier_phase(self, address: int) -> None:
        """The phase of an mbarrier ends."""
        self.gates.setdefault(address, Gate(self.actors)).open()

    def barrier_wait(self, warp: "Warp", address: int) -> None:
        """A warp sees the end of a phase."""
        self.clocks[warp.actor].join(self.gates.setdefault(address, Gate(self.actors)).published)

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
        self.gates.setdefault("cluster", Gate(self.actors)).open()

    def cluster_wait(self, warp: "Warp") -> None:
        """A warp passes the cluster barrier."""
        self.clocks[warp.actor].join(self.gates.setdefault("cluster", Gate(self.actors)).published)

    # Asynchronous work

    def issue_load(self, warp: "Warp", barrier: int) -> Access:
        """A copy that signals an mbarrier."""
        name = f"a copy for the mbarrier at {barrier & 0xFFFFFF:#x}"
        return self._issue(warp, self.actor(("load", barrier), name), ASYNC)

    def complete_load(self, access: Access, barrier: int) -> None:
        """Asynchronous work signals an mbarrier: its waiters know it, and its issuer's past."""
        self.gates.setdefault(barrier, Gate(self.actors)).arrived.join(access.clock)

    def issue_commit(self, warp: "Warp", group: int) -> Access:
        """`tcgen05.commit`: knows all that its pipe has done."""
        rank = warp.cta.rank & ~1 if group == 2 else warp.cta.rank
        pipe = self.actor(("mma", rank), f"the tensor pipe of CTA rank {rank}")
        return self._issue(warp, pipe, ASYNC)

    def issue_store(self, warp: "Warp", item: "Item") -> Access:
        """A bulk store: one actor reads shared memory, another writes global memory."""
        reader = self.actor(("store", warp.actor), f"bulk stores of {self.name_of(warp.actor)}")
        writer = self.actor(("stored", warp.actor), f"bulk stores of {self.name_of(warp.actor)}")
        access = self._issue(warp, reader, ASYNC, writer)
        item.epoch = access.epoch
        return access

    def commit_stores(self, warp: "Warp", lane: int, group: list["Item"]) -> None:
        """A bulk group is closed: remember how far its stores go."""
        writer = self.numbers.get(("stored", warp.actor), 0)
        last = max((item.epoch for item in group), default=0)
        written = int(self.sequence[writer]) if writer else 0
        self.groups.setdefault((warp.actor, lane), []).append((last, written))

    def wait_stores(self, warp: "Warp", lane: int, left: int, *, read: bool) -> None:
        """`wait_group`: all but the last `left` groups have read; without `read`, also written."""
        groups = self.groups.get((warp.actor, lane), [])
        if len(groups) <= left:
            return
        last, written = groups[len(groups) - 1 - left]
        rows = self.clocks[warp.actor].rows
        reader = self.numbers.get(("store", warp.actor))
        writer = self.numbers.get(("stored", warp.actor))
        if reader is not None:
            rows[HAPPENED, reader] = max(rows[HAPPENED, reader], last)
        if writer is not None and not read:
            rows[HAPPENED, writer] = max(rows[HAPPENED, writer], written)

    def issue_copy(self, warp: "Warp", item: "Item | None") -> Access:
        """`cp.async`: a write of the generic proxy, at its own time."""
        name = f"cp.async of {self.name_of(warp.actor)}"
        access = self._issue(warp, self.actor(("copy", warp.actor), name), GENERIC)
        access.clock.rows[FENCED, access.actor] = 0
        if item is not None:
            item.epoch = access.epoch
        return access

    def commit_copies(self, warp: "Warp") -> None:
        """`cp.async.commit_group`."""
        actor = self.numbers.get(("copy", warp.actor))
        last = 0 if actor is None else int(self.sequence[actor])
        self.copies.setdefault(warp.actor, []).append(last)

    def wait_copies(self, warp: "Warp", left: int) -> None:
        """`cp.async.wait_group`."""
        groups, actor = self.copies.get(warp.actor, []), self.numbers.get(("copy", warp.actor))
        if actor is None or len(groups) <= left:
            return
        row = self.clocks[warp.actor].rows[HAPPENED]
        row[actor] = max(row[actor], groups[len(groups) - 1 - left])

    def tmem_allocated(self, cta: "Cta", start: int, count: int) -> None:
        """New columns: what was there before does not matter."""
        del cta, start, count

    # Reports

    def _report(self, warp: "Warp", found: Conflict, me: int, where: str, fence: str) -> None:
        line = f" at PTX line {found.line}" if found.line else ""
        other = self.name_of(found.other)
        kind, what, wanted = RaceError, f"race: {found.what}", "synchronisation between the two"
        got = f"{self.name_of(me)} is not ordered after {other}{line}"
        remedy = "wait for the barrier that the other signals"
        if found.what == "fence":
            kind, what, wanted = MissingFence, f"missing {fence}", f"{fence} by the writer"
            got = f"{self.name_of(me)} reads what {other} wrote{line} without it"
            remedy = "put it between the write and the barrier"
        raise kind(sentence(what=f"{what}, {where}", where=warp.where(), got=got, wanted=wanted, remedy=remedy))


def _column(found: Conflict) -> str:
    return f"tensor memory column {found.cell % COLUMNS}, lanes from {32 * (found.cell // COLUMNS)}"
