"""Attention by loops over queries in float64 numpy: what every backend is judged by.

It takes a dense mask and shares no code with maskplan.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Expected:
    """out and its gradients, [B, S, H, F]; lse [B, HQ, SQ]; all float64."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, dout: Tensor, dlse: Tensor
) -> Expected:
    """Softmax attention and its gradients over the True pairs of `mask`, one query at a time.

    Args:
        q, k, v, dout: [B, S, H, F]; dlse: [B, HQ, SQ].
        mask: bool [1 or B, 1, HK or HQ, SQ, SK].
        scale: factor of the scores.
    """
    q, k, v, dout, dlse = (x.detach().double().numpy() for x in (q, k, v, dout, dlse))
    batch, seqlen_q, heads, _ = q.shape
    group = heads // max(k.shape[2], 1)
    out = np.zeros((*q.shape[:3], v.shape[3]))
    lse = np.full((batch, heads, seqlen_q), -np.inf)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    keeps = mask.numpy()
    with np.errstate(all="ignore"):
        for b in range(batch):
            for h in range(heads):
                keep = keeps[b % len(keeps), h * keeps.shape[1] // heads]
                for i in range(seqlen_q):
                    seen = np.nonzero(keep[i])[0]
                    near_k, near_v = k[b, seen, h // group], v[b, seen, h // group]
                    score = near_k @ q[b, i, h] * scale
                    if np.all(score == -np.inf):
                        continue
                    top = score.max()
                    weight = np.exp(score - top)
                    lse[b, h, i] = top + np.log(weight.sum())
                    weight /= weight.sum()
                    out[b, i, h] = weight @ near_v
                    delta = out[b, i, h] @ dout[b, i, h] - dlse[b, h, i]
                    slope = weight * (near_v @ dout[b, i, h] - delta) * scale
                    dq[b, i, h] = slope @ near_k
                    dk[b, seen, h // group] += slope[:, None] * q[b, i, h]
                    dv[b, seen, h // group] += weight[:, None] * dout[b, i, h]
    return Expected(out, lse, dq, dk, dv)
