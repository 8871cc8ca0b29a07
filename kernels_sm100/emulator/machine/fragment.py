"""Lanes of a warp that run together, and what they wait for.

NOTE [Divergence]: a warp is a list of fragments, each with a block to run next and a mask. The
fragment with the lowest block that can run goes first, and fragments that meet at a block merge.
As compilers place joins behind what they join, that reconverges where hardware does. A fragment
that has jumped back often goes last, so that a lane that spins does not keep the others from
moving. Warp-wide instructions wait until the lanes they name have merged.
"""

from collections.abc import Callable

import numpy as np

from kernels_sm100.emulator.lanes.types import Mask

PATIENCE = 64  # jumps back before other lanes of the warp get a turn


class Wait:
    """What a fragment waits for: a test that is cheap to repeat, and words for a report."""

    __slots__ = ("describe", "kind", "ready")

    def __init__(self, kind: str, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        self.kind = kind
        self.ready = ready
        self.describe = describe


class Fragment:
    """Lanes at one place: `mask` is None for all 32.

    `pending` is what a barrier remembers of a fragment that has arrived and waits; `jumps` counts
    jumps back. `diverged` is set until another fragment moves, `held` until this one does.
    """

    __slots__ = ("block", "diverged", "held", "jumps", "mask", "pending", "wait")

    def __init__(self, block: int, mask: Mask | None) -> None:
        self.block = block
        self.mask = mask
        self.wait: Wait | None = None
        self.pending: tuple[object, int] | None = None
        self.diverged = False
        self.held = False
        self.jumps = 0

    def order(self) -> tuple[int, int]:
        """Who goes first: the lowest block, unless it seems to spin."""
        return self.jumps // PATIENCE, self.block

    def runnable(self) -> bool:
        """Whether it can make a step now."""
        if self.diverged:
            return False
        if self.wait is not None:
            if not self.wait.ready():
                return False
            self.wait = None
        return True


def branch(taken: Mask, mask: Mask | None, target: int, other: int) -> int | tuple[int, int, Mask]:
    """Where a branch leads: one block, or two and the lanes that take it."""
    count = np.count_nonzero(taken)
    if count == 0:
        return other
    if count == (32 if mask is None else np.count_nonzero(mask)):
        return target
    return target, other, taken


def merged(fragments: list[Fragment]) -> list[Fragment]:
    """Fragments at one block become one, unless one of them is in the middle of a barrier."""
    by_block: dict[int, Fragment] = {}
    result = []
    for fragment in fragments:
        first = by_block.get(fragment.block)
        if first is None or first.pending is not None or fragment.pending is not None:
            by_block[fragment.block] = fragment
            result.append(fragment)
            continue
        assert first.mask is not None
        assert fragment.mask is not None
        first.mask = first.mask | fragment.mask
        first.wait, first.diverged = None, False
        first.jumps = max(first.jumps, fragment.jumps)
        if first.mask.all():
            first.mask = None
    return result
