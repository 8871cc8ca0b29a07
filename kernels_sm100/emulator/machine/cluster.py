"""A cluster: CTAs that reach each other's shared memory, and the barriers in it."""

from typing import TYPE_CHECKING

from kernels_sm100.emulator.machine.barriers import ClusterBarrier
from kernels_sm100.emulator.machine.cta import Cta
from kernels_sm100.emulator.machine.mbarrier import Mbarrier
from kernels_sm100.emulator.races.detector import ClusterRaces
from kernels_sm100.errors import EarlyExit, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.grid import Grid


class Cluster:
    """CTAs in the order of their ranks.

    Attributes:
        number: in the grid.
        mbarriers: by shared::cluster address.
        races: the happens-before relation of its actors, or None.
    """

    def __init__(
        self, grid: "Grid", number: int, indices: list[tuple[int, int, int]], slot: int
    ) -> None:
        self.grid = grid
        self.number = number
        self.size = len(indices)
        self.mbarriers: dict[int, Mbarrier] = {}
        x, y, z = grid.launch.block
        threads = x * y * z
        self.barrier = ClusterBarrier(threads * self.size)
        self.races = ClusterRaces(self, -(-threads // 32)) if grid.race_memory is not None else None
        self.ctas: list[Cta] = []
        for rank, index in enumerate(indices):
            self.ctas.append(Cta(grid, self, index, rank, slot + rank))
        if self.races is not None:
            self.races.attach()

    def check_exit(self) -> None:
        """Refuse what a cluster may not leave behind."""
        for cta in self.ctas:
            cta.check_exit()
        for name in self.races.unfinished() if self.races is not None else ():
            if not self.grid.strict_exit:
                self.grid.report.warnings[f"exit before {name} was waited for"] += 1
                continue
            raise EarlyExit(
                sentence(
                    what="exit while asynchronous work may still use shared memory",
                    where=f"CTA {self.ctas[0].index}",
                    got=f"nobody waited for the last of {name}",
                    wanted="a wait for the barrier that it signals, by any warp",
                    remedy="let its producer wait until all stages are free before it ends",
                )
            )

    def release(self) -> None:
        """Let go of memories and shadows; who was who stays known to reports."""
        for cta in self.ctas:
            cta.warps = []
            del cta.shared, cta.tmem
        if self.races is not None:
            self.races.detach()

    def finished(self) -> bool:
        """Whether all CTAs have exited."""
        return all(cta.finished() for cta in self.ctas)
