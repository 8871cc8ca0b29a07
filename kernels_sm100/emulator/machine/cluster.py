"""A cluster: CTAs that reach each other's shared memory, and the barriers in it."""

from typing import TYPE_CHECKING

from kernels_sm100.emulator.machine.barriers import ClusterBarrier
from kernels_sm100.emulator.machine.cta import Cta
from kernels_sm100.emulator.machine.mbarrier import Mbarrier
from kernels_sm100.emulator.races.detector import ClusterRaces

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
