"""A long attention run checked where that is affordable: on some of its queries and of its keys.

The reference gives a query's output, LSE and gradient from its own row of the mask. A key's
gradients need every query; they follow from the run's own LSE and output, which the queries check.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import maskplan as mp
from maskplan.attention import oracle
from maskplan.attention.call import make_call


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


def places(length: int, count: int) -> Tensor:
    """At most `count` positions spread over [0, length), the first and the last among them.

    >>> places(100, 4)
    tensor([ 0, 33, 66, 99])
    """
    return torch.linspace(0, length - 1, min(count, length), device="cpu").long()


def errors(run: Run, *, queries: int, keys: int) -> dict[str, float]:
    """Largest error over the largest value of each result, against the reference in float64.

    Args:
        run: what is checked.
        queries: how many queries are.
        keys: how many keys are.
    """
    q, k, v = (tensor.detach().double() for tensor in (run.q, run.k, run.v))
    call = make_call(
        q, k, v, run.plan, scale=None, layout="bshd", backward="auto", deterministic=False
    )
    rows = places(run.plan.seqlen_q, queries)
    cols = places(run.plan.seqlen_k, keys)
    grad_out, zeros = run.grad_out.double(), torch.zeros_like(run.lse, dtype=torch.float64)
    at_rows = oracle.query_side(call, rows, grad_out, zeros, torch.float64)
    at_cols = oracle.key_side(call, cols, run.out.double(), run.lse.double(), grad_out, zeros)
    return {
        "out": _error(run.out[0, rows, 0], at_rows.out[0, :, 0]),
        "lse": _error(run.lse[0, 0, rows], at_rows.lse[0, :, 0, 0]),
        "dq": _error(_grad(run.q)[0, rows, 0], at_rows.dq[0, :, 0]),
        "dk": _error(_grad(run.k)[0, cols, 0], at_cols.dk[0, :, 0]),
        "dv": _error(_grad(run.v)[0, cols, 0], at_cols.dv[0, :, 0]),
    }


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, "checked after the backward pass only"
    return tensor.grad


def _error(found: Tensor, right: Tensor) -> float:
    """Largest difference over the largest value; a NaN counts as infinite."""
    difference = (found.double() - right).abs().max() / right.abs().max().clamp(min=1e-300)
    return float(difference.nan_to_num(nan=float("inf")))
