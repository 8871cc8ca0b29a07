"""Backend `cpu`: forward and backward on a CPU, block by block over the lists of the plan.

float32, bfloat16 and float16 inputs are computed in float32, float64 in float64. Threads take
pieces of rows (forward) or stripes of rows (backward); `simd_kernel` says why the products are made
here and not by a BLAS.

NOTE [Who owns the gradients]: five products make a backward, if each pair of blocks is visited
once. Visiting key by key (`loop_q`) keeps dK and dV of the keys at hand in cache; dQ then has
several authors. Each stripe of keys gets a dQ buffer of its own, filled in a fixed order, and the
stripes are summed in a fixed order: no locks, and the same bits every time for one number of
threads. `loop_k` is the mirror image, and the one for keys that are gathered. "auto" takes `loop_k`
for those and `loop_q` otherwise.

Where a plan's keys lie apart they are gathered, and not walked in blocks: NOTE [Blocks or tokens].

Memory beyond inputs and results: float copies of k and v in panels (in the backward, of what the
loop streams: q and dO, or k and v), about 1 MiB of work space a thread, and the stripes' buffers,
at most `STRIPE_BUDGET` bytes or one buffer; where keys are gathered no panels, but 4 bytes for each
key listed. Nothing grows with SQ * SK.
"""

from typing import Any

import torch
from torch import Tensor

from maskplan.attention import cpu_inputs as inputs
from maskplan.attention import gather
from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata
from maskplan.attention.operands import Lists, Panels, Rows
from maskplan.attention.workers import PIECES_PER_THREAD, even_pieces, run_pieces
from maskplan.lower.gathered import GatheredLists
from maskplan.lower.plan_cache import Lowering
from maskplan.lower.target import target

NAME = "cpu"
ENGINES = ("plan", "cpu", "tokens")
OPERATOR = True
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Stripes are made while their buffers fit; fewer stripes keep fewer threads busy.
STRIPE_BUDGET = 1 << 30
_STRIPES_PER_THREAD = 2
# `loop_q` gathers queries of smaller blocks: a product this shallow would spend its time loading
# and storing dK and dV.
_SMALLEST_Q_BLOCK = 16


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.device.type != "cpu":
        return f"tensors are on {asked.device}, and it runs on the CPU"
    if asked.dtype not in DTYPES:
        return f"it does not compute {str(asked.dtype).removeprefix('torch.')}"
    if asked.engine == "tokens" and asked.differentiable and asked.backward == "loop_q":
        return "keys of token tiles are gathered for queries, by loop_k, and loop_q is wanted"
    return None


