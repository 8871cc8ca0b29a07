"""`st.async`: stores to shared memory of the cluster, of which an mbarrier tells."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import bulk, mbarrier, shared
from kernels_sm100.emulator.machine.uniform import running

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp


def store_async(
    warp: "Warp", target: Lanes, values: tuple[Lanes, ...], place: Lanes, mask: Mask | None
) -> None:
    """`st.async`: registers of each running lane to shared memory of a CTA."""
    width = values[0].itemsize * len(values)
    for lane in running(mask):
        to = int(target[lane])
        if to % width:
            shared.misaligned(warp, "st.async", to, width)
        ((cta, barrier),) = bulk.receivers(warp, to, int(place[lane]), None)
        offset = to & 0xFFFFFF
        shared.check_target(warp, cta.shared, offset, width, "st.async")
        octets = np.array([v[lane] for v in values]).view(np.uint8)
        _store_async_one(warp, cta, offset, octets, barrier)


def _store_async_one(
    warp: "Warp", cta: "Cta", offset: int, octets: Any, barrier: mbarrier.Mbarrier
) -> None:
    races = warp.races
    access = None
    if races is not None:
        access = races.issue_load(warp, barrier.address)
        cells = slice(offset // 4, (offset + octets.size) // 4)
        races.async_shared(access, cta, cells, write=True)

    def action() -> None:
        cta.shared.write(offset, octets)
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.deliver(warp, barrier, octets.size)

    warp.grid.engine.load(warp, action)
