"""Backend `reference`: the definition of attention under a plan, in float32 or float64.

Each query gathers its own selected keys and nothing else, so what it does not select cannot reach
it. Slow and obvious; gradients come from autograd through plain operations. Rows are taken in
chunks, which are computed again in the backward, so memory stays within `CHUNK_NUMBERS` gathered
numbers however many pairs there are.

    S = scale * q . k over selected keys;  out = softmax(S) v;  lse = log sum exp S

A query whose every score is -inf, one without keys above all, gives out = 0 and lse = -inf.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from maskplan.attention.call import AttentionCall
from maskplan.attention.dispatch_keys import hooks_allowed, with_autograd
from maskplan.attention.metadata import Metadata
from maskplan.bits import unpack
from maskplan.geometry import WORD_BITS
from maskplan.lower.gathered import GatheredLists
from maskplan.lower.lowered import as_it_is
from maskplan.lower.plan_cache import Lowering
from maskplan.plan import FULL, Plan

NAME = "reference"
ENGINES = ("plan", "cpu", "tokens")
OPERATOR = True
# Numbers gathered at a time: keys per query, padded, times features.
CHUNK_NUMBERS = 1 << 24


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.dtype not in (torch.float32, torch.float64):
        return f"it computes float32 and float64, not {str(asked.dtype).removeprefix('torch.')}"
    if asked.backward != "auto":
        return f"its gradients come from autograd, so backward={asked.backward!r} means nothing"
    return None


def lowering(asked: Metadata) -> Lowering:
    """As for the cpu; it reads the plan's own lists."""
    del asked
    return Lowering(target="cpu", backward=())


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse [B, HQ, SQ]), both in the dtype of q."""
    with torch.no_grad():
        return attend(exact(call))


def backward(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped and typed as q, k and v. Arguments as in `cpu.backward`.

    The forward is run again, with a graph; `out` and `lse` serve other backends.
    """
    del out, lse
    if call.empty:
        return torch.zeros_like(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    # The operator runs backends below autograd, which this one is made of.
    with with_autograd(), torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (call.q, call.k, call.v)]
        again = replace(exact(call), q=leaves[0], k=leaves[1], v=leaves[2])
        results = attend(again)
        given = (dout, torch.zeros_like(results[1]) if dlse is None else dlse.to(call.q.dtype))
        grads = torch.autograd.grad(results, leaves, given, materialize_grads=True)
    return grads[0], grads[1], grads[2]


def exact(call: AttentionCall) -> AttentionCall:
    """The call with its plan on the CPU, where lists are read; waits for a GPU that holds it."""
    if call.lowered.device.type == "cpu":
        return call
    if call.lowered.plan is None:
        return replace(call, lowered=call.lowered.to("cpu"))
    return replace(call, lowered=as_it_is(call.plan.cpu()))


