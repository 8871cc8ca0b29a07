"""Plans from mask functions of FlexAttention's signature, evaluated piece by piece."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from maskplan.build.dense_rows import DenseRows
from maskplan.errors import PlanTypeError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import transformed, untransformed

MaskFn: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Pairs evaluated at a time: a mask function may hold several int64 temporaries for each.
_PIECE_PAIRS = 1 << 20


@untransformed
def from_mask_fn(
    fn: MaskFn,
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int = 1,
    heads: int = 1,
    block_size: tuple[int, int] = (128, 128),
    device: torch.device | str = "cpu",
) -> Plan:
    """The plan that keeps the pairs for which `fn` is True.

    Evaluates all batch * heads * SQ * SK pairs, a piece of bounded size at a time; where a closed
    form, ranges or documents say the same, they are thousands of times faster.

    Args:
        fn: FlexAttention's mask_mod: takes int64 scalars (b, h, q, k), returns a bool scalar. It
            runs under nested `torch.vmap`, so it computes with torch operations and may index
            tensors that it captured; it sees in-range positions only.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        batch: batches to evaluate; 1 where the mask does not depend on b.
        heads: heads to evaluate; 1 where it does not depend on h. Equal heads share a pattern.
        block_size: (bq, bk), in tokens.
        device: where to evaluate, the device of the tensors that `fn` captured.

    Raises:
        PlanTypeError: if `fn` is not callable or does not return a bool tensor.
        UnsupportedError: if it captured a tensor that is vmapped around this call.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    batch, heads = integer(batch, "batch", low=1), integer(heads, "heads", low=1)
    evaluate = transformed(vectorised(fn))
    bq = geometry.block_size[0]
    step = max(32, _PIECE_PAIRS // bq // 32 * 32)
    rows = DenseRows(geometry)
    for number in range(batch * heads):
        b, h = (torch.tensor([part], device=device) for part in divmod(number, heads))
        for top in range(0, geometry.seqlen_q, bq):
            q = torch.arange(top, min(top + bq, geometry.seqlen_q), device=device)
            for left in range(0, geometry.seqlen_k, step):
                k = torch.arange(left, min(left + step, geometry.seqlen_k), device=device)
                rows.put(evaluate(b, h, q, k)[0, 0].cpu(), left)
            rows.end_block()
    pattern_id = torch.arange(batch * heads, dtype=torch.int32, device="cpu").view(batch, heads)
    name = getattr(fn, "__name__", type(fn).__name__)
    return rows.plan(pattern_id, Provenance(builder="from_mask_fn", parameters={"fn": name}))


def vectorised(fn: MaskFn) -> MaskFn:
    """`fn` over vectors: (b [B], h [H], q [Q], k [K]) -> bool [B, H, Q, K].

    As FlexAttention's create_mask does it: one `torch.vmap` an argument, with indexing of captured
    tensors by traced scalars turned into a gather.

    Raises:
        PlanTypeError: if `fn` is not callable; from the result, if it does not return bools.
    """
    if not callable(fn):
        raise PlanTypeError(
            sentence(
                what="mask function is not callable",
                where="fn",
                got=type(fn).__name__,
                wanted="a function of (b, h, q, k)",
                remedy="pass FlexAttention's mask_mod, or use from_token_mask for a tensor",
            )
        )
    nested = _checked(fn)
    for axis in (3, 2, 1, 0):
        in_dims = tuple(0 if i == axis else None for i in range(4))
        nested = torch.vmap(nested, in_dims=in_dims)

    def evaluate(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        with TransformGetItemToIndex():
            return nested(b, h, q, k)

    return evaluate


def _checked(fn: MaskFn) -> MaskFn:
    """`fn`, with its result checked to be a bool tensor."""

    def checked(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        keep: object = fn(b, h, q, k)
        if isinstance(keep, Tensor) and keep.dtype == torch.bool:
            return keep
        got = (
            str(keep.dtype).removeprefix("torch.")
            if isinstance(keep, Tensor)
            else type(keep).__name__
        )
        raise PlanTypeError(
            sentence(
                what="mask function does not return bool",
                where="fn",
                got=got,
                wanted="a bool tensor, True where attention is kept",
                remedy="return a comparison; a score_mod is not a mask",
            )
        )

    return checked
