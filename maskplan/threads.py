"""Running independent pieces of one job on the threads that torch would use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def bounds(total: int, parts: int, index: int) -> tuple[int, int]:
    """Range `index` of [0, total) cut into `parts` ranges; the first ones are one longer.

    >>> [bounds(10, 3, i) for i in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    size, extra = divmod(total, parts)
    start = index * size + min(index, extra)
    return start, start + size + (index < extra)


def run_ranges(work: Callable[[int, int], None], total: int, *, smallest: int = 1) -> None:
    """Call `work(start, stop)` over [0, total), one range a thread, and wait for all.

    `smallest` is the least size worth a thread of its own. `work` must release the GIL to gain
    anything. The pool lives for the call only, since threads do not survive a fork (nor do torch's
    own: a forked child must not use them).

    Raises:
        Exception: the first that a call of `work` raised.
    """
    parts = min(torch.get_num_threads(), max(1, total // max(1, smallest)))
    ranges = [bounds(total, parts, index) for index in range(parts)]
    if len(ranges) == 1:
        work(*ranges[0])
        return
    with ThreadPoolExecutor(len(ranges)) as pool:
        for future in [pool.submit(work, start, stop) for start, stop in ranges]:
            future.result()
