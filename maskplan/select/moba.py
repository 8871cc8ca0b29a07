"""MoBA and VMoBA: each query selects chunks of keys by the mean of their keys.

A query always sees its own chunk. MoBA is causal: later chunks are never selected, and the own one
is seen up to the query. VMoBA is not, and may share its choice out over more than one query.

Source: MoBA (arXiv 2502.13189), `moba_naive.py`; VMoBA (2506.23858), `vmoba.py`, in which the
tokens are first put in the order of 1D, 2D or 3D chunks: that order is the caller's.
"""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer, option
from maskplan.plan import Plan
from maskplan.select.block_scores import checked_scores
from maskplan.select.pooling import grouped, heads_first, mean_pool
from maskplan.select.token_blocks import plan_of_token_blocks
from maskplan.untransformed import untransformed

_AXES = "[batch, heads, S, chunks]"
SCOPES = ("query_head", "block", "overall", "head_global")
_EPSILON = 1e-6  # of VMoBA, in its ratios and against a spread of 0


def chunk_scores(q: Tensor, k: Tensor, chunk: int, *, layout: str = "bshd") -> Tensor:
    """Query times mean key of each chunk, the last one over the keys it has.

    Args:
        q: floats [batch, S, HQ, D].
        k: floats [batch, S, HK, D]; HK divides HQ.
        chunk: keys of a chunk.
        layout: "bshd" or "bhsd".

    Returns:
        float32 [batch, HQ, S, ceil(S / chunk)].
    """
    queries = heads_first(q, "q", layout).float()
    return queries @ grouped(queries, mean_pool(k, chunk, layout=layout)).transpose(-1, -2)


@untransformed
def moba(
    scores: Tensor,
    k: int,
    *,
    chunk: int,
    block_size: tuple[int, int] = (128, 128),
    nan: str = "error",
) -> Plan:
    """The k best chunks of each query, its own among them; causal.

    Args:
        scores: floats [batch, heads, S, chunks], as `chunk_scores` makes them.
        k: at least 1.
        chunk: keys of a chunk.
        block_size: (bq, bk) of the plan, in tokens.
        nan: "error", or "drop": a NaN is never selected.

    Raises:
        PlanTypeError: if scores have the wrong dtype or rank.
        PlanError: if they are NaN, their chunks do not fit the length, or k is 0.
    """
    scores, own = _chunked(scores, chunk, nan)
    seqlen, chunks = scores.shape[2:]
    later = torch.arange(chunks) > torch.arange(seqlen)[:, None] // chunk
    ranked = scores.masked_fill(own, torch.inf).masked_fill(later, -torch.inf)
    return _plan(_best(ranked, k), chunk, causal=True, block_size=block_size)


@untransformed
def vmoba(
    scores: Tensor,
    *,
    chunk: int,
    k: int | None = None,
    threshold: float | None = None,
    scope: str,
    block_size: tuple[int, int] = (128, 128),
    nan: str = "error",
) -> Plan:
    """Chunks by top-k or by a share of the normalised scores, over a scope; not causal.

    Scores of a scope are brought to [0, 1] by their least and largest. Under a threshold, own
    chunks count first, and others are added, best first, until the sum is that share of all; the
    best other one of a scope is always added.

    Args:
        scores: floats [batch, heads, S, chunks], as `chunk_scores` makes them.
        chunk: keys of a chunk.
        k: chunks per query on average over the scope, own ones among them; at least 1.
        threshold: the share, from 0 to 1; give one of the two.
        scope: what shares a choice: "query_head" each query of each head, "block" all (head,
            query) of a chunk (thresholds only), "head_global" a head, "overall" everything.
        block_size: (bq, bk) of the plan, in tokens.
        nan: "error", or "drop": a NaN is never selected.

    Raises:
        PlanTypeError: if scores have the wrong dtype or rank, or the scope is unknown.
        PlanError: if they are NaN, their chunks do not fit the length, k is 0, or not exactly one
            of `k` and `threshold` is given.
    """
    option(scope, "scope", SCOPES)
    scores, own = _chunked(scores, chunk, nan)
    if (k is None) == (threshold is None) or (k is not None and scope == "block"):
        raise PlanError(
            sentence(
                what="one rule is needed",
                where="k, threshold",
                got=f"k={k}, threshold={threshold}, scope={scope!r}",
                wanted="one of the two, a threshold for scope='block'",
                remedy="say by which rule chunks are selected",
            )
        )
    own = own.expand(scores.shape)
    if k is not None:
        count = integer(k, "k", low=1)
        ranked = _by_scope(scores.masked_fill(own, torch.inf), scope)
        per_query = 1 if scope == "query_head" else ranked.shape[1] // scores.shape[3]
        picked = _best(ranked[None, None], count * per_query)[0, 0]
    else:
        assert threshold is not None
        picked = _share(_by_scope(scores, scope), _by_scope(own, scope), threshold)
    mask = _from_scope(picked, scope, tuple(scores.shape)) | own
    return _plan(mask, chunk, causal=False, block_size=block_size)