def lowering(asked: Metadata) -> Lowering:
    """With the lists that the LoopQ backward walks, if one may come.

    Heads of a group that share a list are read together, which makes gathering cheaper.
    """
    group = asked.group if asked.plan_heads in (1, asked.kv_heads) else 1
    return Lowering(
        target="cpu" if group == 1 else target("cpu", group=group, pack_gqa=True),
        backward=("loop_q",) if asked.differentiable else (),
    )


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV] in the dtype of q, lse [B, HQ, SQ] in the dtype of computation)."""
    if call.empty:
        out = call.new(call.q, int(call.v.shape[3]), call.q.dtype).zero_()
        shape = (call.batch, call.heads, call.lowered.seqlen_q)
        return out, torch.full(shape, -torch.inf, dtype=inputs.compute_dtype(call), device="cpu")
    lists = gather.lists_of(call)
    return _by_blocks(call) if lists is None else gather.forward(call, lists)


def _by_blocks(call: AttentionCall) -> tuple[Tensor, Tensor]:
    from maskplan.attention import block_kernel, forward_kernel, pack_kernel

    dtype, block_k = inputs.compute_dtype(call), call.plan.block_size[1]
    out = call.new(call.q, int(call.v.shape[3]), dtype)
    lse = torch.empty(call.batch, call.heads, call.plan.seqlen_q, dtype=dtype, device="cpu")
    lists = inputs.query_lists(call)
    q = inputs.tokens(call.q, dtype)
    keys = Panels(inputs.packed(pack_kernel.pack_columns, call.k, block_k, dtype), 0, 0)
    values = Panels(inputs.packed(pack_kernel.pack_rows, call.v, block_k, dtype), 0, 0)
    rest = (
        inputs.bad_blocks(call.v, block=block_k, partial=call.plan.tile_id is not None),
        inputs.tokens(out, dtype),
        inputs.flat(lse),
        inputs.scalar(call.scale, dtype),
    )
    parts = -(-lists.block_q // block_kernel.TILE)
    work = (inputs.counts(lists) + 1).reshape(-1).repeat(parts)
    bounds = even_pieces(work, PIECES_PER_THREAD * torch.get_num_threads())

    def run(first: int, last: int) -> None:
        forward_kernel.forward_blocks(first, last, lists, q, keys, values, *rest)

    run_pieces(run, bounds, _multiplications(call, lists))
    return out.to(call.q.dtype), lse


def backward(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped and typed as q, k and v.

    Args:
        call: the call of the forward.
        out: what the forward gave.
        lse: likewise.
        dout: [B, SQ, HQ, DV].
        dlse: [B, HQ, SQ], or None for zeros.
    """
    if call.empty:
        return torch.zeros_like(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    dtype = inputs.compute_dtype(call)
    wide = inputs.converted(call, dtype)
    dout = dout.to(dtype)
    stats = _row_stats(wide, out, lse, dout, dlse)
    lists = None if call.backward == "loop_q" else gather.lists_of(call)
    if lists is not None:
        dq, dk, dv = _gathered(wide, lists, dout, stats)
    else:
        run = _loop_k if call.backward == "loop_k" else _loop_q
        dq, dk, dv = run(wide, dout, stats, dtype)
    return dq.to(call.q.dtype), dk.to(call.k.dtype), dv.to(call.v.dtype)


def _gathered(
    call: AttentionCall, lists: GatheredLists, dout: Tensor, stats: tuple[Any, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    widths = sum(inputs.padded(int(x.shape[3]), call.q.dtype) for x in (call.k, call.v))
    stripes = _stripes(call, widths * call.k[..., 0].numel() * call.q.dtype.itemsize)
    dq, *partial = gather.backward(call, lists, dout, stats, stripes)
    return dq, *_summed(call, partial)


def _row_stats(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Any, Any]:
    """(lse as an exponent of 2, rowsum(out * dout) - dlse), each flat [B * HQ * SQ]."""
    from maskplan.attention import pack_kernel

    dtype, seqlen = call.q.dtype, call.lowered.seqlen_q
    rows = lse.numel()
    given = inputs.empty_array(dtype) if dlse is None else inputs.numbers(dlse, dtype)
    sides = (
        inputs.tokens(out, dtype),
        inputs.tokens(dout, dtype),
        inputs.numbers(lse, dtype),
        given,
    )
    exponent, delta = (inputs.flat(torch.empty(rows, dtype=dtype, device="cpu")) for _ in range(2))

    def run(first: int, last: int) -> None:
        pack_kernel.row_stats(first, last, *sides, call.heads, seqlen, exponent, delta)

    run_pieces(run, inputs.even_bounds(rows), float(out.numel()))
    return exponent, delta


def _loop_q(
    call: AttentionCall, dout: Tensor, stats: tuple[Any, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    from maskplan.attention import loop_q_kernel, pack_kernel

    bq, bk = call.plan.block_size
    lists = inputs.key_lists(call)
    gather = bq < _SMALLEST_Q_BLOCK
    panels = (inputs.empty_array(dtype),) * 2
    if not gather:
        panels = (
            inputs.packed(pack_kernel.pack_rows, call.q, bq, dtype),
            inputs.packed(pack_kernel.pack_rows, dout, bq, dtype),
        )
    partial_blocks = call.plan.tile_id is not None
    bad = (
        inputs.bad_blocks(call.k, block=bk, partial=partial_blocks),
        inputs.bad_blocks(call.q, dout, block=bq, partial=partial_blocks),
    )
    width = inputs.padded(int(call.q.shape[3]), dtype)
    stripes = _stripes(call, width * call.q[..., 0].numel() * dtype.itemsize)
    runs = inputs.runs_of(call, lists, stripes)
    partial = torch.zeros(
        stripes, call.batch, call.heads, lists.seqlen_q, width, dtype=dtype, device="cpu"
    )
    dk = call.new(call.k, int(call.k.shape[3]), dtype)
    dv = call.new(call.v, int(call.v.shape[3]), dtype)
    q, k, v, grad = (inputs.tokens(x, dtype) for x in (call.q, call.k, call.v, dout))
    results = (
        Rows(inputs.flat(partial), 0, width),
        inputs.tokens(dk, dtype),
        inputs.tokens(dv, dtype),
    )
    scale = inputs.scalar(call.scale, dtype)

    def run(first: int, last: int) -> None:
        loop_q_kernel.loop_q(
            first, last, runs, lists, q, k, v, grad, panels, stats, bad, *results, scale, gather
        )

    run_pieces(run, list(range(len(runs) + 1)), _multiplications(call, lists))
    return _sum_stripes(partial, call.new(call.q, int(call.q.shape[3]), dtype)), dk, dv


def _loop_k(
    call: AttentionCall, dout: Tensor, stats: tuple[Any, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    from maskplan.attention import loop_k_kernel, pack_kernel

    bq, bk = call.plan.block_size
    lists = inputs.query_lists(call)
    panels = (
        inputs.packed(pack_kernel.pack_columns, call.k, bk, dtype),
        inputs.packed(pack_kernel.pack_columns, call.v, bk, dtype),
        inputs.packed(pack_kernel.pack_rows, call.k, bk, dtype),
    )
    partial_blocks = call.plan.tile_id is not None
    bad = (
        inputs.bad_blocks(call.q, dout, block=bq, partial=partial_blocks),
        inputs.bad_blocks(call.k, block=bk, partial=partial_blocks),
    )
    widths = [inputs.padded(int(x.shape[3]), dtype) for x in (call.k, call.v)]
    stripes = _stripes(call, sum(widths) * call.k[..., 0].numel() * dtype.itemsize)
    runs = inputs.runs_of(call, lists, stripes)
    partial_k, partial_v = (
        torch.zeros(
            stripes, *call.k.shape[::2][:2], lists.seqlen_k, width, dtype=dtype, device="cpu"
        )
        for width in widths
    )
    dq = call.new(call.q, int(call.q.shape[3]), dtype)
    q, k, v, grad = (inputs.tokens(x, dtype) for x in (call.q, call.k, call.v, dout))
    results = (
        inputs.tokens(dq, dtype),
        Rows(inputs.flat(partial_k), 0, widths[0]),
        Rows(inputs.flat(partial_v), 0, widths[1]),
    )
    scale = inputs.scalar(call.scale, dtype)

    def run(first: int, last: int) -> None:
        loop_k_kernel.loop_k(
            first, last, runs, lists, q, k, v, grad, panels, stats, bad, *results, scale
        )

    run_pieces(run, list(range(len(runs) + 1)), _multiplications(call, lists))
    return dq, *_summed(call, [partial_k, partial_v])


def _stripes(call: AttentionCall, buffer_bytes: int) -> int:
    """Stripes a KV unit is cut into: enough to keep every thread busy, as far as they fit."""
    units = call.batch * call.heads // call.group
    wanted = -(-_STRIPES_PER_THREAD * torch.get_num_threads() // units)
    return max(1, min(wanted, STRIPE_BUDGET // max(buffer_bytes, 1)))


def _summed(call: AttentionCall, partial: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients of k and v, from the stripes of both."""
    dk, dv = (
        _sum_stripes(part, call.new(like, int(like.shape[3]), call.q.dtype))
        for part, like in zip(partial, (call.k, call.v), strict=True)
    )
    return dk, dv


def _sum_stripes(partial: Tensor, out: Tensor) -> Tensor:
    """[stripes, B, H, S, padded] summed in order of stripes, into `out` [B, S, H, F]."""
    parts = partial[..., : out.shape[3]].transpose(2, 3)
    if len(parts) == 1:
        return out.copy_(parts[0])
    total = partial[0]
    for stripe in partial[1:-1]:
        total += stripe
    return torch.add(parts[0], parts[-1], out=out)


def _multiplications(call: AttentionCall, lists: Lists) -> float:
    bq, bk = call.plan.block_size
    blocks = float(inputs.counts(lists).sum())
    return blocks * bq * bk * float(call.q.shape[3] + call.v.shape[3])
