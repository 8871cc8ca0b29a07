"""Vector clocks of a cluster's actors.

NOTE [Actors]: who can access memory on its own time: each warp; the tensor pipe of each CTA, which
is in order; the bulk stores of each warp, once as readers of shared memory and once as writers of
global memory, since `wait_group.read` waits for the first only; the `cp.async` of each warp; and
for each mbarrier the loads that signal it, so that loads of different barriers are not ordered by
accident.

NOTE [Rows of a clock]: row 0 holds what happened before. Row 1 holds which of that
`tcgen05.wait::st` has passed: reading what `tcgen05.st` stored needs both. Row 2 is for NOTE
[Fences of tensor memory]. The others do the same for `fence.proxy.async` and asynchronous reads of
generic writes, a row for each memory, since a fence with a state space orders that one alone:
global memory, then the shared memory of each CTA of the cluster. All rows travel along
synchronisation.

NOTE [Other clusters]: clusters meet only in global memory. A clock keeps row 0 of those that it
has synchronised with, and nothing else of them.
"""

from typing import Any

import numpy as np

HAPPENED, STORED, RELEASED, FENCED_GLOBAL, FENCED_SHARED = range(5)
Array = np.ndarray[Any, Any]
Foreign = dict[int, Array]


class Clock:
    """What an actor knows: `rows` int32 [rows, actors], and row 0 of other clusters by number.

    Args:
        actors: of the cluster.
        ctas: of the cluster, each with a row of its own from FENCED_SHARED on.
    """

    __slots__ = ("foreign", "rows")

    def __init__(self, actors: int, ctas: int = 1) -> None:
        self.rows = np.zeros((FENCED_SHARED + ctas, actors), dtype=np.int32)
        self.foreign: Foreign = {}

    def copy(self) -> "Clock":
        """A snapshot."""
        made = Clock.__new__(Clock)
        made.rows = self.rows.copy()
        made.foreign = self.foreign
        return made

    def join(self, other: "Clock") -> None:
        """Learn what another clock of this cluster knows."""
        np.maximum(self.rows, other.rows, out=self.rows)
        if other.foreign and other.foreign is not self.foreign:
            self.foreign = joined(self.foreign, other.foreign)

    def join_foreign(self, own: int, number: int, other: "Clock") -> None:
        """Learn what a clock of cluster `number` knows; `own` is this cluster's number."""
        if number == own:
            self.join(other)
            return
        news = joined(other.foreign, {number: other.rows[HAPPENED]})
        mine = news.pop(own, None)
        if mine is not None:
            np.maximum(self.rows[HAPPENED], mine, out=self.rows[HAPPENED])
        self.foreign = joined(self.foreign, news)

    def knows(self, own: int, number: int, actor: int) -> int:
        """The last epoch of an actor that this clock has seen."""
        if number == own:
            return int(self.rows[HAPPENED, actor])
        row = self.foreign.get(number)
        return 0 if row is None else int(row[actor])


def joined(a: Foreign, b: Foreign) -> Foreign:
    """Both, entry by entry; neither is changed."""
    result = dict(a)
    for number, row in b.items():
        known = result.get(number)
        result[number] = row.copy() if known is None else np.maximum(known, row)
    return result


class Gate:
    """A barrier's clocks: what arrived, and what its last completion published."""

    __slots__ = ("arrived", "published")

    def __init__(self, actors: int, ctas: int = 1) -> None:
        self.arrived = Clock(actors, ctas)
        self.published = Clock(actors, ctas)

    def open(self) -> None:
        """Publish the arrivals."""
        self.published.join(self.arrived)
