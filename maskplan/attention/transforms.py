"""What torch's transforms make of the operators: `vmap` works, forward mode is refused.

A vmapped axis is one more batch: it is folded into B, which a plan of batch 1 does not notice.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.lowered import restore


def register_vmap(library: Any, name: str, operator: Callable[..., Any], batched: int) -> None:
    """Teach `vmap` an operator whose first `batched` arguments and all results have B first.

    Args:
        library: where the operator was defined.
        name: qualified.
        operator: to call.
        batched: how many arguments have a batch axis; the plan's tensors and its spec come next.
    """

    def rule(info: Any, in_dims: Sequence[Any], *inputs: Any) -> tuple[Any, Any]:
        plan, spec = inputs[batched : batched + 2]
        if any(dim is not None for dim in in_dims[batched]):
            raise refusal("vmap over the tensors of a plan", "one plan for the whole axis")
        plan_batch = restore(plan, spec).batch
        if plan_batch != 1:
            raise refusal(f"vmap with a plan of batch {plan_batch}", "a plan of batch 1")
        size = int(info.batch_size)
        folded = [
            _fold(value, dim, size)
            for value, dim in zip(inputs[:batched], in_dims[:batched], strict=True)
        ]
        results = operator(*folded, *inputs[batched:])
        return tuple(x.unflatten(0, (size, -1)) for x in results), (0,) * len(results)

    torch.library.register_vmap(name, rule, lib=library)


def _fold(value: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """[B, ...] and a vmapped axis as [size * B, ...]."""
    if value is None:
        return None
    axis_first = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return axis_first.flatten(0, 1)


def refuse_forward_mode(*tensors: Tensor | None) -> None:
    """Refuse dual numbers, whose tangents would be lost without a word.

    Raises:
        UnsupportedError: if one of `tensors` is one.
    """
    if forward_ad._current_level < 0:  # noqa: SLF001 - nothing else says so without a cost
        return
    unpack: Any = forward_ad.unpack_dual
    for tensor in tensors:
        if tensor is not None and unpack(tensor).tangent is not None:
            raise refusal("a tangent of q, k or v", "gradients in reverse mode")


def refuse_functionalize() -> None:
    """Refuse `torch.func.functionalize`, which has no rule for functions with a backward.

    Raises:
        UnsupportedError: if it is one of the transforms at work.
    """
    from torch._functorch import pyfunctorch

    kinds = {level.key() for level in pyfunctorch.retrieve_all_functorch_interpreters()}
    if torch._C._functorch.TransformType.Functionalize in kinds:  # noqa: SLF001 - its only name
        raise refusal("torch.func.functionalize", "transforms that know functions with a backward")


def refusal(got: str, wanted: str) -> UnsupportedError:
    """The error of a transform that is not supported."""
    return UnsupportedError(
        sentence(
            what="transform is not supported",
            where="attention",
            got=got,
            wanted=wanted,
            remedy="use torch.func.grad or vjp, and vmap over q, k and v alone",
        )
    )
