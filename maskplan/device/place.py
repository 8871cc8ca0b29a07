"""Devices by the names that callers give them, checked to be there."""

from typing import NoReturn

import torch
from torch import Tensor

from maskplan.errors import PlanError, PlanTypeError, sentence

_TYPES = ("cpu", "cuda", "meta")  # where plans live; on meta without values, for shapes alone


def placed(device: torch.device | str, where: str = "device") -> torch.device:
    """`device` as a torch.device; a GPU with its number.

    Args:
        device: a torch.device, or its name: "cpu", "cuda", "cuda:1".
        where: the argument, for errors.

    Raises:
        PlanTypeError: if it is neither a torch.device nor text.
        PlanError: if torch knows no such device, plans do not live on it, or this machine has no
            such GPU.
    """
    if not isinstance(device, (torch.device, str)):
        raise PlanTypeError(
            sentence(
                what="argument is not a device",
                where=where,
                got=f"{device!r:.80} of type {type(device).__name__}",
                wanted='a torch.device, or its name, as "cuda:0"',
                remedy='pass "cpu" or "cuda"',
            )
        )
    try:
        place = torch.device(device)
    except RuntimeError:
        raise _absent(device, where) from None
    if place.type not in _TYPES:
        raise _absent(device, where)
    if place.type != "cuda":
        return place
    count = torch.cuda.device_count()
    if (place.index or 0) >= count:
        raise _absent(device, where)
    return torch.device("cuda", torch.cuda.current_device()) if place.index is None else place


def require_values(tensor: Tensor, where: str) -> None:
    """Refuse a tensor on meta, where what has to be read is not.

    Raises:
        PlanError: if it is there.
    """
    if tensor.is_meta:
        raise_no_values(where)


def raise_no_values(where: str) -> NoReturn:
    """Refuse meta.

    Raises:
        PlanError: always.
    """
    raise PlanError(
        sentence(
            what="a plan without values",
            where=where,
            got="device meta",
            wanted="the CPU or a GPU",
            remedy="keep the plan that was moved to meta, which serves for shapes alone",
        )
    )


def _absent(device: torch.device | str, where: str) -> PlanError:
    count = torch.cuda.device_count()
    gpus = f" or cuda:0 to cuda:{count - 1}" if count else " alone, as there is no CUDA device"
    return PlanError(
        sentence(
            what="no such device here",
            where=where,
            got=repr(str(device)),
            wanted=f"cpu{gpus}",
            remedy="pass one of these",
        )
    )
