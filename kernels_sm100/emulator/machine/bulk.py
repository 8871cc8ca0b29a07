"""Bulk copies and reductions without a tensor map, and the groups that bulk stores form.

NOTE [Bulk groups]: groups belong to a thread, so a wait by another lane than the one that committed
waits for nothing, here as on hardware.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.codegen.tokens import DTYPE, TOKEN
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import atomics, generic, mbarrier, shared
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.emulator.machine.uniform import running

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp


class Item:
    """One bulk store: whether it is done, and its place in the order of races."""

    __slots__ = ("done", "epoch")

    def __init__(self) -> None:
        self.done = False
        self.epoch = 0


class BulkGroups:
    """Bulk stores of one lane: those not yet committed, and the groups."""

    def __init__(self) -> None:
        self.open: list[Item] = []
        self.groups: list[list[Item]] = []
        self.unread = 0  # groups that no wait says have read their source

    def outstanding(self) -> int:
        """How many of the last groups a wait has to allow: those from the first one not done on.

        A group without stores counts too: a wait that allows one waits for all before the last.
        """
        while self.groups and all(item.done for item in self.groups[0]):
            del self.groups[0]
        return len(self.groups)


def groups_of(warp: "Warp", lane: int) -> BulkGroups:
    """The bulk groups of a lane."""
    found: BulkGroups = warp.bulk.setdefault(lane, BulkGroups())
    return found


def open_item(warp: "Warp", lane: int) -> Item:
    """A bulk store that a lane issues."""
    item = Item()
    groups_of(warp, lane).open.append(item)
    return item


def commit(warp: "Warp", mask: Mask | None) -> None:
    """`cp.async.bulk.commit_group`, by each running lane."""
    for lane in running(mask):
        groups = groups_of(warp, lane)
        groups.groups.append(groups.open)
        groups.unread += bool(groups.open or groups.unread)
        groups.open = []
        if warp.races is not None:
            warp.races.commit_stores(warp, lane, groups.groups[-1])


def wait(warp: "Warp", left: int, read: bool, mask: Mask | None) -> bool:
    """`cp.async.bulk.wait_group`, by each running lane: True to block."""
    lanes = [(lane, groups_of(warp, lane)) for lane in running(mask)]

    def ready() -> bool:
        return all(groups.outstanding() <= left for _, groups in lanes)

    def describe() -> str:
        most = max(len(groups.groups) for _, groups in lanes)
        return f"{most} bulk groups outstanding, {left} allowed"

    if not ready():
        return warp.block_on(Wait("bulk group", ready, describe))
    for _, groups in lanes:
        groups.unread = min(groups.unread, left)
    if warp.races is not None:
        for lane, _ in lanes:
            warp.races.wait_stores(warp, lane, left, read=read)
    return False


def receivers(
    warp: "Warp", target: int, place: int, ctas: int | None, *, pair: bool = False
) -> list[tuple["Cta", mbarrier.Mbarrier]]:
    """CTAs that a load writes to, each with the barrier that learns of it."""
    cluster = warp.cta.cluster
    if ctas is None:
        rank = min(target >> 24, cluster.size - 1)
        return [(cluster.ctas[rank], mbarrier.find(warp, place, remote=True))]
    chosen = [rank for rank in range(cluster.size) if ctas >> rank & 1]
    result = []
    for rank in chosen:
        to = rank & ~1 | (place >> 24 & 1) if pair else rank
        result.append(
            (cluster.ctas[rank], mbarrier.find(warp, place & 0xFFFFFF | to << 24, remote=True))
        )
    return result


def _check(warp: "Warp", size: int, **addresses: int) -> None:
    for name, address in addresses.items():
        if address % 16:
            shared.misaligned(warp, f"bulk copy ({name})", address, 16)
    if size % 16 or size == 0:
        shared.misaligned(warp, "size of a bulk copy", size, 16)


def load(
    warp: "Warp",
    target: Lanes,
    source: Lanes,
    size: Lanes,
    place: Lanes,
    ctas: Lanes | None,
    mask: Mask | None,
) -> None:
    """Global to shared memory, by each running lane."""
    for lane in running(mask):
        to, origin, count = int(target[lane]), int(source[lane]), int(size[lane])
        _check(warp, count, destination=to, source=origin)
        found, start = generic.locate(warp, origin, count, "bulk load")
        chosen = None if ctas is None else int(ctas[lane])
        for cta, barrier in receivers(warp, to, int(place[lane]), chosen):
            shared.check_target(warp, cta.shared, to & 0xFFFFFF, count, "bulk load")
            _load_one(warp, cta, to & 0xFFFFFF, found, start, count, barrier)
        warp.grid.report.counts["bulk_load"] += 1
        warp.grid.report.counts["bulk_load_bytes"] += count


def _load_one(
    warp: "Warp",
    cta: "Cta",
    offset: int,
    found: Any,
    start: int,
    size: int,
    barrier: mbarrier.Mbarrier,
) -> None:
    races = warp.races
    access = None
    if races is not None:
        access = races.issue_load(warp, barrier.address)
        races.async_shared(access, cta, slice(offset // 4, (offset + size) // 4), write=True)
        races.async_global(access, found, np.array([start]), size, write=None)

    def action() -> None:
        generic.check_written(warp, found, start, size, "bulk load")
        cta.shared.write(offset, found.data[start : start + size])
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.deliver(warp, barrier, size)

    warp.grid.engine.load(warp, action)


def exchange(
    warp: "Warp",
    target: Lanes,
    source: Lanes,
    size: Lanes,
    place: Lanes,
    how: tuple[str, str] | None,
    mask: Mask | None,
) -> None:
    """Shared memory of this CTA to that of another, copied or combined."""
    for lane in running(mask):
        to, origin, count = int(target[lane]), int(source[lane]) & 0xFFFFFF, int(size[lane])
        _check(warp, count, destination=to, source=origin)
        ((cta, barrier),) = receivers(warp, to, int(place[lane]), None)
        offset = to & 0xFFFFFF
        shared.check_target(warp, cta.shared, offset, count, "bulk copy")
        shared.check_range(warp, warp.cta.shared, origin, count, "bulk copy")
        _exchange_one(warp, cta, offset, origin, count, how, barrier)
        warp.grid.report.counts["bulk_exchange"] += 1


def _exchange_one(
    warp: "Warp",
    cta: "Cta",
    offset: int,
    origin: int,
    size: int,
    how: tuple[str, str] | None,
    barrier: mbarrier.Mbarrier,
) -> None:
    races, source = warp.races, warp.cta.shared
    access = None
    if races is not None:
        access = races.issue_load(warp, barrier.address)
        races.async_shared(access, warp.cta, slice(origin // 4, (origin + size) // 4), write=False)
        races.async_shared(access, cta, slice(offset // 4, (offset + size) // 4), write=True)

    def action() -> None:
        shared.check_written(warp, source, origin, size, "bulk copy")
        value = source.read(origin, size)
        if how is not None:
            value = combined(cta.shared.read(offset, size), value, how)
        cta.shared.write(offset, value)
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.deliver(warp, barrier, size)

    warp.grid.engine.load(warp, action)


def combined(old: Any, new: Any, how: tuple[str, str]) -> Any:
    """Bytes of `old op new`, of a PTX type."""
    op, kind = how
    dtype = DTYPE[TOKEN[kind]]
    return atomics.combine(op, kind, old.view(dtype).copy(), new.view(dtype)).view(np.uint8)


def store(
    warp: "Warp",
    target: Lanes,
    source: Lanes,
    size: Lanes,
    how: tuple[str, str] | None,
    mask: Mask | None,
) -> None:
    """Shared to global memory, copied or combined, by each running lane."""
    for lane in running(mask):
        to, origin, count = int(target[lane]), int(source[lane]) & 0xFFFFFF, int(size[lane])
        _check(warp, count, destination=to, source=origin)
        found, start = generic.locate(warp, to, count, "bulk store")
        shared.check_range(warp, warp.cta.shared, origin, count, "bulk store")
        _store_one(warp, lane, found, start, origin, count, how)
        name = "bulk_store" if how is None else "bulk_reduce"
        warp.grid.report.counts[name] += 1
        warp.grid.report.counts[f"{name}_bytes"] += count


def _store_one(
    warp: "Warp",
    lane: int,
    found: Any,
    start: int,
    origin: int,
    size: int,
    how: tuple[str, str] | None,
) -> None:
    memory = warp.cta.shared
    item = open_item(warp, lane)
    if warp.races is not None:
        access = warp.races.issue_store(warp, item)
        cells = slice(origin // 4, (origin + size) // 4)
        warp.races.async_shared(access, warp.cta, cells, write=False)
        kind = "store" if how is None else how[0]
        warp.races.async_global(access, found, np.array([start]), size, write=kind)

    def action() -> None:
        shared.check_written(warp, memory, origin, size, "bulk store")
        value = memory.read(origin, size)
        if how is not None:
            generic.check_written(warp, found, start, size, "bulk reduction")
            value = combined(found.data[start : start + size], value, how)
        found.data[start : start + size] = value
        if found.written is not None:
            found.written[start : start + size] = True
        item.done = True

    warp.grid.engine.pipe(("store", warp), warp, action)
