"""Accesses to the memories of a cluster: shared memory and tensor memory.

NOTE [Fences of tensor memory]: PTX orders tcgen05 operations of two threads by a barrier only with
`tcgen05.fence::before_thread_sync` (which `tcgen05.commit` implies) on one side of it and
`::after_thread_sync` on the other. Row RELEASED of a clock holds what the first covers and travels
with the barrier; the second copies it to what the warp has `acquired`, which travels no further. An
access that happens after another but has not acquired it is an error only with `strict_fences`:
the fences keep ptxas from moving code, and FlashAttention-4, right on hardware, does without most.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.races.clock import FENCED_SHARED, HAPPENED, STORED
from kernels_sm100.emulator.races.relation import COLUMNS, QUARTERS, Access, Relation
from kernels_sm100.emulator.races.shadow import ASYNC, GENERIC, Conflict, Shadow
from kernels_sm100.errors import MissingFence, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp


class LocalAccesses(Relation):
    """Checks each access to shared and tensor memory against its shadow."""

    def shared_access(self, warp: "Warp", cta: "Cta", cells: Any, *, write: bool) -> None:
        """A generic access to shared memory."""
        clock, me = self.clocks[warp.actor], warp.actor
        epoch, shadow = int(clock.rows[HAPPENED, me]), self.shared[cta.rank]
        if write:
            found = shadow.write(cells, me, clock, epoch, GENERIC, warp.line)
        else:
            found = shadow.read(cells, me, clock, epoch, GENERIC, FENCED_SHARED, warp.line)
        if found is not None:
            self.conflict(
                warp, found, me, f"shared memory at {4 * found.cell:#x}", "fence.proxy.async"
            )

    def shared_atomic(self, warp: "Warp", cta: "Cta", offset: int, size: int, order: str) -> None:
        """An atomic on shared memory: ordered after all earlier ones on the cell."""
        gate = self.gate(("atomic", cta.rank, offset))
        self.clocks[warp.actor].join(gate.arrived)
        cells = slice(offset // 4, max(offset // 4 + 1, (offset + size) // 4))
        self.shared_access(warp, cta, cells, write=True)
        del order
        gate.arrived.join(self.clocks[warp.actor])
        self.tick(warp)

    def tmem_access(
        self, warp: "Warp", quarter: int, column: int, count: int, *, write: bool
    ) -> None:
        """`tcgen05.ld` and `tcgen05.st`."""
        clock, me, shadow = self.clocks[warp.actor], warp.actor, self.tensor[warp.cta.rank]
        cells = slice(quarter * COLUMNS + column, quarter * COLUMNS + column + count)
        epoch = int(clock.rows[HAPPENED, me])
        self._check_fences(warp, shadow, cells, me, "st" if write else "ld", write=write)
        if write:
            found = shadow.write(cells, me, clock, epoch, GENERIC, warp.line)
        else:
            found = shadow.read(cells, me, clock, epoch, GENERIC, STORED, warp.line)
        if found is not None:
            self.conflict(warp, found, me, _column(found), "tcgen05.wait::st")

    def tmem_allocated(self, cta: "Cta", start: int, count: int) -> None:
        """New columns: the allocator orders them after whoever had them before."""
        for quarter in range(QUARTERS):
            first = quarter * COLUMNS + start
            self.tensor[cta.rank].forget(slice(first, first + count))

    def tmem_freed(self, warp: "Warp", start: int, count: int) -> None:
        """Deallocation: as a write, behind every reader."""
        clock, shadow = self.clocks[warp.actor], self.tensor[warp.cta.rank]
        epoch = int(clock.rows[HAPPENED, warp.actor])
        for quarter in range(QUARTERS):
            cells = slice(quarter * COLUMNS + start, quarter * COLUMNS + start + count)
            found = shadow.write(cells, warp.actor, clock, epoch, ASYNC, warp.line)
            if found is not None:
                self.conflict(warp, found, warp.actor, _column(found), "tcgen05.wait::st")

    def async_shared(self, access: Access, cta: "Cta", cells: Any, *, write: bool) -> None:
        """An access of asynchronous work to shared memory."""
        shadow = self.shared[cta.rank]
        if write:
            found = shadow.write(
                cells, access.actor, access.clock, access.epoch, access.proxy, access.line
            )
        else:
            fence = FENCED_SHARED + cta.rank
            found = shadow.read(
                cells, access.actor, access.clock, access.epoch, access.proxy, fence, access.line
            )
        if found is not None:
            where = f"shared memory at {4 * found.cell:#x}"
            self.conflict(access.warp, found, access.actor, where, "fence.proxy.async")

    def issue_mma(self, warp: "Warp", halves: list[Any]) -> None:
        """The accesses of a `tcgen05.mma`, for each CTA it touches."""
        rank = halves[0][0].rank if len(halves) > 1 else warp.cta.rank
        pipe = self.actor(("mma", rank), f"the tensor pipe of CTA rank {rank}")
        access = self.issue(warp, pipe, ASYNC)
        me, clock, epoch, line = access.actor, access.clock, access.epoch, access.line
        for cta, chunks, read, (start, count), add in halves:
            shared, tensor = self.shared[cta.rank], self.tensor[cta.rank]
            fence = FENCED_SHARED + cta.rank
            for each in chunks:
                found = shared.read_chunks(each, me, clock, epoch, fence, line)
                if found is not None:
                    where = f"shared memory at {4 * found.cell:#x}"
                    self.conflict(warp, found, me, where, "fence.proxy.async")
            for column, columns in read + ([(start, count)] if add else []):
                self._tensor(warp, access, tensor, column, columns, write=False)
            self._tensor(warp, access, tensor, start, count, write=True)

    def _tensor(
        self, warp: "Warp", access: Access, shadow: Shadow, start: int, count: int, *, write: bool
    ) -> None:
        me, clock, epoch, line = access.actor, access.clock, access.epoch, access.line
        for quarter in range(QUARTERS):
            cells = slice(quarter * COLUMNS + start, quarter * COLUMNS + start + count)
            self._check_fences(warp, shadow, cells, me, "mma", write=write)
            if write:
                found = shadow.write(cells, me, clock, epoch, ASYNC, line)
            else:
                found = shadow.read(cells, me, clock, epoch, ASYNC, STORED, line)
            if found is not None:
                self.conflict(warp, found, me, _column(found), "tcgen05.wait::st")

    def _check_fences(
        self, warp: "Warp", shadow: Shadow, cells: slice, me: int, what: str, *, write: bool
    ) -> None:
        """Find an access that this one of `me` follows, but without a `tcgen05.fence`."""
        own, acquired = (me, warp.actor), self.acquired[warp.actor]
        known = self.clocks[warp.actor].rows[HAPPENED]  # what is not known either is a race
        writer, epoch = shadow.writer[cells], shadow.epoch[cells]
        late = (acquired[writer] < epoch) & (writer != me) & (writer != warp.actor)
        others = []
        if np.count_nonzero(late):
            others = writer[late & (known[writer] >= epoch)].tolist()
        if write and not others:
            read = np.bitwise_or.reduce(shadow.read_bits[cells])
            others = [
                reader
                for reader, bit in shadow.bit.items()
                if read & bit and reader not in own
                if acquired[reader] < shadow.reads[reader, cells].max() <= known[reader]
            ]
        if not others:
            return
        grid = self.cluster.grid
        if not grid.strict_fences:
            grid.report.warnings[f"tcgen05.{what} that a barrier orders without tcgen05.fence"] += 1
            return
        raise MissingFence(
            sentence(
                what="missing tcgen05.fence",
                where=warp.where(),
                got=f"tcgen05.{what} behind one of {self.name_of(others[0])}",
                wanted="tcgen05.fence::before_thread_sync, or a commit, before the barrier that"
                " orders the two, and tcgen05.fence::after_thread_sync behind it",
                remedy="add the one that is missing",
            )
        )


def _column(found: Conflict) -> str:
    return f"tensor memory column {found.cell % COLUMNS}, lanes from {32 * (found.cell // COLUMNS)}"
