"""A launch to emulate, and what came out.

memory = GlobalMemory()
x = memory.add("x", np.zeros(64, np.float32))
report = emulate(Launch(kernel="scale", ptx=ptx, grid=(1, 1, 1), block=(32, 1, 1),
                        parameters=(x.address.to_bytes(8, "little"),)), memory)
"""

from collections import Counter
from dataclasses import dataclass, field

from kernels_sm100.emulator.global_memory import GlobalMemory

SCHEDULES = ("round_robin", "random", "lazy", "random_eager")
RESIDENT = 148  # SMs of a B200; one CTA of these kernels fills an SM

Dim3 = tuple[int, int, int]


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
    from kernels_sm100.emulator.launch_checks import check_call, integer

    check_call(
        launch,
        memory,
        schedule,
        races=races,
        strict_tmem_loads=strict_tmem_loads,
        strict_registers=strict_registers,
        strict_exit=strict_exit,
        strict_fences=strict_fences,
    )
    return run(
        launch,
        memory,
        schedule=schedule,
        seed=integer(seed, "seed"),
        races=races,
        resident=RESIDENT if ctas_resident is None else integer(ctas_resident, "ctas_resident"),
        strict_tmem_loads=strict_tmem_loads,
        strict_registers=strict_registers,
        strict_exit=strict_exit,
        strict_fences=strict_fences,
    )
