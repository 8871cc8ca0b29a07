"""What the machine reports to: accesses and synchronisation of one cluster, in one object."""

from typing import TYPE_CHECKING

from kernels_sm100.emulator.races.clock import FENCED_GLOBAL, HAPPENED
from kernels_sm100.emulator.races.global_accesses import GlobalAccesses
from kernels_sm100.emulator.races.local_accesses import LocalAccesses
from kernels_sm100.emulator.races.relation import Access
from kernels_sm100.emulator.races.shadow import ASYNC, GENERIC

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.bulk import Item
    from kernels_sm100.emulator.machine.warp import Warp


class ClusterRaces(LocalAccesses, GlobalAccesses):
    """The happens-before relation of a cluster, its shadow memory, and its asynchronous work."""

    def issue_load(self, warp: "Warp", barrier: int) -> Access:
        """A copy that signals an mbarrier."""
        name = f"a copy for the mbarrier at {barrier & 0xFFFFFF:#x}"
        return self.issue(warp, self.actor(("load", barrier), name), ASYNC)

    def complete_load(self, access: Access, barrier: int) -> None:
        """Asynchronous work signals an mbarrier: its waiters know it, and its issuer's past."""
        self.gate(barrier).arrived.join(access.clock)

    def issue_commit(self, warp: "Warp", group: int) -> Access:
        """`tcgen05.commit`: knows all that its pipe has done."""
        rank = warp.cta.rank & ~1 if group == 2 else warp.cta.rank
        pipe = self.actor(("mma", rank), f"the tensor pipe of CTA rank {rank}")
        return self.issue(warp, pipe, ASYNC)

    def issue_store(self, warp: "Warp", item: "Item") -> Access:
        """A bulk store: one actor reads shared memory, another writes global memory."""
        reader = self.actor(("store", warp.actor), f"bulk stores of {self.name_of(warp.actor)}")
        writer = self.actor(("stored", warp.actor), f"bulk stores of {self.name_of(warp.actor)}")
        access = self.issue(warp, reader, ASYNC, writer)
        item.epoch = access.epoch
        return access

    def commit_stores(self, warp: "Warp", lane: int, group: list["Item"]) -> None:
        """A bulk group is closed: remember how far its stores go."""
        writer = self.numbers.get(("stored", warp.actor), 0)
        groups = self.groups.setdefault((warp.actor, lane), [])
        before = groups[-1][0] if groups else 0
        last = max((item.epoch for item in group), default=before)
        written = int(self.sequence[writer]) if writer else 0
        groups.append((last, written))

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
        access = self.issue(warp, self.actor(("copy", warp.actor), name), GENERIC)
        access.clock.rows[FENCED_GLOBAL:, access.actor] = 0
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
