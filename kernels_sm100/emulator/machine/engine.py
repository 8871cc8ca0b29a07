"""Asynchronous work that was issued and is not complete.

Under an eager schedule work completes when it is issued: as early as it may. Under the lazy one it
completes only when no warp can move: as late as it may. In between there are many orders; the
random schedule draws them. Work on one tensor pipe completes in order, as do the bulk stores of
one warp; loads are free.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cluster import Cluster
    from kernels_sm100.emulator.machine.warp import Warp


class Work(NamedTuple):
    """One operation: who issued it where, and what completing it does."""

    warp: "Warp"
    line: int
    action: Callable[[], None]

    def complete(self) -> None:
        """Do it; faults name the instruction that issued it."""
        now, self.warp.line = self.warp.line, self.line
        self.action()
        self.warp.line = now
        self.warp.grid.events += 1


class Engine:
    """Queues of outstanding work of a launch: ordered pipes, and loads in any order."""

    def __init__(self, *, eager: bool, seed: int) -> None:
        self.eager = eager
        self.random = random.Random(seed)  # noqa: S311 - orders of a test, no secret
        self.pipes: dict[Hashable, deque[Work]] = {}
        self.loads: list[Work] = []

    def pipe(self, key: Hashable, warp: "Warp", action: Callable[[], None]) -> None:
        """Work behind all earlier work of the same key."""
        work = Work(warp, warp.line, action)
        if self.eager:
            work.complete()
        else:
            self.pipes.setdefault(key, deque()).append(work)

    def load(self, warp: "Warp", action: Callable[[], None]) -> None:
        """Work that nothing orders."""
        work = Work(warp, warp.line, action)
        if self.eager:
            work.complete()
        else:
            self.loads.append(work)

    def pending(self) -> bool:
        """Whether anything is outstanding."""
        return bool(self.loads or self.pipes)

    def step(self) -> bool:
        """Complete one piece of work; whether there was any."""
        if not self.pending():
            return False
        keys = list(self.pipes)
        at = self.random.randrange(len(keys) + (1 if self.loads else 0))
        if at == len(keys):
            self.loads.pop(self.random.randrange(len(self.loads))).complete()
            return True
        queue = self.pipes[keys[at]]
        work = queue.popleft()
        if not queue:
            del self.pipes[keys[at]]
        work.complete()
        return True

    def finish(self, cluster: "Cluster") -> None:
        """Complete what the warps of a cluster issued: its memories are about to go."""
        mine = [work for work in self.loads if work.warp.cta.cluster is cluster]
        self.loads = [work for work in self.loads if work.warp.cta.cluster is not cluster]
        for key, queue in list(self.pipes.items()):
            if queue[0].warp.cta.cluster is cluster:  # a pipe belongs to one cluster
                mine += self.pipes.pop(key)
        for work in mine:
            work.complete()

    def drain(self) -> None:
        """Complete everything."""
        while self.step():
            pass
