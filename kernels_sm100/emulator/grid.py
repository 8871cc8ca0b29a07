"""A launch as a whole: CTAs that become resident, the schedule, deadlock, and the report.

NOTE [Progress]: a warp that waits is not run; a warp that spins on memory is. Whatever one warp
can notice of another counts as an event (stores, arrivals, completed copies). A round without
events in which warps only spin first lets asynchronous work complete; if nothing is outstanding
and it goes on like that, no warp will ever see anything new, and that is a deadlock too.
"""

import random
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_sm100.emulator.codegen import load_families
from kernels_sm100.emulator.codegen.program import BLOCKED, DIVERGED, FINISHED, Program
from kernels_sm100.emulator.global_memory import GlobalMemory
from kernels_sm100.emulator.lanes.types import Lanes
from kernels_sm100.emulator.launch import Launch, Report
from kernels_sm100.emulator.launch_checks import check_limits, parameter_buffer
from kernels_sm100.emulator.machine.cluster import Cluster
from kernels_sm100.emulator.machine.deadlock import describe
from kernels_sm100.emulator.machine.engine import Engine
from kernels_sm100.emulator.machine.library import LIBRARY
from kernels_sm100.emulator.machine.warp import QUANTUM, SHORTEST, Warp
from kernels_sm100.emulator.parser import parse
from kernels_sm100.emulator.ptx import Instruction
from kernels_sm100.emulator.races.global_shadow import GlobalRaces
from kernels_sm100.errors import Deadlock

IDLE_ROUNDS = 1_500
GIVES_UP = 0.1  # of the `try_wait`s under random schedules
BUDGETS = (1, 3, 20, 200, 5_000)


@lru_cache(maxsize=16)
def program(ptx: str, kernel: str, *, strict_tmem_loads: bool) -> Program:
    """The program of a kernel; recent ones are kept, with the blocks compiled so far."""
    load_families()
    module = parse(ptx)
    names = {**LIBRARY, "BLOCKED": BLOCKED, "DIVERGED": DIVERGED, "FINISHED": FINISHED}
    return Program(module, module.kernel(kernel), names, strict_tmem_loads=strict_tmem_loads)


