"""Clocks, and medians of works that are run in turn.

NOTE [Cold caches]: before each run a buffer larger than the last cache is written, as the rest of a
model would do. Inputs that a benchmark has just read would otherwise be read from the cache.

NOTE [Balanced order]: what ran before a work heats the chip and lowers its clock, so a work that
always runs after a dense one reads some percent slower than the same kernel after a sparse one.
Rounds therefore go through the works in the rows of a Williams square, in which each work follows
each other one equally often: https://en.wikipedia.org/wiki/Latin_square (E. J. Williams, 1949).
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Work = Callable[[], object]
CPU_FLUSH_BYTES = 64 << 20
CUDA_FLUSH_BYTES = 256 << 20  # an H200's L2 holds 60 MB
HEAD_STARTS = (4_000_000, 40_000_000)  # clock cycles a GPU waits, some 2 and 20 ms on an H200
HOST_CALLS, HOST_BATCHES = 30, 8
FEWEST_RUNS = 3


class Clock(Protocol):
    """Times one run of a work."""

    def __call__(self, work: Work) -> float:
        """Milliseconds."""
        ...


class CpuClock:
    """Wall time with cold caches."""

    def __init__(self) -> None:
        self._buffer = torch.zeros(CPU_FLUSH_BYTES // 4, dtype=torch.float32, device="cpu")

    def __call__(self, work: Work) -> float:
        """Milliseconds of one run."""
        self._buffer.add_(1)
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)


class CudaClock:
    """Time between two events on the current stream, with a cold L2: what the GPU does.

    The GPU waits before it starts, so that launches are queued by then. Host time, that of a
    backward through autograd above all, would be counted otherwise; `HostClock` has it. A run whose
    launches were not all queued when the GPU began is made again with a longer wait.
    """

    def __init__(self) -> None:
        self._buffer: Any = torch.empty(CUDA_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, work: Work) -> float:
        """Milliseconds of one run."""
        for cycles in HEAD_STARTS:
            milliseconds, queued = self._run(work, cycles)
            if queued:
                break
        return milliseconds  # of a work that waits for the GPU itself: its host time is in it

    def _run(self, work: Work, cycles: int) -> tuple[float, bool]:
        """(milliseconds, whether everything was queued before the GPU began)."""
        event: Any = torch.cuda.Event  # untyped in torch
        start, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        wait: Any = torch.cuda._sleep  # noqa: SLF001 - torch's own tests time by it
        wait(cycles)
        self._buffer.zero_()
        start.record()
        work()
        end.record()
        queued = not start.query()
        end.synchronize()
        return float(start.elapsed_time(end)), queued


class HostClock:
    """Host time of a call that launches work on a GPU, without waiting for the GPU.

    The least of several batches: what else the machine does can only add. Python collects no
    garbage meanwhile, as in `timeit`.
    """

    def __call__(self, work: Work) -> float:
        """Milliseconds a call."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            return min(self._batch(work) for _ in range(HOST_BATCHES))
        finally:
            if collecting:
                gc.enable()

    def _batch(self, work: Work) -> float:
        torch.cuda.synchronize()  # which also empties the queue, whose end a call would wait for
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            work()
        return 1e3 * (time.perf_counter() - start) / HOST_CALLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of one work, in milliseconds."""

    median: float
    low: float
    high: float
    runs: int


def balanced_order(count: int, turn: int) -> list[int]:
    """The order of `count` works in round `turn`, see NOTE [Balanced order].

    Balanced after `count` rounds, or twice as many where it is odd.
    """
    zigzag = [0, *(number for step in range(1, count) for number in (step, count - step))][:count]
    order = [(number + turn) % count for number in zigzag]
    mirrored = count % 2 == 1 and turn // count % 2 == 1
    return order[::-1] if mirrored else order


def interleaved(
    works: Mapping[str, Work],
    clock: Clock,
    *,
    runs: int,
    seconds: float = float("inf"),
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Times]:
    """Times of each work, run in turn, in an order that favours none.

    Args:
        works: warmed up, by name.
        clock: times one run.
        runs: of each work.
        seconds: stop early after these, though never before 3 runs of each.
        now: a clock in seconds.
    """
    names = list(works)
    found: dict[str, list[float]] = {name: [] for name in names}
    until = now() + seconds
    for run in range(runs):
        if run >= FEWEST_RUNS and now() >= until:
            break
        for number in balanced_order(len(names), run):
            found[names[number]].append(clock(works[names[number]]))
    return {
        name: Times(
            median=statistics.median(values), low=min(values), high=max(values), runs=len(values)
        )
        for name, values in found.items()
    }


def graphed(work: Work) -> Work:
    """`work` as the replay of a CUDA graph, which leaves the launches of its kernels out."""
    new_stream: Any = torch.cuda.Stream  # untyped in torch
    stream = new_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()

    def replay() -> object:
        graph.replay()
        return kept  # what the graph writes to

    return replay
