"""Heads of a group share a KV head, and a table of one head serves all: by view, not by copy."""

from typing import Any

from kernels_sm100.errors import ConfigError, sentence


def expand_heads(tensor: Any, heads: int, axis: int = 1) -> Any:
    """`tensor` seen with `heads` entries along `axis`, each entry repeated for its group.

    Head h of the result is head h // (heads / n) of the tensor. One head becomes a stride of 0;
    several heads get an axis of the group, whose stride is 0, behind theirs: such a view has one
    axis more, [.., n, heads / n, ..], since no single stride repeats each of several entries.

    Args:
        tensor: a torch tensor with n entries along `axis`.
        heads: how many are wanted, a multiple of n.
        axis: where the heads are.

    Returns:
        A view. Of n = 1: [.., heads, ..]. Of n = heads: the tensor. Else [.., n, heads / n, ..].

    Raises:
        ConfigError: if `heads` is no multiple of n.
    """
    found = int(tensor.shape[axis])
    if found < 1 or heads % found:
        raise ConfigError(
            sentence(
                what="heads do not divide",
                where="expand_heads",
                got=f"{found} heads for {heads}",
                wanted=f"a divisor of {heads}",
                remedy="pass one head, one per KV head, or one per query head",
            )
        )
    if found == heads:
        return tensor
    shape = list(tensor.shape)
    if found == 1:
        return tensor.expand(*shape[:axis], heads, *shape[axis + 1 :])
    grouped = tensor.unsqueeze(axis + 1)
    shape.insert(axis + 1, heads // found)
    return grouped.expand(*shape)