class Grid:
    """One launch while it runs."""

    def __init__(
        self,
        launch: Launch,
        memory: GlobalMemory,
        *,
        schedule: str,
        seed: int,
        races: bool,
        resident: int,
        strict_tmem_loads: bool,
        strict_registers: bool,
        strict_exit: bool,
        strict_fences: bool,
    ) -> None:
        self.launch = launch
        self.memory = memory
        self.program = program(launch.ptx, launch.kernel, strict_tmem_loads=strict_tmem_loads)
        self.schedule = schedule
        self.random = random.Random(seed)  # noqa: S311 - orders of a test, no secret
        self.resident = resident
        self.strict_registers = strict_registers
        self.strict_exit = strict_exit
        self.strict_fences = strict_fences
        self.engine = Engine(eager=schedule in ("round_robin", "random_eager"), seed=seed)
        self.race_memory = GlobalRaces() if races else None
        self.report = Report()
        self.events = 0
        self.ticks = 0
        self.plain: list[Any] = self.program.plain
        self.masked: list[Any] = self.program.masked
        self.parameter_bytes = parameter_buffer(launch, self.program.kernel)
        self._cached: dict[tuple[int, int], Lanes] = {}
        self._by_line = {i.line: i for i in self.program.kernel.instructions}
        check_limits(launch, dynamic_start=self.program.dynamic_start, resident=resident)

    # What warps ask

    def parameter(self, offset: int, size: int) -> Lanes:
        """Bytes of the parameter buffer, in all lanes."""
        found = self._cached.get((offset, size))
        if found is None:
            value = int.from_bytes(self.parameter_bytes[offset : offset + size], "little")
            found = np.full(32, value, dtype=f"u{size}")
            self._cached[offset, size] = found
        return found

    def gives_up(self) -> bool:
        """Whether a `try_wait` returns false instead of waiting on."""
        return self.schedule.startswith("random") and self.random.random() < GIVES_UP

    def instruction_at(self, line: int) -> Instruction | None:
        """The instruction on a PTX line."""
        return self._by_line.get(line)

    def actor_name(self, cluster: int, actor: int) -> str:
        """Who an actor of a cluster is, in words."""
        found = self.clusters.get(cluster)
        if found is None or found.races is None:
            return f"actor {actor} of cluster {cluster}"
        return f"{found.races.name_of(actor)} of CTA {found.ctas[0].index}"

    # Running

    def _waiting_clusters(self) -> Iterator[list[tuple[int, int, int]]]:
        """CTAs of each cluster in rank order, clusters in launch order."""
        (gx, gy, gz), (cx, cy, cz) = self.launch.grid, self.launch.cluster
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
                    yield [
                        (x + i, y + j, z + k)
                        for k in range(cz)
                        for j in range(cy)
                        for i in range(cx)
                    ]

    def run(self) -> Report:
        """Run every CTA to its end."""
        started = time.perf_counter()
        waiting = self._waiting_clusters()
        size = int(np.prod(self.launch.cluster))
        self.clusters: dict[int, Cluster] = {}
        live: list[Cluster] = []
        number, idle = 0, 0
        more = True
        while True:
            while more and (len(live) + 1) * size <= self.resident:
                indices = next(waiting, None)
                if indices is None:
                    more = False
                    break
                live.append(Cluster(self, number, indices, len(live) * size))
                self.clusters[number] = live[-1]
                number += 1
            if not live:
                break
            before = self.events
            moved = self._round(
                [w for c in live for a in c.ctas for w in a.warps if not w.finished]
            )
            ended = [cluster for cluster in live if cluster.finished()]
            for cluster in ended:
                self._retire(cluster)
                live.remove(cluster)
            if ended or self.events != before or self.engine.step():
                idle = 0
            elif not moved or idle > IDLE_ROUNDS:
                raise Deadlock(describe([cta for c in live for cta in c.ctas], spinning=moved))
            else:
                idle += 1
        self.engine.drain()
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _round(self, warps: list[Warp]) -> bool:
        """Give each warp a turn; whether any moved."""
        drawn = self.schedule in ("random", "random_eager")
        if drawn:
            self.random.shuffle(warps)
        moved = False
        for warp in warps:
            before = self.events
            budget = self.random.choice(BUDGETS) if drawn else warp.quantum
            if warp.run(budget):
                moved = True
                spun = self.events == before
                warp.quantum = max(warp.quantum // 2, SHORTEST) if spun else QUANTUM
            if self.schedule == "random" and self.engine.pending() and self.random.random() < 0.3:
                self.engine.step()
        return moved

    def _retire(self, cluster: Cluster) -> None:
        """Count what a cluster did, and check what it left behind."""
        self.engine.finish(cluster)
        lengths = np.array([*self.program.lengths, 0])
        report = self.report
        for cta in cluster.ctas:
            report.ctas += 1
            for warp in cta.warps:
                report.instructions += int((warp.counts * lengths).sum())
                for block in np.flatnonzero(warp.counts).tolist():
                    count = int(warp.counts[block])
                    line = self.program.line_of(block)
                    report.executed[warp.index, line] += count * int(lengths[block])
                    first, last = self.program.starts[block], self.program.starts[block + 1]
                    for instruction in self.program.kernel.instructions[first:last]:
                        report.lines[instruction.line] += count
        cluster.check_exit()
        cluster.release()


def run(launch: Launch, memory: GlobalMemory, **options: Any) -> Report:
    """Run a launch; see `launch.emulate`."""
    with np.errstate(all="ignore"):  # overflow and NaN are the kernel's affair
        return Grid(launch, memory, **options).run()
