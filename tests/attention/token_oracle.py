"""Attention over lists of tokens in float64, one query token and KV head at a time.

It takes lists, not plans, tiles or masks, and shares no code with maskplan.
"""

import torch
from torch import Tensor

from tests.attention.loops import Expected

Lists = list[list[list[list[int]]]]


def lists_of(indices: Tensor) -> Lists:
    """[batch][head][query] -> the keys selected, from int [batch, heads, SQ, topk] with -1 padding.

    A key that is listed twice counts once.
    """
    return [
        [[sorted({key for key in row if key != -1}) for row in head] for head in batch]
        for batch in indices.tolist()
    ]


def attend_lists(
    q: Tensor, k: Tensor, v: Tensor, lists: Lists, scale: float, dout: Tensor, dlse: Tensor
) -> Expected:
    """Softmax attention of each query over its own keys, and the gradients.

    Args:
        q, k, v, dout: [B, S, H, F]; dlse: [B, HQ, SQ].
        lists: [1 or B][1, HK or HQ][SQ].
        scale: factor of the scores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small products, which threads of a library would spin around
    try:
        results = _attend(q, k, v, lists, scale, dout, dlse)
    finally:
        torch.set_num_threads(threads)
    return Expected(*(x.numpy() for x in results))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, lists: Lists, scale: float, dout: Tensor, dlse: Tensor
) -> tuple[Tensor, ...]:
    q, k, v, dout, dlse = (x.detach().double() for x in (q, k, v, dout, dlse))
    batch, seqlen_q, heads, _ = q.shape
    group = heads // k.shape[2]
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    lse = q.new_full((batch, heads, seqlen_q), -torch.inf)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for b in range(batch):
        of_batch = lists[b % len(lists)]
        # Heads of a group that have one list are taken together: rows of one product.
        step = group if len(of_batch) <= k.shape[2] else 1
        for first in range(0, heads, step):
            of_head, own = of_batch[first * len(of_batch) // heads], slice(first, first + step)
            for i, seen in enumerate(of_head):
                if not seen:
                    continue
                near_k, near_v = k[b, seen, first // group], v[b, seen, first // group]
                score = q[b, i, own] @ near_k.T * scale
                top = score.max(1, keepdim=True).values
                weight = (score - top).exp()
                total = weight.sum(1, keepdim=True)
                lse[b, own, i] = (top + total.log())[:, 0]
                weight = weight / total
                out[b, i, own] = weight @ near_v
                grad = dout[b, i, own]
                delta = (out[b, i, own] * grad).sum(1) - dlse[b, own, i]
                slope = weight * (grad @ near_v.T - delta[:, None]) * scale
                dq[b, i, own] = slope @ near_k
                dk[b, seen, first // group] += slope.T @ q[b, i, own]
                dv[b, seen, first // group] += weight.T @ grad
    return out, lse, dq, dk, dv
