"""The registers of an SM, which warpgroups hand over with `setmaxnreg`."""

from typing import TYPE_CHECKING

from kernels_sm100.emulator.lanes.types import Mask
from kernels_sm100.emulator.machine.fragment import Wait
from kernels_sm100.errors import LaunchError

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp

TOTAL = 64 * 1024
MOST = 255
GRANULE = 8


class RegisterFile:
    """How many registers a thread of each warp holds, and how many are free.

    At launch every thread holds the most that `warps` warps leave room for, as a kernel that uses
    `setmaxnreg` is compiled, unless `.maxnreg` says otherwise.
    """

    def __init__(self, warps: int, at_launch: int | None) -> None:
        even = TOTAL // (32 * warps) // GRANULE * GRANULE
        held = min(even, MOST // GRANULE * GRANULE) if at_launch is None else at_launch
        self.held = [held] * warps
        self.free = TOTAL - 32 * held * warps

    def request(self, warp: "Warp", mask: Mask | None, count: int, way: str) -> bool:
        """`setmaxnreg`: True to block until there are enough."""
        held = self.held[warp.index]
        limit = "at most" if way == "dec" else "at least"
        if (
            count % GRANULE
            or not 24 <= count <= 256
            or (count > held if way == "dec" else count < held)
        ):
            warp.fault(
                LaunchError,
                what=f"setmaxnreg.{way} to an impossible count",
                got=f"{count}, from {held}",
                wanted=f"a multiple of {GRANULE} from 24 to 256, {limit} {held}",
                remedy="balance the registers of the roles",
            )
        if mask is not None and not warp.together(mask, None):
            return warp.block_on(Wait("lanes", lambda: True, lambda: "the other lanes of its warp"))
        wanted = 32 * (count - held)
        if wanted > self.free:
            return warp.block_on(
                Wait(
                    "registers",
                    lambda: wanted <= self.free,
                    lambda: f"{wanted} registers, of which {self.free} are free",
                )
            )
        self.free -= wanted
        self.held[warp.index] = count
        warp.grid.events += 1
        return False