def _chunked(scores: Tensor, chunk: int, nan: str) -> tuple[Tensor, Tensor]:
    """(scores, bool [S, chunks] of each query's own chunk)."""
    scores = checked_scores(scores, _AXES, nan)
    chunk = integer(chunk, "chunk", low=1)
    seqlen, chunks = scores.shape[2:]
    if chunks != -(-seqlen // chunk):
        raise PlanError(
            sentence(
                what="scores do not fit the chunks",
                where="scores, last axis",
                got=f"{chunks} chunks",
                wanted=f"{-(-seqlen // chunk)}, of {chunk} keys in {seqlen}",
                remedy="pass the chunk that the scores were made with",
            )
        )
    return scores, torch.arange(seqlen)[:, None] // chunk == torch.arange(chunks)


def _best(ranked: Tensor, k: int) -> Tensor:
    """bool, as `ranked`: the k best of each row, never -inf; equal ones in ascending order."""
    values, order = ranked.sort(dim=-1, descending=True, stable=True)
    best = (torch.arange(order.shape[-1]) < integer(k, "k", low=1)) & (values > -torch.inf)
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, order, best)


def _by_scope(x: Tensor, scope: str) -> Tensor:
    """[batch, heads, S, chunks] as [scopes, members]."""
    order = {"query_head": (0, 1, 2, 3), "block": (0, 3, 1, 2), "head_global": (1, 0, 2, 3)}
    if scope == "overall":
        return x.reshape(1, -1)
    moved = x.permute(order[scope])
    if scope == "query_head":
        return moved.reshape(-1, x.shape[3])
    if scope == "block":
        return moved.reshape(x.shape[0] * x.shape[3], -1)
    return moved.reshape(x.shape[1], -1)


def _from_scope(x: Tensor, scope: str, shape: tuple[int, ...]) -> Tensor:
    batch, heads, seqlen, chunks = shape
    if scope == "block":
        return x.view(batch, chunks, heads, seqlen).permute(0, 2, 3, 1)
    if scope == "head_global":
        return x.view(heads, batch, seqlen, chunks).transpose(0, 1)
    return x.view(shape)


def _share(scores: Tensor, own: Tensor, threshold: float) -> Tensor:
    """The others that are added to the own ones, bool [scopes, members]."""
    if not 0 <= threshold <= 1:
        raise PlanError(
            sentence(
                what="share is out of range",
                where="threshold",
                got=threshold,
                wanted="0 <= threshold <= 1",
                remedy="pass the share of the scores to keep",
            )
        )
    valid = scores > -torch.inf
    values = scores.double()
    low = values.masked_fill(~valid, torch.inf).amin(dim=1, keepdim=True)
    high = values.amax(dim=1, keepdim=True)
    spread = high - low
    spread = torch.where(spread > _EPSILON, spread, 1.0)
    weight = ((values - low) / spread).masked_fill(~valid, 0.0)
    total = weight.sum(dim=1, keepdim=True) + _EPSILON
    missing = (threshold - (weight * own).sum(dim=1, keepdim=True) / total).clamp(min=0.0)
    others = weight.masked_fill(own | ~valid, -1.0)
    ranked, order = others.sort(dim=1, descending=True, stable=True)
    share = ranked.clamp(min=0.0).cumsum(dim=1) / total
    added = torch.cat(
        [torch.zeros_like(missing, dtype=torch.bool), share[:, :-1] >= missing], dim=1
    )
    best = ~added & (ranked >= 0)
    return torch.zeros_like(own).scatter_(1, order, best)


def _plan(mask: Tensor, chunk: int, *, causal: bool, block_size: tuple[int, int]) -> Plan:
    """The plan of bool [batch, heads, S, chunks]."""
    seqlen, chunks = mask.shape[2:]
    numbers = torch.arange(chunks, dtype=torch.int32).expand(mask.shape).masked_fill(~mask, -1)
    return plan_of_token_blocks(numbers, seqlen, chunk, causal=causal, block_size=block_size)
