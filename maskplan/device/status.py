"""The status word of a device plan: what the device had to drop, because it cannot raise.

An int32 of one element that travels with the plan and is shared by what is made from it. Bits are
only ever set, so one look at the end of a step sees all of it. Setting a bit is an atomic OR: which
thread came first leaves no trace.

| bit | what happened | what became of it |
| --- | --- | --- |
| 1 | an index lies outside its range, or belongs to another batch | dropped |
| 2 | more blocks than the capacity, or than the width of a padded list | the last ones dropped |
| 8 | a block is partial where the caller said that blocks are whole | dropped |
| 16 | a length outside 0 <= length <= topk | cut to that range |
| 32 | queries of a tile differ, with policy="uniform" | the tile's list is empty |
| 64 | a union of differing queries covers more keys than max_coverage | kept |
"""

import torch
from torch import Tensor

from maskplan.device.place import require_values
from maskplan.errors import PlanError, sentence

BAD_INDEX, BLOCKS_FULL, PARTIAL_BLOCK, BAD_LENGTH = 1, 2, 8, 16
TILES_DIFFER, MUCH_COVERED = 32, 64

_FAULTS = {
    BAD_INDEX: (
        "index out of range",
        "an index outside its batch, which was dropped",
        "indices inside their own batch, or -1 for none",
        "plan indices.cpu(), which names the place",
    ),
    BLOCKS_FULL: (
        "more blocks than there is room for",
        "blocks that were dropped",
        "room for all",
        "raise capacity= or width=",
    ),
    PARTIAL_BLOCK: (
        "a block is not whole",
        "partial blocks with whole=True, which were dropped",
        "lists of whole blocks",
        "leave out whole=True: bits then keep such blocks exact",
    ),
    BAD_LENGTH: (
        "length out of range",
        "a length below 0 or above topk, which was cut",
        "0 <= length <= topk",
        "count the lanes of indices that hold",
    ),
    TILES_DIFFER: (
        "queries of a tile select different keys",
        "a tile of differing queries, whose list was dropped",
        "one list for all queries of a tile, with policy='uniform'",
        "call tiles.cpu(), which names the tile, or pass policy='union'",
    ),
    MUCH_COVERED: (
        "union of a tile covers most keys",
        "a union beyond max_coverage",
        "unions of fewer keys",
        "call tiles.cpu(), which names the tile, or plan blocks",
    ),
}


def new_status(device: torch.device) -> Tensor:
    """A status word without faults: int32 [1]."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def raise_faults(status: Tensor, whose: str = "plan's") -> None:
    """Wait for the device, read the word and raise for its lowest bit.

    Args:
        status: int32 [1].
        whose: it is.

    Raises:
        PlanError: if a bit is set.
    """
    require_values(status, f"the {whose} status word")
    bits = int(status)
    for bit, (what, got, wanted, remedy) in _FAULTS.items():
        if bits & bit:
            raise PlanError(
                sentence(
                    what=what,
                    where=f"the {whose} status word ({bits})",
                    got=got,
                    wanted=wanted,
                    remedy=remedy,
                )
            )
