"""What it costs to put q, k and v into an order and o back, in bytes moved."""

from dataclasses import dataclass

import torch

from maskplan.geometry import integer
from maskplan.patterns.label_order import LabelOrder
from maskplan.patterns.token_order import TokenOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationCost:
    """Bytes of a permutation before attention, and of undoing it after.

    Attributes:
        read: bytes of q, k, v and o read, in tokens where they hold one.
        written: bytes of q, k, v and o written, padding slots included.
        index: bytes of the orders' int64 indices read.
    """

    read: int
    written: int
    index: int

    @property
    def total(self) -> int:
        """All bytes moved."""
        return self.read + self.written + self.index

    def __str__(self) -> str:
        mib = [f"{size / 2**20:.1f}" for size in (self.read, self.written, self.index)]
        return f"reads {mib[0]} MiB, writes {mib[1]} MiB, indices {mib[2]} MiB"


def permutation_cost(
    q_order: TokenOrder | LabelOrder,
    k_order: TokenOrder | LabelOrder | None = None,
    *,
    batch: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    kv_heads: int | None = None,
) -> PermutationCost:
    """The bytes that `apply` on q, k and v and `undo` on o move.

    Args:
        q_order: order of q and o.
        k_order: order of k and v; None is `q_order`.
        batch: B.
        heads: HQ.
        head_dim: D.
        dtype: of the tensors.
        kv_heads: HK; None is `heads`.

    Raises:
        PlanTypeError: if a size is no integer.
        PlanError: if one is below 1.
    """
    k_order = q_order if k_order is None else k_order
    batch, heads = integer(batch, "batch", low=1), integer(heads, "heads", low=1)
    kv_heads = heads if kv_heads is None else integer(kv_heads, "kv_heads", low=1)
    row = batch * integer(head_dim, "head_dim", low=1) * dtype.itemsize
    queries, keys = heads * row, kv_heads * row
    per_head = batch * heads if isinstance(q_order, LabelOrder) else 1
    per_kv_head = batch * kv_heads if isinstance(k_order, LabelOrder) else 1
    return PermutationCost(
        read=2 * queries * q_order.tokens + 2 * keys * k_order.tokens,
        written=queries * (q_order.seqlen + q_order.tokens) + 2 * keys * k_order.seqlen,
        index=8 * per_head * (q_order.seqlen + q_order.tokens) + 16 * per_kv_head * k_order.seqlen,
    )
