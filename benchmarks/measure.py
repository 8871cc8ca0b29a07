"""How the benchmarks measure: medians of interleaved runs, and the growth of the process."""

import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

RUNS = 7
STATM = Path("/proc/self/statm")


def medians(works: dict[str, Callable[[], object]], runs: int = RUNS) -> dict[str, float]:
    """Median milliseconds of each, run in turn, after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if run:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def resident() -> float:
    """Resident set, MiB."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(work: Callable[[], object]) -> float:
    """MiB the process grew by, at its largest, while `work` ran.

    Memory that earlier calls freed is given back first, or it would hide what this one takes.
    """
    ctypes.CDLL(None).malloc_trim(0)
    before = peak = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    peak = max(peak, resident())
    done.set()
    watcher.join()
    del result
    return peak - before
