"""`cp.async`: 4 to 16 bytes a lane from global to shared memory, in groups of a thread.

These copies belong to the generic proxy, unlike bulk copies: no proxy fence separates them from
loads and stores, but the async proxy (MMA, TMA) needs one behind them.
"""

from typing import TYPE_CHECKING

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import generic, mbarrier, shared
from kernels_sm100.emulator.machine.bulk import BulkGroups, Item
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.emulator.machine.uniform import running

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp


def _groups(warp: "Warp", lane: int) -> BulkGroups:
    found: BulkGroups = warp.copies.setdefault(lane, BulkGroups())
    return found


def copy(
    warp: "Warp", target: Lanes, source: Lanes, size: int, taken: Lanes | None, mask: Mask | None
) -> None:
    """Issue the copies of the running lanes; bytes past `taken` become zeros."""
    for lane in running(mask):
        offset, origin = int(target[lane]) & 0xFFFFFF, int(source[lane])
        count = size if taken is None else min(size, int(taken[lane]))
        if offset % size or (count and origin % size):
            shared.misaligned(warp, "cp.async", origin if offset % size == 0 else offset, size)
        shared.check_target(warp, warp.cta.shared, offset, size, "cp.async")
        _copy_one(warp, lane, offset, origin, size, count)
        warp.grid.report.counts["cp_async_bytes"] += count


def _copy_one(warp: "Warp", lane: int, offset: int, origin: int, size: int, count: int) -> None:
    memory, races = warp.cta.shared, warp.races
    found, start = generic.locate(warp, origin, count, "cp.async") if count else (None, 0)
    item = Item()
    _groups(warp, lane).open.append(item)
    if races is not None:
        access = races.issue_copy(warp, item)
        races.async_shared(access, warp.cta, slice(offset // 4, (offset + size) // 4), write=True)
        if found is not None:
            races.async_global(access, found, np.array([start]), count, write=None)

    def action() -> None:
        octets = np.zeros(size, dtype=np.uint8)
        if found is not None:
            generic.check_written(warp, found, start, count, "cp.async")
            octets[:count] = found.data[start : start + count]
        memory.write(offset, octets)
        item.done = True

    warp.grid.engine.pipe(("copy", warp), warp, action)


def commit(warp: "Warp", mask: Mask | None) -> None:
    """`cp.async.commit_group`, by each running lane."""
    for lane in running(mask):
        groups = _groups(warp, lane)
        groups.groups.append(groups.open)
        groups.open = []
    if warp.races is not None:
        warp.races.commit_copies(warp)


def wait(warp: "Warp", left: int, mask: Mask | None) -> bool:
    """`cp.async.wait_group` and, with -1, `wait_all`: True to block."""
    lanes = [_groups(warp, lane) for lane in running(mask)]
    if left < 0:
        for groups in lanes:
            groups.groups.append(groups.open)
            groups.open = []
        if warp.races is not None:
            warp.races.commit_copies(warp)
    most = max(left, 0)

    def ready() -> bool:
        return all(groups.outstanding() <= most for groups in lanes)

    if not ready():
        return warp.block_on(
            Wait("cp.async group", ready, lambda: f"at most {most} groups of copies")
        )
    if warp.races is not None:
        warp.races.wait_copies(warp, most)
    return False


def arrive(warp: "Warp", place: Lanes, mask: Mask | None, *, noinc: bool) -> None:
    """`cp.async.mbarrier.arrive`: an arrival, once the copies of the lane so far are done.

    Without `.noinc` the barrier first expects one arrival more, so that its count does not include
    these.
    """
    for lane in running(mask):
        barrier = mbarrier.find(warp, int(place[lane]))
        if not noinc:
            barrier.pending += 1
        _arrive_one(warp, barrier)


def _arrive_one(warp: "Warp", barrier: mbarrier.Mbarrier) -> None:
    races = warp.races
    access = None if races is None else races.issue_copy(warp, None)
    who = f"cp.async of warp {warp.index} (line {warp.line})"

    def action() -> None:
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.count_down(warp, barrier, 1, who)

    warp.grid.engine.pipe(("copy", warp), warp, action)
