"""Pieces of one attention call, worked off by the threads that torch would use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch

# Pieces a thread takes over a call: enough that one slow piece does not hold the others up.
PIECES_PER_THREAD = 16
# Starting threads costs about as much as this many multiplications.
SMALLEST_WORK = 16_000_000


def even_pieces(work: "np.ndarray[tuple[int], np.dtype[np.int64]]", parts: int) -> list[int]:
    """Bounds of at most `parts` consecutive pieces of nearly equal work, first 0, last len(work).

    >>> even_pieces(np.array([3, 1, 1, 1]), 2)
    [0, 1, 4]
    """
    done = np.cumsum(work)
    if not len(done) or done[-1] == 0:
        return [0, len(work)] if len(work) else [0]
    wanted = done[-1] * np.arange(1, parts) / parts
    bounds = np.searchsorted(done, wanted, side="left") + 1
    return sorted({0, *np.minimum(bounds, len(work)).tolist(), len(work)})


def run_pieces(work: Callable[[int, int], None], bounds: list[int], total_work: float) -> None:
    """Call `work(start, stop)` for each pair of neighbours in `bounds`, and wait for all.

    Threads take the next piece as they finish one. `work` must give the same result whichever
    thread runs it and in whichever order. The pool lives for the call only, since
    threads do not survive a fork.

    Raises:
        Exception: the first that a call of `work` raised.
    """
    pieces = iter(list(pairwise(bounds)))  # a list's iterator may be shared by threads

    def drain() -> None:
        for start, stop in pieces:
            work(start, stop)

    helpers = min(torch.get_num_threads(), len(bounds) - 1) - 1
    if helpers < 1 or total_work < SMALLEST_WORK:
        drain()
        return
    with ThreadPoolExecutor(helpers) as pool:
        waiting = [pool.submit(drain) for _ in range(helpers)]
        drain()
        for future in waiting:
            future.result()
