"""Torch tensors and plans as the CPU kernels take them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.attention.call import AttentionCall
from maskplan.attention.operands import Lists, Tokens
from maskplan.attention.workers import even_pieces, run_pieces

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def compute_dtype(call: AttentionCall) -> torch.dtype:
    """float64 for float64 inputs, else float32."""
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32


def scalar(value: float, dtype: torch.dtype) -> Any:
    """`value` as a numpy number of `dtype`: a Python float would widen the kernels to float64."""
    with np.errstate(over="ignore"):  # a scale too large for float32 is infinite, silently
        return _NUMPY[dtype](value)


def empty_array(dtype: torch.dtype) -> Any:
    """An array of no elements."""
    return np.empty(0, _NUMPY[dtype])


def flat(tensor: Tensor) -> Any:
    """Every element that `tensor` reaches, as one flat numpy view."""
    span = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.detach().as_strided((span,), (1,), tensor.storage_offset()).numpy()


def tokens(tensor: Tensor, dtype: torch.dtype) -> Tokens:
    """[B, S, H, F] as `Tokens` of `dtype`; copied for another dtype or a strided last axis."""
    tensor = tensor.detach().to(dtype)
    if tensor.shape[3] > 1 and tensor.stride(3) != 1:
        tensor = tensor.contiguous()
    batch, token, head, _ = tensor.stride()
    return Tokens(flat(tensor), batch, token, head, int(tensor.shape[3]))


def numbers(tensor: Tensor, dtype: torch.dtype) -> Any:
    """All elements in order, flat."""
    return flat(tensor.detach().to(dtype).contiguous())


def converted(call: AttentionCall, dtype: torch.dtype) -> AttentionCall:
    """The call with its tensors in `dtype`."""
    return replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))


def even_bounds(count: int) -> list[int]:
    """Bounds of a few pieces for each thread, of equal length."""
    parts = 4 * torch.get_num_threads()
    return sorted({count * i // parts for i in range(parts + 1)})


def query_lists(call: AttentionCall) -> Lists:
    """The plan's lists, per query block."""
    plan = call.plan
    tile_id = np.empty(0, np.int32) if plan.tile_id is None else plan.tile_id.numpy()
    tiles = plan.tiles if len(plan.tiles) else torch.zeros(1, dtype=torch.int32, device="cpu")
    return Lists(
        row_ptr=np.ascontiguousarray(plan.row_ptr.numpy()),
        col=np.ascontiguousarray(plan.col.numpy()),
        tile_id=np.ascontiguousarray(tile_id),
        tiles=tiles.contiguous().reshape(-1).numpy(),
        pattern=call.pattern.contiguous().reshape(-1).numpy(),
        rows=plan.geometry.num_q_blocks,
        words=plan.axes.words,
        seqlen_q=plan.seqlen_q,
        seqlen_k=plan.seqlen_k,
        block_q=plan.block_size[0],
        block_k=plan.block_size[1],
        heads=call.heads,
        group=call.group,
    )


def key_lists(call: AttentionCall) -> Lists:
    """The plan's lists, per key block; tiles stay in forward orientation.

    Those of a lowered plan, or made here for a Plan as it is.
    """
    lists = query_lists(call)
    cols = call.plan.geometry.num_k_blocks
    walk = call.lowered.loop_q
    if walk is not None and walk.parts == 1:
        tile_id = lists.tile_id if call.plan.tile_id is None else walk.tile_id.view(-1).numpy()
        return lists._replace(
            row_ptr=walk.row_ptr.numpy(), col=walk.col.numpy(), tile_id=tile_id, rows=cols
        )
    from maskplan.attention.pack_kernel import lists_of_keys

    row_ptr, col, tile_id = lists_of_keys(lists.row_ptr, lists.col, lists.tile_id, lists.rows, cols)
    return lists._replace(row_ptr=row_ptr, col=col, tile_id=tile_id, rows=cols)


def counts(lists: Lists) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Blocks listed, int64 [B * HQ, rows]."""
    per_row = np.diff(lists.row_ptr).reshape(-1, lists.rows)
    chosen: np.ndarray[tuple[int, int], np.dtype[np.int64]] = per_row[lists.pattern]
    return chosen


def padded(features: int, dtype: torch.dtype) -> int:
    """`features` rounded up to whole panels."""
    from maskplan.attention.simd_kernel import panel

    width = panel(np.dtype(_NUMPY[dtype]))
    return -(-features // width) * width


def packed(pack: Callable[..., None], tensor: Tensor, block: int, dtype: torch.dtype) -> Any:
    """`tensor` [B, S, H, F] in panels, by blocks of `block` tokens; see `pack_kernel`."""
    from maskplan.attention import pack_kernel

    batch, seqlen, heads, features = tensor.shape
    source = tokens(tensor, dtype)
    blocks = batch * heads * -(-seqlen // block)
    if pack is pack_kernel.pack_columns:
        size = padded(block, dtype) * features
    else:
        size = padded(features, dtype) * block
    # Left uninitialised: what pads a panel is overwritten in the scores or never read.
    out = np.empty(blocks * size, _NUMPY[dtype])
    run_pieces(
        lambda a, b: pack(a, b, source, heads, seqlen, block, out),
        even_bounds(blocks),
        float(tensor.numel()),
    )
    return out


def bad_blocks(*tensors: Tensor, block: int, partial: bool) -> Any:
    """uint8 [B * H * blocks]: 1 where a block of one of `tensors` [B, S, H, F] is not all finite.

    All 0 unless some tile of scores may be `partial`: see NOTE [Non-finite values].
    """
    batch, seqlen, heads, _ = tensors[0].shape
    blocks = -(-seqlen // block)
    bad = torch.zeros(batch, heads, blocks * block, dtype=torch.bool, device="cpu")
    for tensor in tensors:
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        # One sum is cheaper than a mask, and not finite if any element is not.
        if partial and not tensor.sum(dtype=wide).isfinite():
            bad[:, :, :seqlen] |= ~tensor.isfinite().all(-1).transpose(1, 2)
    return bad.reshape(batch * heads * blocks, block).any(-1).to(torch.uint8).numpy()


def runs_of(
    call: AttentionCall, lists: Lists, stripes: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Runs of the owning side, int64 [n, 4]: KV unit, stripe, first block, end; see `loop_q`."""
    units = call.batch * call.heads // call.group
    work = counts(lists).reshape(units, call.group, lists.rows).sum(1) + 1
    runs = []
    for unit in range(units):
        bounds = even_pieces(work[unit], stripes)
        runs += [
            (unit, stripe, first, last) for stripe, (first, last) in enumerate(pairwise(bounds))
        ]
    return np.array(runs, dtype=np.int64).reshape(-1, 4)
