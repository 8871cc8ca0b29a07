"""Directional derivatives: a backend's gradients against differences of attention itself.

NOTE [Differences]: the budget of a gradient holds it to another gradient, by another formula. Here
it is held to none: L = sum dO out + sum dLSE lse, as a function of q alone (or k, or v), is
evaluated in float64 by the definition at q + h u for a random direction u and four steps h. The
differences at h and h / 2, extrapolated (Richardson, 1911), give the derivative along u up to terms
of h^4, and the backend's gradient times u has to agree, for every head by itself: directions of
other heads do not change what it adds. How far it may be off follows from its elements, whose
errors are independent: half a unit of their dtype, and twice the error that the peer of NOTE
[Error budget] shows, both by their root mean square over a head, four times the standard deviation
of their sum.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from maskplan.attention.budget import Comparison, compare
from maskplan.attention.call import AttentionCall

LARGEST = 1 << 22  # scores, of all heads, that are held at a time
_STEP = 2.0**-9
_DEVIATIONS = 4
_DIFFERENCE = 1e-9  # of differences in float64, relative to the gradient's norm


def small(call: AttentionCall) -> bool:
    """Whether the scores of a call are few enough to be evaluated whole, several times."""
    return call.batch * call.heads * call.lowered.seqlen_q * call.lowered.seqlen_k <= LARGEST


def derivatives(
    call: AttentionCall,
    gradients: dict[str, Tensor],
    noise: dict[str, Tensor],
    dout: Tensor,
    dlse: Tensor,
    seed: int,
) -> tuple[Comparison, ...]:
    """Each gradient along a random direction, by (batch, head); see NOTE [Differences].

    Args:
        call: small, on the CPU.
        gradients: "q", "k" and "v" -> what a backend gave, [B, S, H, F].
        noise: "q", "k" and "v" -> what elements may be off beside their rounding: a root mean
            square [B, H].
        dout: [B, SQ, HQ, DV].
        dlse: [B, HQ, SQ].
        seed: of the directions.
    """
    wide = replace(call, q=call.q.double(), k=call.k.double(), v=call.v.double())
    keep = _kept(call)
    draw = torch.Generator().manual_seed(seed)
    found = []
    for name, gradient in gradients.items():
        given = getattr(wide, name)
        along = torch.randn(given.shape, generator=draw, dtype=torch.float64, device="cpu")

        def value(step: float, name: str = name, along: Tensor = along) -> Tensor:
            moved = replace(wide, **{name: getattr(wide, name) + step * along})
            return _by_head(_value(moved, keep, dout, dlse), along.shape[2])

        wanted = _derivative(value)
        got = (gradient.double() * along).sum((1, 3))
        size = _root_mean_square(gradient.double())
        unit = torch.finfo(call.q.dtype).eps / 2 + _DIFFERENCE
        allowed = _DEVIATIONS * along.square().sum((1, 3)).sqrt() * (unit * size + noise[name])
        found.append(
            compare(
                f"along {name}",
                got[:, None, :, None],
                wanted[:, None, :, None],
                wanted[:, None, :, None],
                block=torch.zeros(1, dtype=torch.int64, device="cpu"),
                floor=allowed[:, None, :, None],
            )
        )
    return tuple(found)


def _root_mean_square(values: Tensor) -> Tensor:
    """Of each head, [B, H]; 0 where there are no tokens."""
    elements = max(values.shape[1] * values.shape[3], 1)
    return (values.square().sum((1, 3)) / elements).sqrt()


def _derivative(value: Callable[[float], Tensor]) -> Tensor:
    """Of `value` at 0."""
    wide, narrow = ((value(step) - value(-step)) / (2 * step) for step in (_STEP, _STEP / 2))
    return (4 * narrow - wide) / 3


def _by_head(values: Tensor, heads: int) -> Tensor:
    """[B, HQ] summed over the groups of `heads`."""
    return values.view(len(values), heads, -1).sum(2)


def _kept(call: AttentionCall) -> Tensor:
    """Bool [B, HQ, SQ, SK]."""
    dense = call.plan.to_dense()
    heads = dense.repeat_interleave(call.heads // dense.shape[1], dim=1)
    return heads.expand(call.batch, -1, -1, -1)


def _value(call: AttentionCall, keep: Tensor, dout: Tensor, dlse: Tensor) -> Tensor:
    """Sum of dout * out and dlse * lse of each query head, [B, HQ], by the definition."""
    k, v = (x.repeat_interleave(call.group, dim=2) for x in (call.k, call.v))
    scores = call.scale * torch.einsum("bqhd,bkhd->bhqk", call.q, k)
    scores = scores.masked_fill(~keep, -torch.inf)
    lse = scores.logsumexp(3)
    seen = lse > -torch.inf
    weights = (scores - lse.masked_fill(~seen, 0)[..., None]).exp()
    out = torch.einsum("bhqk,bkhd->bhqd", weights, v)
    by_out = (out * dout.double().transpose(1, 2)).sum((2, 3))
    return by_out + (lse.masked_fill(~seen, 0) * dlse.double() * seen).sum(2)
