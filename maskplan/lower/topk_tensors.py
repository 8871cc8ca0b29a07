"""`BlockSparseTensors.from_topk`: padded forward lists of top-k lists, with no plan in between."""

from typing import Any

from torch import Tensor

from maskplan.build.topk import plan_of_lists
from maskplan.build.topk_arguments import GivenTopk, checked_topk
from maskplan.device.move import on_gpu
from maskplan.device.topk_padded import padded_topk
from maskplan.geometry import flag
from maskplan.lower.padded_lists import check_forward, forward_tensors, slots_of
from maskplan.lower.target import Target
from maskplan.lower.tensors import BlockSparseTensors


def of_topk(
    indices: Tensor,
    seqlen_k: int,
    target: Target | str | None,
    *,
    whole: bool,
    direction: str,
    width: str | int,
    **given: Any,
) -> BlockSparseTensors:
    """`BlockSparseTensors.from_topk`."""
    lists = checked_topk(indices, seqlen_k, **given)
    target = check_forward(lists.geometry, target, direction)
    if not on_gpu(indices):
        plan = plan_of_lists(lists, whole=whole)
        return forward_tensors(plan, target, direction=direction, width=width)
    whole = flag(whole, "whole")
    return _on_device(lists, 1 if target is None else target.rows_per_token, whole, width)


def _on_device(
    lists: GivenTopk, rows_per_token: int, whole: bool, width: str | int
) -> BlockSparseTensors:
    geometry = lists.geometry
    slots = slots_of(width, geometry.num_k_blocks, lists.indices.device)
    assert slots is not None
    padded, tiles, status = padded_topk(
        lists.on_device(whole=whole, capacity=None), lists.pattern_id, lists.provenance, slots
    )
    bq, bk = geometry.block_size
    block_size = (bq * rows_per_token, bk)
    return BlockSparseTensors(**padded, tiles=tiles, block_size=block_size, status=status)
