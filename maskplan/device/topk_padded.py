"""Padded forward lists of top-k lists, written from the bits that a plan's lists are made of."""

import torch
from torch import Tensor

from maskplan.device.list_writer import pad_bits
from maskplan.device.lists import on_device
from maskplan.device.nvrtc import runs
from maskplan.device.padded import PaddedLists, named, padded
from maskplan.device.status import new_status
from maskplan.device.topk import TopkLists
from maskplan.provenance import Provenance


def padded_topk(
    lists: TopkLists, pattern_id: Tensor, provenance: Provenance, width: int
) -> tuple[PaddedLists, Tensor, Tensor]:
    """(lists, tiles int32 [T, bq, words], status word): those of the plan of `lists`, bit for bit.

    Args:
        lists: of any device; without CUDA C++ there is a plan in between.
        pattern_id: int32 [batch, heads].
        provenance: of that plan.
        width: of the lists; blocks beyond it are dropped, with status bit 2.

    Raises:
        PlanError: if there could be more tiles than 32-bit numbers count.
    """
    if not runs(lists.indices):
        plan = lists.plan(pattern_id, provenance)
        assert plan.status is not None
        return padded(plan, width), plan.tiles, plan.status
    with on_device(lists.indices):
        return _of_bits(lists, pattern_id, width)


def _of_bits(
    lists: TopkLists, pattern_id: Tensor, width: int
) -> tuple[PaddedLists, Tensor, Tensor]:
    device, geometry = lists.indices.device, lists.geometry
    rows, cols = geometry.num_q_blocks, geometry.num_k_blocks
    status = new_status(device)
    found = lists.found(status)
    shape = (*pattern_id.shape, rows)
    counts = torch.empty(2, *shape, dtype=torch.int32, device=device)
    slots = torch.empty(3, *shape, width, dtype=torch.int32, device=device)
    pad_bits(
        found.listed, found.full, pattern_id, counts, slots, status, rows=rows, cols=cols,
        tiles=found.tiles is not None,
    )  # fmt: skip
    return named(counts, slots), lists.tiles_of(found), status
