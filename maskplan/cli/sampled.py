"""A long attention run checked where that is affordable: on some of its queries and of its keys.

A query's output, LSE and gradient need its own row of the mask only, so the reference backend gives
them from a cropped plan. A key's gradients need every query: they follow in closed form from the
LSE and the output, which the queries have checked.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import maskplan as mp


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
    """Largest error over the largest value, of `count` queries against the float64 reference."""
    errors = {"out": 0.0, "lse": 0.0, "dq": 0.0}
    keys, values = run.k.detach().double(), run.v.detach().double()
    for at in places(run.plan.seqlen_q, count):
        row = slice(at, at + 1)
        q = run.q.detach()[:, row].double().requires_grad_()
        out, lse = mp.attention(
            q,
            keys,
            values,
            run.plan.crop(q=(at, at + 1)),
            backend="reference",
            return_lse=True,
        )
        out.backward(run.grad_out[:, row].double())
        found = {"out": run.out[:, row], "lse": run.lse[:, :, row], "dq": _grad(run.q)[:, row]}
        right = {"out": out, "lse": lse, "dq": _grad(q)}
        for name, value in found.items():
            errors[name] = max(errors[name], _error(value, right[name]))
    return errors


def key_errors(run: Run, count: int) -> dict[str, float]:
    """Largest error over the largest value, of `count` keys, in float64 from the run's own LSE."""
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
    return float(torch.nan_to_num(difference, nan=float("inf")))
