"""A long attention run checked where that is affordable: on some of its queries and of its keys.

All in float64 and in closed form, sharing nothing with a backend. A query's output, LSE and
gradient need its own row of the mask. A key's gradients need every query, and follow from the LSE
and the output, which the queries have checked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import maskplan as mp

ROWS_TOGETHER = 8  # queries that are checked together


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attention call of one head with its results and gradients.

    Attributes:
        plan: SQ = SK = S.
        q: float32 [1, S, 1, D] with its gradient, as k and v.
        k: as q.
        v: as q.
        out: float32 [1, S, 1, D].
        lse: float32 [1, 1, S], natural log.
        grad_out: float32 [1, S, 1, D].
    """

    plan: mp.Plan
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad_out: Tensor


def places(length: int, count: int) -> list[int]:
    """`count` positions spread over [0, length), the first and the last among them.

    >>> places(100, 4)
    [0, 33, 66, 99]
    """
    count = max(1, min(count, length))
    return [round(i * (length - 1) / max(count - 1, 1)) for i in range(count)]


def row_errors(run: Run, count: int) -> dict[str, float]:
    """Largest error over the largest value of about `count` queries.

    They are taken as a few runs of neighbours, the first and the last of the sequence among them.
    """
    errors = {"out": 0.0, "lse": 0.0, "dq": 0.0}
    length = min(ROWS_TOGETHER, run.plan.seqlen_q)
    keys, values = (x.detach()[0, :, 0].double() for x in (run.k, run.v))
    scale = keys.shape[1] ** -0.5
    for start in places(run.plan.seqlen_q - length + 1, max(1, count // length)):
        rows = slice(start, start + length)
        q, grad_out = (x.detach()[0, rows, 0].double() for x in (run.q, run.grad_out))
        kept = run.plan.crop(q=(start, start + length)).to_dense()[0, 0]
        score = (scale * q @ keys.T).masked_fill(~kept, -torch.inf)
        lse = score.logsumexp(1)
        share = (score - lse[:, None]).exp()
        out = share @ values
        grad_share = grad_out @ values.T
        grad_score = share * (grad_share - (grad_out * out).sum(1, keepdim=True))
        found = {"out": run.out[0, rows, 0], "lse": run.lse[0, 0, rows]}
        found["dq"] = _grad(run.q)[0, rows, 0]
        right = {"out": out, "lse": lse, "dq": scale * grad_score @ keys}
        for name, value in found.items():
            errors[name] = max(errors[name], _error(value, right[name]))
    return errors


def key_errors(run: Run, count: int) -> dict[str, float]:
    """Largest error over the largest value of `count` keys, from the run's own LSE and output."""
    errors = {"dk": 0.0, "dv": 0.0}
    q, grad_out = (x.detach()[0, :, 0].double() for x in (run.q, run.grad_out))
    lse = run.lse[0, 0].double()
    delta = (grad_out * run.out[0, :, 0].double()).sum(1)
    scale = q.shape[1] ** -0.5
    for at in places(run.plan.seqlen_k, count):
        key, value = (x.detach()[0, at, 0].double() for x in (run.k, run.v))
        kept = run.plan.crop(k=(at, at + 1)).to_dense()[0, 0, :, 0]
        share = torch.where(kept, (q @ key * scale - lse).exp(), 0.0)
        grad_score = share * (grad_out @ value - delta)
        found = {"dk": _grad(run.k)[0, at, 0], "dv": _grad(run.v)[0, at, 0]}
        right = {"dk": scale * (grad_score @ q), "dv": share @ grad_out}
        for name, gradient in found.items():
            errors[name] = max(errors[name], _error(gradient, right[name]))
    return errors


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, "checked after the backward pass only"
    return tensor.grad


def _error(found: Tensor, right: Tensor) -> float:
    """Largest difference over the largest value; a NaN counts as infinite."""
    difference = (found.double() - right).abs().max() / right.abs().max().clamp(min=1e-300)
    return float(difference.nan_to_num(nan=float("inf")))
