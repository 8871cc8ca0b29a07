"""Arguments of the builders as arrays on the host, checked at the door."""

from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
import torch
from torch import Tensor

from maskplan.errors import PlanTypeError, sentence
from maskplan.geometry import number
from maskplan.untransformed import plain

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Integers: TypeAlias = Tensor | np.ndarray[Any, Any] | Sequence[Any]

INDEX_DTYPES = (torch.int32, torch.int64)


def name_of(dtype: torch.dtype | torch.layout) -> str:
    """The dtype or layout without its `torch.`."""
    return str(dtype).removeprefix("torch.")


def on_host(tensor: Tensor, name: str, *, or_gpu: bool = False) -> Tensor:
    """`tensor`, checked to be a strided tensor in CPU memory, or with `or_gpu` in a GPU's.

    Raises:
        PlanTypeError: if it is not a tensor, lives elsewhere, or is sparse or nested.
        UnsupportedError: if it is vmapped: see NOTE [Transforms and tables].
    """
    if not isinstance(tensor, Tensor):
        raise PlanTypeError(
            sentence(
                what="argument is not a tensor",
                where=name,
                got=type(tensor).__name__,
                wanted="a torch.Tensor",
                remedy=f"pass torch.as_tensor({name})",
            )
        )
    if tensor.device.type != "cpu" and not (or_gpu and tensor.is_cuda):
        raise PlanTypeError(
            sentence(
                what="tensor is not on the CPU",
                where=name,
                got=f"device {tensor.device}",
                wanted="device cpu",
                remedy=f"pass {name}.cpu(): this builder plans on the host",
            )
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        raise PlanTypeError(
            sentence(
                what="tensor is sparse or nested",
                where=name,
                got="nested" if tensor.is_nested else name_of(tensor.layout),
                wanted="all elements, with strides",
                remedy=f"pass {name}.to_dense() or a padded tensor; block lists in CSR: from_bsr",
            )
        )
    return plain(tensor, name)


def bool_tensor(tensor: Tensor, name: str, *, or_gpu: bool = False) -> Tensor:
    """`tensor`, checked to be bool and on the CPU, or with `or_gpu` on a GPU.

    Raises:
        PlanTypeError: if it is not.
    """
    tensor = on_host(tensor, name, or_gpu=or_gpu)
    if tensor.dtype != torch.bool:
        raise PlanTypeError(
            sentence(
                what="mask is not bool",
                where=name,
                got=name_of(tensor.dtype),
                wanted="bool, True where attention is kept",
                remedy=f"say what counts, {name} != 0 or {name} == 0",
            )
        )
    return tensor


def index_tensor(tensor: Tensor, name: str, *, or_gpu: bool = False) -> Tensor:
    """`tensor`, checked to be int32 or int64 and on the CPU, or with `or_gpu` on a GPU.

    Raises:
        PlanTypeError: if it is not.
    """
    tensor = on_host(tensor, name, or_gpu=or_gpu)
    if tensor.dtype not in INDEX_DTYPES:
        raise PlanTypeError(
            sentence(
                what="tensor has the wrong dtype",
                where=name,
                got=name_of(tensor.dtype),
                wanted="int32 or int64",
                remedy=f"pass {name}.to(torch.int32)",
            )
        )
    return tensor


def float_tensor(values: Tensor | Sequence[float] | SupportsFloat, name: str) -> Tensor:
    """`values`, a number, a sequence or a tensor of numbers on the CPU, in float64.

    Raises:
        PlanTypeError: if it is neither, or holds bools or complex numbers.
    """
    if isinstance(values, (list, tuple)):
        listed = [number(value, f"{name}[{place}]") for place, value in enumerate(values)]
        return torch.tensor(listed, dtype=torch.float64, device="cpu")
    if not isinstance(values, Tensor):
        return torch.tensor(number(values, name), dtype=torch.float64, device="cpu")  # type: ignore[arg-type]
    values = on_host(values, name)
    if values.dtype == torch.bool or values.is_complex():
        raise PlanTypeError(
            sentence(
                what="tensor has the wrong dtype",
                where=name,
                got=name_of(values.dtype),
                wanted="real numbers",
                remedy=f"pass {name} as floats",
            )
        )
    return values.detach().double()


def rank(tensor: Tensor, name: str, ranks: tuple[int, ...], wanted: str, remedy: str) -> Tensor:
    """`tensor`, checked to have one of `ranks` axes.

    Raises:
        PlanTypeError: saying `wanted` and `remedy` if it has another number.
    """
    if tensor.ndim not in ranks:
        raise PlanTypeError(
            sentence(
                what="tensor has the wrong rank",
                where=name,
                got=f"{tensor.ndim} axes {list(tensor.shape)}",
                wanted=wanted,
                remedy=remedy,
            )
        )
    return tensor


def int_array(values: Integers, name: str, shape: tuple[int | None, ...]) -> IntArray:
    """`values` as int64 of `shape`, where None is any size.

    Args:
        values: a tensor on the CPU, an array or nested sequences, of integers.
        name: what the error calls it.
        shape: sizes wanted. An empty sequence passes for a `shape` whose first size is None.

    Raises:
        PlanTypeError: if the dtype is not an integer one, or the shape is another.
    """
    if isinstance(values, Tensor):
        array = on_host(values, name).detach().numpy()
    else:
        try:
            array = np.asarray(values)
        except ValueError:  # lists of unequal lengths
            array = np.asarray(values, dtype=object)
    if array.size == 0 and shape[0] is None:
        array = array.reshape(0, *(size or 0 for size in shape[1:])).astype(np.int64)
    fits = array.ndim == len(shape) and all(
        size in (None, got) for size, got in zip(shape, array.shape, strict=True)
    )
    if not np.issubdtype(array.dtype, np.integer) or not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise PlanTypeError(
            sentence(
                what="argument has the wrong dtype or shape",
                where=name,
                got=f"{array.dtype} {list(array.shape)}",
                wanted=f"integers of shape [{sizes}]",
                remedy=f"pass {name} as such an array, tensor or list",
            )
        )
    return array.astype(np.int64)
