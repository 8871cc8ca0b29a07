"""A launch to emulate, the device memory it sees, and what came out.

    memory = GlobalMemory()
    x = memory.add("x", np.zeros(64, np.float32))
    report = emulate(Launch(kernel="scale", ptx=ptx, grid=(1, 1, 1), block=(32, 1, 1),
                            parameters=(x.address.to_bytes(8, "little"),)), memory)

Device allocations are host arrays. A kernel sees their addresses as 64-bit numbers, and what it
stores lands in the arrays, so a caller reads results where it put the arguments.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_sm100.errors import LaunchError, MemoryFault, sentence

SCHEDULES = ("round_robin", "random", "lazy", "random_eager")
# Between these lie the windows of shared, local and parameter memory. Below them is global memory
# again: the heap of a program that is not position independent.
WINDOWS_BEGIN = 1 << 32
LOWEST_ADDRESS = 1 << 36
RESIDENT = 148  # SMs of a B200; one CTA of these kernels fills an SM

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Host memory that stands for one device allocation.

    Attributes:
        name: what reports call it.
        address: where kernels see its first byte.
        data: uint8 [bytes], the memory itself; kernels write into it.
        written: bool [bytes], which bytes hold a value; None if all do.
    """

    name: str
    address: int
    data: NDArray[np.uint8]
    written: NDArray[np.bool_] | None = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.data.nbytes


