"""Plans from the CPU to a device, and back."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from maskplan.device.place import placed, raise_no_values
from maskplan.device.status import new_status, raise_faults
from maskplan.plan import BlockLists

ListsT = TypeVar("ListsT", bound=BlockLists)


def on_gpu(tensor: Tensor) -> bool:
    """Whether what is made from `tensor` is a device plan."""
    return tensor.is_cuda


def gpu(device: torch.device | str | None) -> torch.device | None:
    """`device` with its number, or None where it says the CPU.

    Raises:
        PlanTypeError: if it is no device.
        PlanError: if there is no such one here.
    """
    if device is None:
        return None
    place = placed(device)
    if place.type == "meta":
        raise_no_values("device")
    return None if place.type == "cpu" else place


def as_device_plan(plan: ListsT, device: torch.device) -> ListsT:
    """The arrays of `plan` on a device, with a status word."""
    tile_id = None if plan.tile_id is None else plan.tile_id.to(device)
    return replace(
        plan,
        pattern_id=plan.pattern_id.to(device),
        row_ptr=plan.row_ptr.to(device),
        col=plan.col.to(device),
        tile_id=tile_id,
        tiles=plan.tiles.to(device),
        status=new_status(device) if plan.status is None else plan.status.to(device),
    )


def to_device(plan: ListsT, device: torch.device | str) -> ListsT:
    """`Plan.to`: see there."""
    place = placed(device)
    if place.type == "cpu":
        return to_cpu(plan)
    if plan.status is not None and plan.device == place:
        return plan
    return as_device_plan(plan, place)


def to_cpu(plan: ListsT) -> ListsT:
    """`Plan.cpu`: see there."""
    if plan.status is None:
        return plan
    raise_faults(plan.status)
    row_ptr = plan.row_ptr.cpu()
    blocks = int(row_ptr[-1])
    tile_id, tiles = None, plan.tiles[:0].cpu()
    if plan.tile_id is not None:
        ids = plan.tile_id[:blocks]
        # Room for tiles is large and mostly unused: take along what the blocks name.
        used, place = torch.unique(ids, return_inverse=True)
        tile_id = place.to(torch.int32).cpu()
        first = int((used < 0).sum())
        tile_id -= first
        tiles = plan.tiles[used[first:].long()].cpu()
    exact = replace(
        plan,
        pattern_id=plan.pattern_id.cpu(),
        row_ptr=row_ptr,
        col=plan.col[:blocks].cpu(),
        tile_id=tile_id,
        tiles=tiles,
        status=None,
    )
    return exact.canonical()


def to_cpu_as_numbered(plan: ListsT) -> ListsT:
    """A device plan on the CPU, exact, with the numbers of its patterns and tiles as they were.

    For what walks and tables made from it on the device go on using. It waits for the device.

    Raises:
        PlanError: if the device recorded a fault.
    """
    if plan.status is None:
        return plan
    raise_faults(plan.status)
    row_ptr = plan.row_ptr.cpu()
    blocks = int(row_ptr[-1])
    return replace(
        plan,
        pattern_id=plan.pattern_id.cpu(),
        row_ptr=row_ptr,
        col=plan.col[:blocks].cpu(),
        tile_id=None if plan.tile_id is None else plan.tile_id[:blocks].cpu(),
        tiles=plan.tiles.cpu(),
        status=None,
    )
