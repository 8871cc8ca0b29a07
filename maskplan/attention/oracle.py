"""Attention at some queries and some keys, by its formula, in any precision.

With S = scale * q k^T, P = exp(S - lse) over the pairs kept, and 0 elsewhere:

    out = P v                        dq = scale * (P * (dO v^T - delta)) k
    lse = log sum exp S              dk = scale * (P * (dO v^T - delta))^T q
    delta = rowsum(out * dO) - dlse  dv = P^T dO

A query needs all its keys and a key all its queries, so each side is made from its own slice of the
mask, and nothing of size SQ x SK is held. Values have to be finite; `reference` is for the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.attention.call import AttentionCall
from maskplan.attention.reference import keys_of_block
from maskplan.geometry import WORD_BITS
from maskplan.plan import Plan

_PAIRS = 1 << 24  # pairs of a slice that are computed at a time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuerySide:
    """Results at R queries: out [B, R, HQ, DV], lse [B, R, HQ, 1], dq [B, R, HQ, D]."""

    out: Tensor
    lse: Tensor
    dq: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeySide:
    """Results at K keys: dk [B, K, HK, D], dv [B, K, HK, DV].

    `weight` [B, K, HK, 1] is the root of the sum of squared softmax weights that the key has: how
    far independent errors of its queries add up. `seen` likewise is the number of its queries.
    """

    dk: Tensor
    dv: Tensor
    weight: Tensor
    seen: Tensor


def query_side(
    call: AttentionCall, rows: Tensor, dout: Tensor, dlse: Tensor, rounded: torch.dtype
) -> QuerySide:
    """Results at query tokens `rows`.

    Args:
        call: its dtype and device are those of the computation; its plan is exact.
        rows: int64 [R], ascending.
        dout: [B, SQ, HQ, DV].
        dlse: [B, HQ, SQ].
        rounded: out is rounded to this dtype before its gradient is taken.
    """
    dtype, device, tokens = call.q.dtype, call.q.device, rows.to(call.q.device)
    shape = (call.batch, len(rows), call.heads)
    out = torch.empty(*shape, call.v.shape[3], dtype=rounded, device=device)
    lse = torch.empty(*shape, 1, dtype=dtype, device=device)
    dq = torch.empty(*shape, call.q.shape[3], dtype=dtype, device=device)
    step = max(_PAIRS // max(call.plan.seqlen_k, 1), 1)
    for number in sorted(set(call.pattern.flatten().tolist())):
        users = (call.pattern == number).nonzero().tolist()
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            keep = _keys_kept(call.plan, number, rows[part]).to(device)
            for b, h in users:
                k, v = call.k[b, :, h // call.group], call.v[b, :, h // call.group]
                grad = dout[b, tokens[part], h].to(dtype)
                scores = call.scale * (call.q[b, tokens[part], h] @ k.T)
                scores = scores.masked_fill(~keep, -torch.inf)
                level = scores.logsumexp(1, keepdim=True)
                p = (scores - level.masked_fill(level == -torch.inf, 0)).exp()
                result = (p @ v).to(rounded)
                delta = (result.to(dtype) * grad).sum(1) - dlse[b, h, tokens[part]].to(dtype)
                slope = p * (grad @ v.T - delta[:, None])
                out[b, part, h], lse[b, part, h] = result, level
                dq[b, part, h] = call.scale * (slope @ k)
    return QuerySide(out=out, lse=lse, dq=dq)


def key_side(
    call: AttentionCall, keys: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor
) -> KeySide:
    """Results at key tokens `keys`, from out and lse of every query.

    Args:
        call: its dtype and device are those of the computation; its plan is exact.
        keys: int64 [K], ascending.
        out: [B, SQ, HQ, DV].
        lse: [B, HQ, SQ].
        dout: as out.
        dlse: as lse.
    """
    dtype, device, tokens = call.q.dtype, call.q.device, keys.to(call.q.device)
    shape = (call.batch, len(keys), call.k.shape[2])
    dk = torch.zeros(*shape, call.k.shape[3], dtype=dtype, device=device)
    dv = torch.zeros(*shape, call.v.shape[3], dtype=dtype, device=device)
    squares, count = (torch.zeros(*shape, 1, dtype=dtype, device=device) for _ in range(2))
    delta = (out.to(dtype) * dout.to(dtype)).sum(3).transpose(1, 2) - dlse.to(dtype)
    step = max(_PAIRS // max(call.plan.seqlen_q, 1), 1)
    for number in sorted(set(call.pattern.flatten().tolist())):
        users = (call.pattern == number).nonzero().tolist()
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            keep = _queries_kept(call.plan, number, keys[part]).to(device)
            for b, h in users:
                hk = h // call.group
                k, v = call.k[b, tokens[part], hk], call.v[b, tokens[part], hk]
                q, grad, level = call.q[b, :, h], dout[b, :, h].to(dtype), lse[b, h].to(dtype)
                seen = keep & (level > -torch.inf)[:, None]
                scores = (call.scale * (q @ k.T) - level[:, None]).masked_fill(~seen, -torch.inf)
                p = scores.exp()
                slope = p * (grad @ v.T - delta[b, h][:, None])
                dk[b, part, hk] += call.scale * (slope.T @ q)
                dv[b, part, hk] += p.T @ grad
                squares[b, part, hk] += p.square().sum(0)[:, None]
                count[b, part, hk] += seen.sum(0)[:, None]
    return KeySide(dk=dk, dv=dv, weight=squares.sqrt(), seen=count)


def _keys_kept(plan: Plan, pattern: int, rows: Tensor) -> Tensor:
    """Bool [R, SK]: the keys that queries `rows`, int64 [R] ascending, see in a pattern."""
    kept = torch.zeros(len(rows), plan.seqlen_k, dtype=torch.bool, device="cpu")
    block_of = rows // plan.block_size[0]
    for block in sorted(set(block_of.tolist())):
        listed, keep = keys_of_block(plan, pattern, block)
        own = (block_of == block).nonzero()[:, 0]
        kept[own[:, None], listed] = keep[rows[own] % plan.block_size[0]]
    return kept


def _queries_kept(plan: Plan, pattern: int, keys: Tensor) -> Tensor:
    """Bool [SQ, K]: the queries that see `keys`, int64 [K], in a pattern."""
    (bq, bk), blocks = plan.block_size, plan.geometry.num_q_blocks
    kept = torch.zeros(len(keys), blocks, bq, dtype=torch.bool, device="cpu")
    bounds = plan.row_ptr[pattern * blocks : (pattern + 1) * blocks + 1]
    if blocks:
        entries = slice(int(bounds[0]), int(bounds[-1]))
        row = torch.repeat_interleave(torch.arange(blocks, device="cpu"), bounds.diff())
        col = plan.col[entries]
        tile_id = None if plan.tile_id is None else plan.tile_id[entries].long()
        for i, key in enumerate(keys.tolist()):
            block, within = divmod(key, bk)
            (own,) = (col == block).nonzero(as_tuple=True)
            kept[i, row[own]] = True
            if tile_id is not None:
                partial = own[tile_id[own] >= 0]
                words = plan.tiles[tile_id[partial], :, within // WORD_BITS]
                kept[i, row[partial]] = (words >> (within % WORD_BITS)) & 1 != 0
    return kept.view(len(keys), blocks * bq)[:, : plan.seqlen_q].T
