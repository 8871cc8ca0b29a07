"""The leading (batch, heads) axes of an input, with what is broadcast kept once."""

import torch
from torch import Tensor

from maskplan.build.host import rank
from maskplan.errors import PlanError, sentence


def distinct(*tensors: Tensor, batch_shared: bool = True) -> tuple[Tensor, list[Tensor]]:
    """The (batch, head) slices that differ in memory.

    An axis of stride 0 in all tensors, as `expand` makes, is kept once: a view of any logical size
    is planned at the cost of what it holds.

    Args:
        tensors: [batch, heads, ...] each, the first two sizes equal.
        batch_shared: False keeps the batch axis as it is.

    Returns:
        (pattern_id int32 [batch, heads], the tensors as views [b, h, ...]), where pattern_id is the
        place among the b * h slices with heads fastest.
    """
    batch, heads = tensors[0].shape[:2]
    own = list(tensors)
    if batch > 1 and batch_shared and all(tensor.stride(0) == 0 for tensor in own):
        own = [tensor[:1] for tensor in own]
    if heads > 1 and all(tensor.stride(1) == 0 for tensor in own):
        own = [tensor[:, :1] for tensor in own]
    b, h = own[0].shape[:2]
    numbers = torch.arange(b * h, dtype=torch.int32, device=own[0].device).view(b, h)
    return numbers.expand(batch, heads).contiguous(), own


def with_heads_axes(tensor: Tensor, name: str, last: str) -> Tensor:
    """`tensor` of 2 to 4 axes as [batch, heads, ...], with sizes of 1 put in front.

    Args:
        tensor: [..., X, Y].
        name: what the error calls it.
        last: names of its last two axes.

    Raises:
        PlanTypeError: if it has another number of axes.
        PlanError: if batch or heads are 0.
    """
    rank(
        tensor,
        name,
        (2, 3, 4),
        f"[{last}], [heads, {last}] or [batch, heads, {last}]",
        f"add or merge leading axes, {name}[:, None] for one without heads",
    )
    full = tensor[(None,) * (4 - tensor.ndim)]
    require_heads(full, name)
    return full


def require_heads(tensor: Tensor, name: str) -> None:
    """Check that [batch, heads, ...] has at least one of each.

    Raises:
        PlanError: if it has not.
    """
    if 0 in tensor.shape[:2]:
        raise PlanError(
            sentence(
                what="no heads to plan",
                where=name,
                got=f"shape {list(tensor.shape)}",
                wanted="at least one batch and one head",
                remedy="skip the call for an empty batch",
            )
        )