class GlobalMemory:
    """Every allocation that a kernel may touch; anything else is out of bounds."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._addresses: list[int] = []

    def add(
        self, name: str, array: NDArray[Any], *, address: int | None = None, written: bool = True
    ) -> Allocation:
        """Register `array` as a device allocation.

        Args:
            name: what reports call it.
            array: C-contiguous, writable; shared, not copied.
            address: where kernels see it; the array's own host address if None, which is what
                captured host code has put into parameters and tensor maps.
            written: whether its bytes hold values; if False a kernel has to write before it reads.

        Raises:
            LaunchError: an array that is not contiguous or writable, or that overlaps another.
        """
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise LaunchError(
                sentence(
                    what="allocation that cannot be shared",
                    where=f"allocation {name!r}",
                    got=f"strides {array.strides}, writeable={array.flags.writeable}",
                    wanted="a C-contiguous writable array",
                    remedy="pass np.ascontiguousarray(array)",
                )
            )
        data = array.reshape(-1).view(np.uint8)
        start = array.ctypes.data if address is None else address
        shadow = None if written else np.zeros(data.nbytes, dtype=np.bool_)
        made = Allocation(name=name, address=start, data=data, written=shadow)
        at = bisect_right(self._addresses, start)
        neighbours = self._allocations[max(at - 1, 0) : at + 1]
        clash = [a for a in neighbours if a.address < made.end and start < a.end]
        if clash or (start < LOWEST_ADDRESS and made.end > WINDOWS_BEGIN):
            raise LaunchError(
                sentence(
                    what="allocation at an address that is taken",
                    where=f"allocation {name!r}",
                    got=f"[{start:#x}, {made.end:#x})",
                    wanted=f"addresses outside of [{WINDOWS_BEGIN:#x}, {LOWEST_ADDRESS:#x}) that no"
                    " other allocation covers",
                    remedy=f"move it{f' away from {clash[0].name!r}' if clash else ''}",
                )
            )
        self._allocations.insert(at, made)
        self._addresses.insert(at, start)
        return made

    def __iter__(self) -> Any:
        return iter(self._allocations)

    def lookup(self, address: int) -> Allocation | None:
        """The allocation that holds the byte at `address`, if any does."""
        at = bisect_right(self._addresses, address) - 1
        if at >= 0 and address < self._allocations[at].end:
            return self._allocations[at]
        return None

    def describe(self, address: int) -> str:
        """An address in words: how far it is from the start of the nearest allocation below."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return f"{address:#x}"
        near = self._allocations[at]
        offset = address - near.address
        return f"{address:#x}, byte {offset} of {near.name!r} ({near.data.nbytes} bytes)"

    def find(self, address: int, size: int) -> Allocation:
        """The allocation that holds all of [address, address + size).

        Raises:
            MemoryFault: none does.
        """
        found = self.lookup(address)
        if found is None or address + size > found.end:
            raise MemoryFault(
                sentence(
                    what="access out of bounds",
                    where="global memory",
                    got=f"[{address:#x}, {address + size:#x})",
                    wanted="an address inside " + (repr(found.name) if found else "an allocation"),
                    remedy="check the index and the strides",
                )
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch, as the host code made it.

    Attributes:
        kernel: name of the `.entry`.
        ptx: text of the whole PTX module.
        grid: CTAs along x, y and z.
        block: threads along x, y and z.
        cluster: CTAs of a cluster along x, y and z.
        shared_bytes: dynamic shared memory.
        parameters: bytes of each kernel parameter, tensor maps included.
        cooperative: whether all CTAs are resident at once by contract.
    """

    kernel: str
    ptx: str
    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    shared_bytes: int = 0
    parameters: tuple[bytes, ...] = ()
    cooperative: bool = False


@dataclass(slots=True, kw_only=True)
class Report:
    """What an emulated launch did.

    Attributes:
        instructions: warp-instructions executed.
        seconds: wall time of the emulation, without parsing.
        ctas: CTAs run.
        counts: how often each event happened, by name: "mma", "mma_flops", "tma_load",
            "tma_load_bytes", "tma_store", ...
        executed: warp-instructions by (warp of the CTA, PTX line of the first of a block).
        lines: how often each PTX line was executed, by line.
        warnings: findings that are no fault, each with how often it occurred.
    """

    instructions: int = 0
    seconds: float = 0.0
    ctas: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    executed: Counter[tuple[int, int]] = field(default_factory=Counter)
    lines: Counter[int] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)


def emulate(
    launch: Launch,
    memory: GlobalMemory,
    *,
    schedule: str = "round_robin",
    seed: int = 0,
    races: bool = True,
    ctas_resident: int | None = None,
    strict_tmem_loads: bool = False,
    strict_registers: bool = False,
    strict_exit: bool = True,
    strict_fences: bool = False,
) -> Report:
    """Run `launch` to its end; `memory` then holds what the kernel stored.

    Args:
        launch: the kernel, its shape and its parameters.
        memory: what it may touch.
        schedule: "round_robin" runs each warp until it blocks and completes asynchronous work when
            it is issued; "lazy" completes asynchronous work only when no warp can move; "random"
            shuffles warps, preempts them anywhere and completes asynchronous work at random times;
            "random_eager" shuffles warps only.
        seed: of the random schedules.
        races: whether accesses are checked by happens-before.
        ctas_resident: CTAs that run side by side; 148 (or all, if fewer) if None.
        strict_tmem_loads: whether a register that `tcgen05.ld` fills may be read only after
            `tcgen05.wait::ld`, but for moves. Compilers that track the dependency in SASS leave the
            wait out.
        strict_registers: whether a register that is read before it is written is an error. If not
            it is a warning, and holds poison: compilers leave registers unwritten whose values they
            discard.
        strict_exit: whether a CTA that ends while bulk stores may still read its shared memory, or
            while a copy or commit that nobody waited for may still reach it, is an error. If not it
            is a warning.
        strict_fences: whether a tcgen05 operation that a barrier orders behind one of another warp,
            but without `tcgen05.fence`, is an error. If not it is a warning.

    Raises:
        EmulatorError: by its class the first fault found; the text names the PTX line, and the
            source line where the PTX carries `.loc`.
    """
    from kernels_sm100.emulator.grid import run

    if schedule not in SCHEDULES:
        raise LaunchError(
            sentence(
                what="unknown schedule",
                where="emulate",
                got=repr(schedule),
                wanted=f"one of {', '.join(SCHEDULES)}",
                remedy="pick one",
            )
        )
    return run(
        launch,
        memory,
        schedule=schedule,
        seed=seed,
        races=races,
        resident=RESIDENT if ctas_resident is None else ctas_resident,
        strict_tmem_loads=strict_tmem_loads,
        strict_registers=strict_registers,
        strict_exit=strict_exit,
        strict_fences=strict_fences,
    )
