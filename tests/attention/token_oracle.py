"""Attention over lists of tokens in float64 numpy, one query token and KV head at a time.

It takes lists, not plans, tiles or masks, and shares no code with maskplan.
"""

import numpy as np
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
    q, k, v, dout, dlse = (x.detach().double().numpy() for x in (q, k, v, dout, dlse))
    batch, seqlen_q, heads, _ = q.shape
    group = heads // k.shape[2]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full((batch, heads, seqlen_q), -np.inf)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
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
                top = score.max(1, keepdims=True)
                weight = np.exp(score - top)
                total = weight.sum(1, keepdims=True)
                lse[b, own, i] = (top + np.log(total))[:, 0]
                weight /= total
                out[b, i, own] = weight @ near_v
                grad = dout[b, i, own]
                delta = (out[b, i, own] * grad).sum(1) - dlse[b, own, i]
                slope = weight * (grad @ near_v.T - delta[:, None]) * scale
                dq[b, i, own] = slope @ near_k
                dk[b, seen, first // group] += slope.T @ q[b, i, own]
                dv[b, seen, first // group] += weight.T @ grad
    return Expected(out, lse, dq, dk, dv)
