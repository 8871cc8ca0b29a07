"""The cpu backend where keys are gathered: forward and backward over `GatheredLists`.

Query heads of a KV head that read the same list are rows of one tile. The backward owns queries;
dK and dV are added to buffers of stripes, see NOTE [Who owns the gradients].
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.attention import cpu_inputs as inputs
from maskplan.attention.call import AttentionCall
from maskplan.attention.operands import Gathers, Rows
from maskplan.attention.workers import PIECES_PER_THREAD, even_pieces, run_pieces
from maskplan.lower.contiguity import contiguity
from maskplan.lower.gathered import GatheredLists, gathered


def lists_of(call: AttentionCall) -> GatheredLists | None:
    """What the call gathers by, or None where it walks blocks: NOTE [Blocks or tokens].

    Decided when a plan was lowered, or here for a Plan as it is.
    """
    lowered = call.lowered
    if lowered.gathered is not None:
        return lowered.gathered
    if lowered.engine != "plan":
        return None if lowered.reading is None else lowered.reading.lists(lowered.seqlen_q)
    form = contiguity(call.plan, call.pattern).form(_pack(call, 1))
    return None if form == "blocks" else gathered(call.plan, form)


def how_read(call: AttentionCall) -> str:
    """How the keys of a call are read, and what was measured to decide it."""
    lists = lists_of(call)
    form = "blocks" if lists is None else lists.form
    if call.lowered.plan is None:
        return f"keys by {form}"
    return f"keys by {form}: {contiguity(call.plan, call.pattern)}"


def forward(call: AttentionCall, lists: GatheredLists) -> tuple[Tensor, Tensor]:
    """`cpu.forward` of a call that is not empty."""
    from maskplan.attention.gather_forward_kernel import gather_forward

    dtype = inputs.compute_dtype(call)
    out = call.new(call.q, int(call.v.shape[3]), dtype)
    lse = torch.empty(call.batch, call.heads, call.lowered.seqlen_q, dtype=dtype, device="cpu")
    gathers = _gathers(call, lists)
    given = [inputs.tokens(x, dtype) for x in (call.q, call.k, call.v)]
    bad = inputs.bad_blocks(call.v, block=1, partial=lists.bits is not None)
    rest = (bad, inputs.tokens(out, dtype), inputs.flat(lse), inputs.scalar(call.scale, dtype))
    parts = -(-gathers.tokens * gathers.pack // 128)
    work = np.repeat(_work(gathers), parts)
    bounds = even_pieces(work, PIECES_PER_THREAD * torch.get_num_threads())

    def run(first: int, last: int) -> None:
        gather_forward(first, last, gathers, *given, *rest)

    run_pieces(run, bounds, _multiplications(call, gathers))
    return out.to(call.q.dtype), lse


def backward(
    call: AttentionCall, lists: GatheredLists, dout: Tensor, stats: tuple[Any, Any], stripes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk [stripes, B, HK, SK, padded], dv likewise) of a call in the dtype of computation.

    Args:
        call: its tensors are converted.
        lists: what it gathers by.
        dout: [B, SQ, HQ, DV], converted.
        stats: (lse as an exponent of 2, delta), flat [B * HQ * SQ].
        stripes: buffers of dK and dV.
    """
    from maskplan.attention.gather_backward_kernel import gather_backward

    dtype, partial = call.q.dtype, lists.bits is not None
    gathers = _gathers(call, lists)
    runs = _runs(call, gathers, stripes)
    bad = (
        inputs.bad_blocks(call.q, dout, block=1, partial=partial),
        inputs.bad_blocks(call.k, block=1, partial=partial),
    )
    widths = [inputs.padded(int(x.shape[3]), dtype) for x in (call.k, call.v)]
    dk, dv = (
        torch.zeros(
            stripes, *call.k.shape[::2][:2], gathers.seqlen_k, width, dtype=dtype, device="cpu"
        )
        for width in widths
    )
    dq = call.new(call.q, int(call.q.shape[3]), dtype)
    given = [inputs.tokens(x, dtype) for x in (call.q, call.k, call.v, dout)]
    results = (
        inputs.tokens(dq, dtype),
        Rows(inputs.flat(dk), 0, widths[0]),
        Rows(inputs.flat(dv), 0, widths[1]),
    )
    scale = inputs.scalar(call.scale, dtype)

    def run(first: int, last: int) -> None:
        gather_backward(first, last, runs, gathers, *given, stats, bad, *results, scale)

    run_pieces(run, list(range(len(runs) + 1)), _multiplications(call, gathers))
    return dq, dk, dv


def _pack(call: AttentionCall, lists_per_token: int) -> int:
    """Query heads read together: a group whose heads have one list, or bits of one; else 1."""
    if lists_per_token > 1 or call.lowered.heads in (1, call.heads // call.group):
        return call.group
    by_group = call.pattern.view(call.batch, -1, call.group)
    return call.group if bool((by_group == by_group[..., :1]).all()) else 1


def _gathers(call: AttentionCall, lists: GatheredLists) -> Gathers:
    """The lists, and which of them each unit reads."""
    pack = _pack(call, lists.lists_per_token)
    bits = np.empty((0, 0, 0), np.int32) if lists.bits is None else lists.bits.numpy()
    return Gathers(
        start=lists.start.numpy(),
        count=lists.count.numpy(),
        keys=lists.keys.numpy(),
        bits=np.ascontiguousarray(bits).reshape(-1),
        chosen=call.pattern[:, ::pack].contiguous().reshape(-1).numpy(),
        tokens=lists.tokens,
        per_token=lists.lists_per_token,
        words=bits.shape[2],
        tiles=lists.tiles,
        seqlen_q=call.lowered.seqlen_q,
        seqlen_k=call.lowered.seqlen_k,
        heads=call.heads,
        group=call.group,
        pack=pack,
    )


def _work(gathers: Gathers) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """What each (unit, tile) costs, up to a factor."""
    count = gathers.count.reshape(-1, gathers.tiles)[gathers.chosen]
    work: np.ndarray[Any, np.dtype[np.int64]] = count.reshape(-1).astype(np.int64) + 1
    return work


def _runs(
    call: AttentionCall, gathers: Gathers, stripes: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """Runs of tiles under one KV head, int64 [n, 4], as `gather_backward` takes them."""
    stores = call.batch * call.heads // call.group
    work = _work(gathers).reshape(stores, -1, gathers.tiles).sum(1)
    runs = []
    for store in range(stores):
        bounds = even_pieces(work[store], stripes)
        runs += [
            (store, stripe, first, last) for stripe, (first, last) in enumerate(pairwise(bounds))
        ]
    return np.array(runs, dtype=np.int64).reshape(-1, 4)


def _multiplications(call: AttentionCall, gathers: Gathers) -> float:
    pairs = float(_work(gathers).sum()) * gathers.pack * gathers.tokens
    return pairs * float(call.q.shape[3] + call.v.shape[3])
