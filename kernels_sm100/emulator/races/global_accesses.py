"""Accesses to global memory, and the releases and acquires that order clusters by it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.global_memory import Allocation
from kernels_sm100.emulator.races.clock import FENCED_GLOBAL, HAPPENED
from kernels_sm100.emulator.races.global_shadow import (
    ATOMIC,
    BULK,
    PLAIN,
    Actor,
    GlobalConflict,
    cells_of,
)
from kernels_sm100.emulator.races.relation import Access, Relation
from kernels_sm100.emulator.races.shadow import ASYNC
from kernels_sm100.errors import MissingFence, RaceError, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

RELEASING = ("release", "acq_rel")
ACQUIRING = ("acquire", "acq_rel")
Array = np.ndarray[Any, Any]


class GlobalAccesses(Relation):
    """Checks each access to global memory against the shadow that all clusters share."""

    def _global(
        self, warp: "Warp", found: Allocation, conflict: GlobalConflict | None, who: str
    ) -> None:
        if conflict is None:
            return
        other = self.cluster.grid.actor_name(conflict.cluster, conflict.actor)
        line = f" at PTX line {conflict.line}" if conflict.line else ""
        raise RaceError(
            sentence(
                what=f"race: {conflict.what}, byte {conflict.offset} of {found.name!r}",
                where=warp.where(),
                got=f"{who} is not ordered after {other}{line}",
                wanted="synchronisation between the two",
                remedy="release and acquire a flag, or give each CTA memory of its own",
            )
        )

    def _unfenced(self, access: Access, found: Allocation, conflict: GlobalConflict) -> None:
        raise MissingFence(
            sentence(
                what=f"missing fence.proxy.async, byte {conflict.offset} of {found.name!r}",
                where=access.warp.where(),
                got=f"an asynchronous read of what {self.name_of(conflict.actor)} stored"
                f" at PTX line {conflict.line}",
                wanted="fence.proxy.async by the writer",
                remedy="put it between the store and the barrier",
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
            self._global(
                warp,
                found,
                shadow.read(cells, self._me(warp), ordered=order is not None),
                "the load",
            )
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
        me = Actor(
            self.cluster.number, actor, access.clock, int(access.clock.rows[HAPPENED, actor])
        )
        if write is None:
            self._global(access.warp, found, shadow.read(cells, me, ordered=False), "the copy")
            unfenced = shadow.unfenced(cells, me, access.clock.rows[FENCED_GLOBAL])
            if unfenced is not None and access.proxy == ASYNC:
                self._unfenced(access, found, unfenced)
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
