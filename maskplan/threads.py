"""Running independent pieces of one job on the threads that torch would use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """[0, total) cut into at most `parts` ranges of nearly equal size, none empty.

    >>> split(10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    parts = max(1, min(parts, total))
    size, extra = divmod(total, parts)
    stops = [(i + 1) * size + min(i + 1, extra) for i in range(parts)]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def run_ranges(work: Callable[[int, int], None], total: int, *, smallest: int = 1) -> None:
    """Call `work(start, stop)` over [0, total), one range a thread, and wait for all.

    `smallest` is the least size worth a thread of its own. `work` must release the GIL to gain
    anything. The pool lives for the call only: one that outlived it would hang a forked child.

    Raises:
        Exception: the first that a call of `work` raised.
    """
    ranges = split(total, min(torch.get_num_threads(), max(1, total // max(1, smallest))))
    if len(ranges) == 1:
        work(*ranges[0])
        return
    with ThreadPoolExecutor(len(ranges)) as pool:
        for future in [pool.submit(work, start, stop) for start, stop in ranges]:
            future.result()
