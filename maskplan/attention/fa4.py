"""Backend "fa4": flash-attn-4's block-sparse kernels, for H100, H200, B200 and B300.

Forward and backward are given lists and mask functions of their own: flash-attn-4's autograd takes
one mask function for both and runs a dense backward without a word where lists are missing.

What flash-attn-4 does not check is so by construction here: lists ascend (it masks the ragged tail
of the keys on the last block of a list alone), no block is in two lists, and both directions come
from one plan. Partial blocks have dropped pairs masked in the scores, so a NaN in V reaches the
queries of every listed block.
"""

from typing import Any

import torch
from torch import Tensor

from maskplan.attention import fa4_kernels as kernels
from maskplan.attention.call import AttentionCall
from maskplan.attention.fa4_inputs import fa4_inputs
from maskplan.attention.metadata import Metadata
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.engine_lists import EngineLists
from maskplan.lower.plan_cache import Lowering
from maskplan.lower.target import target

NAME = "fa4"
ENGINES = ("fa4",)
OPERATOR = True
DTYPES = (torch.bfloat16, torch.float16)


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.device.type != "cuda":
        return f"tensors are on {asked.device}, and its kernels are for CUDA GPUs"
    if asked.dtype not in DTYPES:
        return f"it computes bfloat16 and float16, not {str(asked.dtype).removeprefix('torch.')}"
    reason = kernels.missing() or kernels.overridden()
    if reason is not None:
        return reason
    arch = kernels.architecture(asked.device)
    if arch is None:
        return "flash-attn-4 has block-sparse kernels for SM90 and SM100 alone, others ignore lists"
    return _refused(arch, asked)


def _refused(arch: str, asked: Metadata) -> str | None:
    """Why kernels of `arch` cannot make the call."""
    try:
        rules = target(arch, head_dim=asked.head_dim, head_dim_v=asked.head_dim_v)
    except UnsupportedError:
        return f"its {arch} kernels do not take head dims ({asked.head_dim}, {asked.head_dim_v})"
    if asked.differentiable and "loop_q" in rules.refused:
        return f"its {arch} kernels have no backward for head dim {asked.head_dim}"
    if asked.deterministic and arch == "sm90":
        return "its block-sparse backward adds to dq in no fixed order on SM90"
    return None


def lowering(asked: Metadata) -> Lowering:
    """With the lists that the backward walks, if one may come."""
    arch = kernels.architecture(asked.device)
    assert arch is not None, "a call that it supports"
    shape: dict[str, Any] = {
        "head_dim": asked.head_dim,
        "head_dim_v": asked.head_dim_v,
        "heads": asked.heads,
        "kv_heads": asked.kv_heads,
        "arch": arch,
    }
    return Lowering(
        target=NAME,
        backward=("loop_q",) if asked.differentiable else (),
        shape=tuple(shape.items()),
    )


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ])."""
    lists: Any = call.lowered.lists
    q, scale = _signed(call)
    # Its own new tensor is laid out as "bshd", and one that is given is checked again.
    out = None if call.layout == "bshd" else call.new(q, int(call.v.shape[3]), q.dtype)
    return fa4_forward(q, call.k, call.v, lists, scale=scale, out=out)


def backward(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped and typed as q, k and v."""
    lists: Any = call.lowered.lists
    q, scale = _signed(call)
    dq, dk, dv = fa4_backward(
        q, call.k, call.v, out, lse, dout, dlse, lists, scale=scale,
        deterministic=call.deterministic,
    )  # fmt: skip
    return (dq if call.scale > 0 else dq * _sign(call.scale)), dk, dv


def _sign(scale: float) -> float:
    return float((scale > 0) - (scale < 0))


def _signed(call: AttentionCall) -> tuple[Tensor, float]:
    """(q, scale > 0) with the scores of the call: flash-attn-4 takes a row's maximum unscaled."""
    if call.scale > 0:
        return call.q, call.scale
    return call.q * _sign(call.scale), abs(call.scale) or 1.0