def attend(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse [B, HQ, SQ]) of every query, in the dtype of q, differentiable."""
    shape = (call.batch, call.heads, call.lowered.seqlen_q)
    features = int(call.v.shape[3])
    if call.empty:
        out = call.new(call.q, features, call.q.dtype).zero_()
        return out, call.q.new_full(shape, -torch.inf)
    rows = torch.arange(call.lowered.seqlen_q, device="cpu")
    outs, lses = [], []
    for b in range(call.batch):
        for h in range(call.heads):
            out, lse = attend_rows(call, b, h, rows)
            outs.append(out)
            lses.append(lse)
    out = torch.stack(outs).view(*shape, features).transpose(1, 2)
    return out, torch.stack(lses).view(shape)


def attend_rows(call: AttentionCall, b: int, h: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(out [R, DV], lse [R]) of query tokens `rows`, int64 [R], of one batch and head."""
    q = call.q[b, rows.to(call.q.device), h]
    k, v = call.k[b, :, h // call.group], call.v[b, :, h // call.group]
    if not len(k):
        return q.new_zeros(len(q), v.shape[1]), q.new_full((len(q),), -torch.inf)
    pattern = int(call.pattern[b, h])
    if call.lowered.plan is None:
        assert call.lowered.gathered is not None, "token tiles have lists"
        selected = _selected_of_lists(call.lowered.gathered, pattern, h % call.group, rows)
    else:
        selected = _selected(call.plan, pattern, rows)
    outs, lses = [q.new_empty(0, v.shape[1])], [q.new_empty(0)]
    start = 0
    for keys in _chunks(selected, int(k.shape[1] + v.shape[1])):
        part = q[start : start + len(keys)]
        start += len(keys)
        inputs = (part, k, v, keys.to(q.device), call.scale)
        if hooks_allowed():
            out, lse = checkpoint(softmax_over, *inputs, use_reentrant=False)
        else:  # every chunk is kept
            out, lse = softmax_over(*inputs)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def softmax_over(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(out [R, DV], lse [R]) of each query over its own keys.

    Args:
        q: [R, D].
        k: [SK, D].
        v: [SK, DV].
        keys: int64 [R, K], padded with -1.
        scale: factor of the scores.
    """
    there = keys >= 0
    # Looked up as rows of a table: the gradient of plain indexing adds in a varying order.
    near_k = torch.where(there[..., None], embedding(keys.clamp(min=0), k), 0)
    near_v = torch.where(there[..., None], embedding(keys.clamp(min=0), v), 0)
    scores = (q[:, None] * near_k).sum(-1) * scale
    scores = scores.masked_fill(~there, -torch.inf)
    none = scores.amax(1, keepdim=True) == -torch.inf
    scores = torch.where(none, 0, scores)
    out = (scores.softmax(1)[..., None] * near_v).sum(1)
    lse = scores.logsumexp(1)
    return torch.where(none, 0, out), torch.where(none[:, 0], -torch.inf, lse)


def keys_of_block(plan: Plan, pattern: int, block: int) -> tuple[Tensor, Tensor]:
    """(keys int64 [n], keep bool [bq, n]): the keys of a Q block's list, and who selects which."""
    bq, bk = plan.block_size
    line = pattern * plan.geometry.num_q_blocks + block
    keys = [torch.empty(0, dtype=torch.int64, device="cpu")]
    keep = [torch.empty(bq, 0, dtype=torch.bool, device="cpu")]
    for entry in range(int(plan.row_ptr[line]), int(plan.row_ptr[line + 1])):
        first = int(plan.col[entry]) * bk
        size = min(bk, plan.seqlen_k - first)
        tile = FULL if plan.tile_id is None else int(plan.tile_id[entry])
        keys.append(torch.arange(first, first + size, device="cpu"))
        if tile == FULL:
            keep.append(torch.ones(bq, size, dtype=torch.bool, device="cpu"))
        else:
            keep.append(unpack(plan.tiles[tile], bk)[:, :size])
    return torch.cat(keys), torch.cat(keep, dim=1)


def _selected(plan: Plan, pattern: int, rows: Tensor) -> Iterator[Tensor]:
    """The keys of each query token of `rows`, int64 [n]."""
    at = -1
    for row in rows.tolist():
        block, within = divmod(row, plan.block_size[0])
        if block != at:
            listed, keep = keys_of_block(plan, pattern, block)
            at = block
        yield listed[keep[within]]


def _selected_of_lists(
    lists: GatheredLists, number: int, head: int, rows: Tensor
) -> Iterator[Tensor]:
    """As `_selected`, for a list and a head in its group."""
    for row in rows.tolist():
        tile, within = divmod(row, lists.tokens)
        line = number * lists.tiles + tile
        start, count = int(lists.start[line]), int(lists.count[line])
        keys = lists.keys[start : start + count].long()
        if lists.bits is None:
            yield keys
            continue
        own = within * lists.lists_per_token + (head if lists.lists_per_token > 1 else 0)
        words = lists.bits[line, own]
        yield keys[unpack(words, len(words) * WORD_BITS)[:count]]


def _chunks(selected: Iterator[Tensor], features: int) -> Iterator[Tensor]:
    """Selected keys of rows, int64 [r, K] padded with -1, a chunk of rows at a time, in order."""
    waiting: list[Tensor] = []
    widest = 1
    for keys in selected:
        wider = max(widest, len(keys))
        if waiting and wider * (len(waiting) + 1) * features > CHUNK_NUMBERS:
            yield _pad(waiting)
            waiting, wider = [], max(1, len(keys))
        waiting.append(keys)
        widest = wider
    if waiting:
        yield _pad(waiting)


def _pad(keys: list[Tensor]) -> Tensor:
    """At least one column, so that a softmax over keys is never over nothing."""
    padded = pad_sequence(keys, batch_first=True, padding_value=-1)
    return padded if padded.shape[1] else padded.new_full((len(keys), 1), -1)
