"""A CTA: its warps, and the memories and barriers they share."""

import re
from typing import TYPE_CHECKING

from kernels_sm100.emulator.codegen.program import SHARED_START
from kernels_sm100.emulator.machine.barriers import NamedBarrier
from kernels_sm100.emulator.machine.register_file import RegisterFile
from kernels_sm100.emulator.machine.shared import SharedMemory
from kernels_sm100.emulator.machine.tmem import TensorMemory, held
from kernels_sm100.emulator.machine.warp import Warp
from kernels_sm100.errors import EarlyExit, TensorMemoryError, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.grid import Grid
    from kernels_sm100.emulator.machine.cluster import Cluster

UNREAD = "exit of a warp whose bulk stores may still read shared memory"


class Cta:
    """One CTA.

    Attributes:
        index: `%ctaid`.
        rank: number in its cluster.
        slot: which of the resident CTAs it is, `%smid`.
        named: named barriers by number.
    """

    def __init__(
        self, grid: "Grid", cluster: "Cluster", index: tuple[int, int, int], rank: int, slot: int
    ) -> None:
        self.grid = grid
        self.cluster = cluster
        self.index = index
        self.rank = rank
        self.slot = slot
        x, y, z = grid.launch.block
        self.threads = x * y * z
        self.warp_count = -(-self.threads // 32)
        program = grid.program
        size = program.dynamic_start - SHARED_START + grid.launch.shared_bytes
        self.shared = SharedMemory(SHARED_START, size)
        self.tmem = TensorMemory()
        self.named: dict[int, NamedBarrier] = {}
        limit = re.search(r"\.maxnreg (\d+)", program.kernel.directives)
        self.register_file = RegisterFile(self.warp_count, int(limit[1]) if limit else None)
        self.warps: list[Warp] = []
        self.warps.extend(Warp(self, w, self.threads) for w in range(self.warp_count))

    def finished(self) -> bool:
        """Whether all warps have exited."""
        return all(warp.finished for warp in self.warps)

    def check_exit(self) -> None:
        """Refuse what a CTA may not leave behind."""
        if self.tmem.allocations:
            raise TensorMemoryError(
                sentence(
                    what="tensor memory that is not freed at exit",
                    where=f"CTA {self.index}",
                    got=held(self.tmem),
                    wanted="tcgen05.dealloc of every allocation",
                    remedy="deallocate it in the warp that allocated it, behind the last reader",
                )
            )
        for warp in self.warps:
            self._check_stores(warp)

    def _check_stores(self, warp: Warp) -> None:
        """Refuse the end of a warp that did not wait until its bulk stores had read their source.

        The next CTA may be given the memory. FlashAttention-4's backward leaves that to luck.
        """
        left = {lane: groups for lane, groups in warp.bulk.items() if groups.unread or groups.open}
        if not left:
            return
        if not self.grid.strict_exit:
            self.grid.report.warnings[UNREAD] += 1
            return
        lane, groups = next(iter(left.items()))
        raise EarlyExit(
            sentence(
                what=UNREAD,
                where=f"CTA {self.index} warp {warp.index} lane {lane}",
                got=f"{len(groups.open)} stores that are not committed, and {groups.unread} groups"
                " that nobody waited for",
                wanted="cp.async.bulk.commit_group and wait_group.read behind the last store",
                remedy="wait by the lane that issues them",
            )
        )