def fa4_forward(
    q: Tensor, k: Tensor, v: Tensor, lists: EngineLists, *, scale: float, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ] in natural log).

    Args:
        q: [B, SQ, HQ, D] of bfloat16 or float16 on the GPU of `lists`, any strides.
        k: [B, SK, HK, D].
        v: [B, SK, HK, DV].
        lists: from `fa4_lists`, for these shapes.
        scale: factor of the scores, above 0.
        out: where to write out; None for a new tensor.
    """
    batch, seqlen_q, heads, _ = q.shape
    rows = lists.rows_per_token
    if 0 in (batch, seqlen_q, heads, k.shape[1]):
        out = q.new_empty(batch, seqlen_q, heads, v.shape[3]) if out is None else out
        return out.zero_(), q.new_full((batch, heads, seqlen_q), -torch.inf, dtype=torch.float32)
    given = fa4_inputs(lists, "forward")
    if rows == 1:
        made, lse, *_ = kernels.interface()._flash_attn_fwd(  # noqa: SLF001 - no public call has it all
            q, k, v, softmax_scale=scale, mask_mod=given.mask_mod, aux_tensors=given.aux,
            block_sparse_tensors=given.block_sparse, return_lse=True, out=out,
        )  # fmt: skip
        return made, lse
    folded, lse, *_ = kernels.interface()._flash_attn_fwd(  # noqa: SLF001
        fold(q, rows), k, v, softmax_scale=scale, mask_mod=given.mask_mod, aux_tensors=given.aux,
        block_sparse_tensors=given.block_sparse, return_lse=True,
    )  # fmt: skip
    found = unfold(folded, rows)
    if out is None:
        return found, unfold_lse(lse, rows)
    return out.copy_(found), unfold_lse(lse, rows)


def fa4_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    lists: EngineLists,
    *,
    scale: float,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) in the shapes and dtype of q, k and v.

    Args:
        q: as in the forward.
        k: likewise.
        v: likewise.
        out: what the forward gave.
        lse: likewise.
        dout: gradient of out.
        dlse: gradient of lse, or None.
        lists: as in the forward.
        scale: likewise.
        deterministic: add to dq in the order that the lists fix.

    Raises:
        UnsupportedError: if the lists have no backward, where flash-attn-4 would run a dense one.
    """
    if lists.backward is None:
        raise UnsupportedError(
            sentence(
                what="there are no lists for the backward",
                where="the fa4 backend",
                got=f"lists of the forward alone, for {lists.arch} and head dims "
                f"({lists.head_dim}, {lists.head_dim_v})",
                wanted="lists of both directions",
                remedy="lower the plan with its backward, or use backend flex",
            )
        )
    rows = lists.rows_per_token
    if 0 in (*q.shape[:3], k.shape[1]):
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if rows > 1:
        q, out, dout = fold(q, rows), fold(out, rows), fold(dout.to(q.dtype), rows)
        lse = fold_lse(lse, rows)
        dlse = None if dlse is None else fold_lse(dlse, rows)
    given = fa4_inputs(lists, "backward", deterministic=deterministic)
    dq, dk, dv = kernels.interface()._flash_attn_bwd(  # noqa: SLF001
        q, k, v, out, dout, lse, softmax_scale=scale, mask_mod=given.mask_mod,
        aux_tensors=given.aux, block_sparse_tensors=given.block_sparse,
        deterministic=deterministic, dlse=dlse,
    )  # fmt: skip
    return (unfold(dq, rows) if rows > 1 else dq), dk, dv


def fold(x: Tensor, rows: int) -> Tensor:
    """[B, S, HK * G, F] as [B, S * G, HK, F]; a view where HK is 1. See NOTE [Folded heads]."""
    batch, length, heads, features = x.shape
    apart = x.reshape(batch, length, heads // rows, rows, features)
    return apart.transpose(2, 3).reshape(batch, length * rows, heads // rows, features)


def unfold(x: Tensor, rows: int) -> Tensor:
    """[B, S * G, HK, F] as [B, S, HK * G, F]."""
    batch, length, heads, features = x.shape
    apart = x.view(batch, length // rows, rows, heads, features)
    return apart.transpose(2, 3).reshape(batch, length // rows, heads * rows, features)


def fold_lse(lse: Tensor, rows: int) -> Tensor:
    """[B, HK * G, S] as contiguous [B, HK, S * G]."""
    batch, heads, length = lse.shape
    apart = lse.reshape(batch, heads // rows, rows, length).transpose(2, 3)
    return apart.reshape(batch, heads // rows, length * rows).contiguous()


def unfold_lse(lse: Tensor, rows: int) -> Tensor:
    """[B, HK, S * G] as contiguous [B, HK * G, S]."""
    batch, heads, length = lse.shape
    apart = lse.view(batch, heads, length // rows, rows).transpose(2, 3)
    return apart.reshape(batch, heads * rows, length // rows).contiguous()
