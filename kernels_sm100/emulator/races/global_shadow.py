"""Shadow of global memory, which all clusters of a launch share.

NOTE [Kinds of global writes]: plain stores, stores of the async proxy, and atomics. Two atomics on
one cell are no race. If they add floats and nothing orders them, the sum depends on the schedule:
such pairs are counted, so that a kernel that claims to be deterministic can be held to it. A store
that finds its own value already there is counted too, and is no race: kernels write duplicates on
purpose.

NOTE [Readers of a cell]: a cell remembers few readers, one for each remainder of (cluster, actor).
Reads by many actors before a write that only some of them precede may go unnoticed.
"""

from typing import Any, NamedTuple

import numpy as np

from kernels_sm100.emulator.global_memory import Allocation
from kernels_sm100.emulator.races.clock import Clock

Array = np.ndarray[Any, Any]
PLAIN, BULK, ATOMIC = 1, 2, 3
SLOTS = 4
CLUSTER_SHIFT = 12  # actors of a cluster fit below


class Actor(NamedTuple):
    """Who accesses: cluster, number in it, clock and epoch."""

    cluster: int
    number: int
    clock: Clock
    epoch: int

    @property
    def name(self) -> int:
        """One number for (cluster, actor); 0 is nobody."""
        return (self.cluster << CLUSTER_SHIFT | self.number) + 1


def split(name: int) -> tuple[int, int]:
    """Cluster and actor of a name."""
    return (name - 1) >> CLUSTER_SHIFT, (name - 1) & ((1 << CLUSTER_SHIFT) - 1)


class GlobalConflict(NamedTuple):
    """Another actor's access that is not ordered, and the byte in the allocation."""

    what: str
    cluster: int
    actor: int
    line: int
    offset: int


class AllocationShadow:
    """Cells of 4 bytes of one allocation."""

    def __init__(self, size: int) -> None:
        cells = size // 4 + 2
        self.writer = np.zeros(cells, dtype=np.int32)
        self.epoch = np.zeros(cells, dtype=np.int32)
        self.kind = np.zeros(cells, dtype=np.int8)
        self.line = np.zeros(cells, dtype=np.int32)
        self.reader = np.zeros((SLOTS, cells), dtype=np.int32)
        self.read_epoch = np.zeros((SLOTS, cells), dtype=np.int32)

    def unordered(self, names: Array, epochs: Array, me: Actor) -> Array:
        """Which of these accesses `me` has not synchronised with."""
        late = np.zeros(names.shape, dtype=np.bool_)
        for name in np.unique(names).tolist():
            if name in (0, me.name):
                continue
            cluster, actor = split(name)
            late |= (names == name) & (epochs > me.clock.knows(me.cluster, cluster, actor))
        return late

    def conflict(
        self, what: str, names: Array, lines: Array, late: Array, cells: Array
    ) -> GlobalConflict:
        """Describe the first late access."""
        at = int(np.argmax(late))
        cluster, actor = split(int(names[at]))
        return GlobalConflict(what, cluster, actor, int(lines[at]), 4 * int(cells[at]))

    def unfenced(self, cells: Array, me: Actor, fenced: Array) -> GlobalConflict | None:
        """Plain stores of this cluster past the proxy fences; `fenced` is a row of a clock."""
        names = self.writer[cells]
        own = (names - 1) >> CLUSTER_SHIFT == me.cluster
        actors = np.where(own, (names - 1) & ((1 << CLUSTER_SHIFT) - 1), 0)
        late = own & (self.kind[cells] == PLAIN) & (self.epoch[cells] > fenced[actors])
        if np.count_nonzero(late):
            return self.conflict("read", names, self.line[cells], late, cells)
        return None

    def read(self, cells: Array, me: Actor, *, ordered: bool) -> GlobalConflict | None:
        """Note a read; `ordered` if it is relaxed or acquiring: atomics may race with it."""
        names = self.writer[cells]
        if np.count_nonzero(names):
            late = self.unordered(names, self.epoch[cells], me)
            if ordered:
                late &= self.kind[cells] != ATOMIC
            if np.count_nonzero(late):
                return self.conflict("read of a write", names, self.line[cells], late, cells)
        if ordered:
            return None  # an atomic may follow without order, and a plain store be seen by it
        slot = (me.cluster * 7 + me.number) % SLOTS
        self.reader[slot, cells] = me.name
        self.read_epoch[slot, cells] = me.epoch
        return None

    def write(
        self, cells: Array, me: Actor, kind: int, line: int, same: Array | None
    ) -> tuple[GlobalConflict | None, int]:
        """Note a write; returns a conflict, and how many cells met an unordered atomic or twin.

        `same` says which cells already hold the value.
        """
        names, excused = self.writer[cells], 0
        if np.count_nonzero(names):
            late = self.unordered(names, self.epoch[cells], me)
            excuse = (self.kind[cells] == ATOMIC) if kind == ATOMIC else np.zeros_like(late)
            if same is not None:
                excuse |= same
            excused = int(np.count_nonzero(late & excuse))
            late &= ~excuse
            if np.count_nonzero(late):
                found = self.conflict("write over a write", names, self.line[cells], late, cells)
                return found, excused
        for slot in range(SLOTS):
            readers = self.reader[slot, cells]
            if not np.count_nonzero(readers):
                continue
            late = self.unordered(readers, self.read_epoch[slot, cells], me)
            if same is not None:
                late &= ~same
            if kind == ATOMIC:
                late &= self.kind[cells] != ATOMIC
            if np.count_nonzero(late):
                found = self.conflict(
                    "write over a read", readers, np.zeros_like(readers), late, cells
                )
                return found, excused
        self.writer[cells] = me.name
        self.epoch[cells] = me.epoch
        self.kind[cells] = kind
        self.line[cells] = line
        return None, excused


class GlobalRaces:
    """Shadows of all allocations, and the clocks that releases left in memory."""

    def __init__(self) -> None:
        self.shadows: dict[int, AllocationShadow] = {}
        self.releases: dict[int, tuple[int, Clock]] = {}  # by address: cluster and clock

    def shadow(self, found: Allocation) -> AllocationShadow:
        """The shadow of an allocation, made when it is first touched."""
        made = self.shadows.get(found.address)
        if made is None:
            made = self.shadows[found.address] = AllocationShadow(found.data.nbytes)
        return made


def cells_of(starts: Array, size: int) -> Array:
    """Cells that ranges of `size` bytes from `starts` touch."""
    first = starts.astype(np.int64) // 4
    count = (int(starts[0]) % 4 + size + 3) // 4
    return (first[:, None] + np.arange(count)).ravel() if count > 1 else first
