"""`Results` of a call: by the formula in float64, and a backend's held to their error budget."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maskplan.attention.budget import Comparison, compare
from maskplan.attention.call import AttentionCall
from maskplan.attention.oracle import key_side, query_side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Results of one call: out and its gradients [B, n, H, F], lse [B, n, HQ, 1].

    Without a backward there are no gradients. Computed ones say how errors in the gradients of a
    key grow: `weight` is that of `KeySide`, and `growth` half the root of the number of its
    queries, since they are added one after another.
    """

    out: Tensor
    lse: Tensor
    dq: Tensor | None
    dk: Tensor | None
    dv: Tensor | None
    weight: Tensor | None = None
    growth: Tensor | None = None


def expected(
    call: AttentionCall, dtype: torch.dtype, dout: Tensor, dlse: Tensor, rows: Tensor,
    keys: Tensor, given: tuple[Tensor, Tensor] | None,
) -> Results:  # fmt: skip
    """Results at `rows` and `keys` by the formula in `dtype`, rounded like the call's own.

    In float64 nothing is rounded. `given` is (out, lse) of every query for the keys' gradients;
    None to compute them, when `rows` is every query.
    """
    rounded = call.q.dtype if dtype != torch.float64 else torch.float64
    wide = replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
    grads = (dout.to(wide.q.device), dlse.to(wide.q.device))
    queries = query_side(wide, rows, *grads, rounded)
    if given is None:
        out, lse = queries.out, queries.lse[..., 0].transpose(1, 2)
    else:
        out, lse = (x.to(wide.q.device) for x in given)
    side = key_side(wide, keys, out, lse, *grads)
    return Results(
        out=queries.out.cpu(),
        lse=queries.lse.cpu(),
        dq=queries.dq.to(rounded).cpu(),
        dk=side.dk.to(rounded).cpu(),
        dv=side.dv.to(rounded).cpu(),
        weight=side.weight.double().cpu(),
        growth=side.seen.double().sqrt().cpu() / 2,
    )


def judge(
    found: Results, exact: Results, peer: Results, call: AttentionCall, dout: Tensor,
    rows: Tensor, keys: Tensor,
) -> tuple[Comparison, ...]:  # fmt: skip
    """Each tensor of `found` against its budget; see NOTE [Error budget].

    Args:
        found: results of a backend, at `rows` and `keys`; gradients may be missing.
        exact: the same in float64.
        peer: the same in the precision of computation.
        call: the call that was made.
        dout: gradient of out, whole.
        rows: int64, query tokens.
        keys: int64, key tokens.
    """
    bq, bk = call.plan.block_size
    unit = torch.finfo(torch.float32).eps
    if call.q.dtype == torch.float64:
        # There is nothing more precise to hold it to, so the peer shows no error of its own.
        unit = 16 * torch.finfo(torch.float64).eps
    q, k, v, do = (_usual(x) for x in (call.q, call.k, call.v, dout))
    score = abs(call.scale) * q * k * call.q.shape[3] ** 0.5
    slope = 2 * abs(call.scale) * do * v * call.v.shape[3] ** 0.5
    assert exact.weight is not None, "computed"
    assert exact.growth is not None, "computed"
    level = unit * (1 + score)  # of a score, and so, relatively, of a softmax weight
    floors: dict[str, float | Tensor] = {
        "out": unit * v,
        "lse": level,
        "dq": level * slope * k,
        "dk": slope * q * exact.weight * (level + unit * exact.growth),
        "dv": do * exact.weight * (level + unit * exact.growth),
    }
    return tuple(
        compare(
            name,
            getattr(found, name),
            getattr(exact, name),
            getattr(peer, name),
            block=keys // bk if name in ("dk", "dv") else rows // bq,
            floor=floors[name],
            shared=level,
        )
        for name in ("out", "lse", "dq", "dk", "dv")
        if getattr(found, name) is not None
    )


def _usual(tensor: Tensor) -> float:
    """Twice the root mean square."""
    return 2 * float(tensor.detach().double().square().mean().sqrt()) if tensor.numel() else 0.0
