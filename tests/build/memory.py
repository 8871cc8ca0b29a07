"""How much a call grows the process, at its largest."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_mib() -> float:
    """Resident set now, in MiB."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_growth_mib(call: Callable[[], object]) -> float:
    """MiB by which the resident set exceeded its size before `call`, sampled every millisecond."""
    before = resident_mib()
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        done.set()
        watcher.join()
    peak = max(peak, resident_mib())
    del result
    return peak - before
