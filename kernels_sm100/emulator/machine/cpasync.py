"""`cp.async`: 4 to 16 bytes a lane from global to shared memory, in groups of a thread.

These copies belong to the generic proxy, unlike bulk copies: no proxy fence separates them from
loads and stores, but the async proxy (MMA, TMA) needs one behind them.
"""

from collections import Counter
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
    lanes = np.array(running(mask))
    offsets = (target[lanes] & target.dtype.type(0xFFFFFF)).astype(np.intp)
    origins = source[lanes].astype(np.uint64)
    counts = np.full(len(lanes), size)
    if taken is not None:
        counts = np.minimum(taken[lanes].astype(np.intp), size)
    _check(warp, offsets, origins, counts, size)
    for count in np.unique(counts).tolist():
        some = counts == count
        _copy_some(warp, lanes[some], offsets[some], origins[some], size, count)
    warp.grid.report.counts["cp_async_bytes"] += int(counts.sum())


def _check(warp: "Warp", offsets: Lanes, origins: Lanes, counts: Lanes, size: int) -> None:
    """Alignment on both sides, and the range and barriers of the shared side."""
    for addresses in (offsets, origins[counts > 0]):
        loose = addresses % addresses.dtype.type(size) != 0
        if np.count_nonzero(loose):
            shared.misaligned(warp, "cp.async", int(addresses[np.argmax(loose)]), size)
    memory = warp.cta.shared
    for offset in (int(offsets.min()), int(offsets.max())):
        shared.check_range(warp, memory, offset, size, "cp.async")
    words = offsets[:, None] // 8 + np.arange(-(-size // 8))
    shared.check_barriers(warp, memory, words.ravel())


def _copy_some(
    warp: "Warp", lanes: Lanes, offsets: Lanes, origins: Lanes, size: int, count: int
) -> None:
    """The copies of lanes that take `count` bytes each: one piece of work."""
    memory, races = warp.cta.shared, warp.races
    found, starts = None, origins
    if count:
        found, first = generic.locate(warp, int(origins.min()), count, "cp.async")
        starts = (origins - origins.min()).astype(np.intp) + first
        if int(starts.max()) + count > found.data.nbytes:  # not all in one allocation
            for at in range(len(lanes)):
                one = slice(at, at + 1)
                _copy_some(warp, lanes[one], offsets[one], origins[one], size, count)
            return
    item = Item()
    for lane in lanes.tolist():
        _groups(warp, lane).open.append(item)
    if races is not None:
        access = races.issue_copy(warp, item)
        cells = (offsets[:, None] // 4 + np.arange(size // 4)).ravel()
        races.async_shared(access, warp.cta, cells, write=True)
        if found is not None:
            races.async_global(access, found, starts, count, write=None)

    def action() -> None:
        octets = np.zeros((len(lanes), size), dtype=np.uint8)
        if found is not None:
            if found.written is not None:
                for start in starts.tolist():
                    generic.check_written(warp, found, start, count, "cp.async")
            octets[:, :count] = found.data[generic.bytes_at(starts, count)]
        places = generic.bytes_at(offsets, size)
        memory.data[places] = octets
        memory.written[places] = True
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
    for address, arrivals in Counter(int(place[lane]) for lane in running(mask)).items():
        barrier = mbarrier.find(warp, address)
        if not noinc:
            barrier.pending += arrivals
        _arrive_at(warp, barrier, arrivals)


def _arrive_at(warp: "Warp", barrier: mbarrier.Mbarrier, arrivals: int) -> None:
    races = warp.races
    access = None if races is None else races.issue_copy(warp, None)
    who = f"cp.async of warp {warp.index} (line {warp.line})"

    def action() -> None:
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.count_down(warp, barrier, arrivals, who)

    warp.grid.engine.pipe(("copy", warp), warp, action)
