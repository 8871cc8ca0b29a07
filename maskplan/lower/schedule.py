"""The order in which tiles are started: longest first."""

import torch
from torch import Tensor


def longest_first(work: Tensor) -> Tensor:
    """Numbers of the work items, most work first.

    Items of equal work keep their order, which is by (batch, head, row): neighbours share keys, so
    they find them in the cache. Starting the longest first bounds the tail (Graham, 1969).

    Args:
        work: int64 [items].

    Returns:
        int32 [items].
    """
    return torch.argsort(work, descending=True, stable=True).to(torch.int32)
