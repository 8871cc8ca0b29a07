"""`verify`: a backend against the float64 reference, forward and backward, on a plan of yours."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from maskplan.attention.arguments import check_flag, check_plan_type
from maskplan.attention.budget import Comparison
from maskplan.attention.call import AttentionCall
from maskplan.attention.choice import named, status
from maskplan.attention.derivatives import derivatives, small
from maskplan.attention.dispatch import run
from maskplan.attention.facts import asked_of
from maskplan.attention.gather import how_read
from maskplan.attention.metadata import Metadata
from maskplan.attention.noise import noise_call, places
from maskplan.attention.report import VerifyReport
from maskplan.attention.results import Results, expected, judge
from maskplan.attention.tiled import plan_of, resolved
from maskplan.device.place import placed, raise_no_values
from maskplan.errors import PlanTypeError, sentence
from maskplan.geometry import integer
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.plan_cache import PlanCache
from maskplan.lower.token_tiles import TokenTiles
from maskplan.plan import Plan


def verify(
    plan: Plan | LoweredPlan | TokenTiles,
    backend: str = "auto",
    *,
    device: torch.device | str | None = None,
    head_dim: int = 64,
    head_dim_v: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    dtype: torch.dtype | None = None,
    backward: str = "auto",
    deterministic: bool = False,
    samples: int = 128,
    seed: int = 0,
) -> VerifyReport:
    """Run a backend on seeded noise, forward and backward, and hold it to an error budget.

    A backend named that has a forward alone for such a call is held to that, and the report says
    so. Gradients of small calls are also held to differences of attention itself, along random
    directions: NOTE [Differences].

    Args:
        plan: any plan, or token tiles, which are held to their `to_plan()`; tensors are made for
            it.
        backend: as in `attention`.
        device: where the backend runs, and the float64 computation it is held to; None for where
            the plan is.
        head_dim: D.
        head_dim_v: DV; None for D.
        heads: HQ; None for as many as the plan has.
        kv_heads: HK; None for HQ.
        dtype: of q, k and v; None for float32, or bfloat16 for a backend without it.
        backward: as in `attention`.
        deterministic: as in `attention`.
        samples: tokens compared per (batch, head), at least 2, of queries and of keys, the first
            and last among them; longer sequences are sampled. The gradients of sampled keys are
            computed from the backend's own out and lse, which the queries have checked.
        seed: of the noise and of the samples.

    Raises:
        MaskplanError: as `attention` does; a wrong result is no error here but in the report.
        PlanTypeError: if a number is no integer, or `dtype` no floating dtype of torch.
        PlanError: if a number is out of range, or there is no such device here.
    """
    known, ran = check_plan_type(plan_of(plan)), check_plan_type(resolved(plan))
    if isinstance(plan, TokenTiles):
        heads = plan.heads * plan.rows_per_token if heads is None else heads
        kv_heads = plan.heads if kv_heads is None else kv_heads
    place = known.device if device is None else placed(device)
    if place.type == "meta":
        raise_no_values("verify")
    head_dim = integer(head_dim, "head_dim", low=1)
    head_dim_v = head_dim if head_dim_v is None else integer(head_dim_v, "head_dim_v", low=1)
    samples, seed = integer(samples, "samples", low=2), integer(seed, "seed")
    dtype = _usual_dtype(backend) if dtype is None else _float_type(dtype)
    dims = (head_dim, head_dim_v)
    check_flag("deterministic", deterministic)
    call, dout, dlse = noise_call(known, dims, (heads, kv_heads), dtype, backward, seed)
    call = replace(call, deterministic=deterministic)
    name, forward_alone, out, lse, dq, dk, dv = _found(call, ran, place, backend, dout, dlse)
    rows = places(call.plan.seqlen_q, samples, seed)
    keys = places(call.plan.seqlen_k, samples, seed + 1)
    found = Results(
        out=out[:, rows],
        lse=lse.to(torch.float32).transpose(1, 2)[:, rows, :, None],
        dq=None if dq is None else dq[:, rows],
        dk=None if dk is None else dk[:, keys],
        dv=None if dv is None else dv[:, keys],
    )
    sampled = len(rows) < call.plan.seqlen_q
    given = (out, lse) if sampled else None
    there = _on(call, place)
    exact = expected(there, torch.float64, dout, dlse, rows, keys, given)
    peer_type = torch.float64 if dtype == torch.float64 else torch.float32
    peer = expected(there, peer_type, dout, dlse, rows, keys, given)
    return VerifyReport(
        backend=name,
        dtype=dtype,
        subject=f"{call.plan.geometry}, D {call.q.shape[3]}, DV {call.v.shape[3]}, "
        f"{call.heads} heads over {call.k.shape[2]}{_read(call, ran, name)}",
        sampled=sampled or len(keys) < call.plan.seqlen_k,
        comparisons=judge(found, exact, peer, call, dout, rows, keys),
        derivatives=_derivatives((dq, dk, dv), exact, peer, call, dout, dlse, seed),
        no_backward=forward_alone,
    )


def _derivatives(
    gradients: tuple[Tensor | None, ...], exact: Results, peer: Results, call: AttentionCall,
    dout: Tensor, dlse: Tensor, seed: int,
) -> tuple[Comparison, ...]:  # fmt: skip
    """Whole gradients along random directions, of a small call; see NOTE [Differences]."""
    found = {name: x for name, x in zip("qkv", gradients, strict=True) if x is not None}
    if not found or not small(call):
        return ()
    level = torch.finfo(torch.float32 if call.q.dtype != torch.float64 else torch.float64).eps
    noise = {}
    for name in found:
        wanted, near = getattr(exact, f"d{name}").double(), getattr(peer, f"d{name}").double()
        error = 2 * (near - wanted).square().mean((1, 3)).sqrt()
        noise[name] = torch.nan_to_num(error) + 16 * level
    return derivatives(call, found, noise, dout, dlse, seed)


def _read(call: AttentionCall, ran: Plan | LoweredPlan, name: str) -> str:
    """How the cpu backend read the keys, in words; nothing of other backends."""
    if name != "cpu":
        return ""
    lowered = ran if isinstance(ran, LoweredPlan) else call.lowered
    return f", {how_read(replace(call, lowered=lowered))}"


def _on(call: AttentionCall, device: torch.device) -> AttentionCall:
    """The call with its tensors on a device, and its plan where it is."""
    return replace(call, q=call.q.to(device), k=call.k.to(device), v=call.v.to(device))


def _found(
    call: AttentionCall,
    plan: Plan | LoweredPlan,
    place: torch.device,
    backend: str,
    dout: Tensor,
    dlse: Tensor,
) -> tuple[str, str | None, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(backend, why there is no backward, out, lse, dq, dk, dv) of the call, on the CPU.

    None for the reason, or for the gradients.
    """
    # An exact plan is lowered where it is, since that takes any blocks, and then moved.
    cache = PlanCache(1) if isinstance(plan, Plan) and plan.device != place else None
    plan = plan if cache is not None else plan.to(place)
    q, k, v = (x.detach().to(place).requires_grad_() for x in (call.q, call.k, call.v))
    asked = asked_of(
        q, k, v, plan, backward=call.backward, deterministic=call.deterministic
    )  # fmt: skip
    forward_alone = _forward_alone(asked, backend)
    if forward_alone is not None:
        q, k, v = q.detach(), k.detach(), v.detach()
    name, out, lse = run(
        q, k, v, plan, scale=call.scale, layout="bshd", backend=backend, backward=call.backward,
        deterministic=call.deterministic, cache=cache,
    )  # fmt: skip
    if forward_alone is not None:
        return name, forward_alone, out.cpu(), lse.cpu(), None, None, None
    given = (dout.to(out.device), dlse.to(lse))
    grads = torch.autograd.grad((out, lse), (q, k, v), given, materialize_grads=True)
    dq, dk, dv = (grad.cpu() for grad in grads)
    return name, None, out.detach().cpu(), lse.detach().cpu(), dq, dk, dv


def _forward_alone(asked: Metadata, backend: str) -> str | None:
    """Why the backend named refuses gradients of a call that it makes without; else None."""
    if backend == "auto":
        return None
    chosen = named(backend)
    alone = status(chosen, replace(asked, differentiable=False))
    return status(chosen, asked).reason if alone.usable else None


def _float_type(dtype: object) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    raise PlanTypeError(
        sentence(
            what="argument is no floating dtype",
            where="dtype",
            got=repr(dtype),
            wanted="a torch.dtype of floating point",
            remedy="pass torch.float32 or torch.bfloat16, say",
        )
    )


def _usual_dtype(backend: str) -> torch.dtype:
    """float32, or bfloat16 for a backend that says that it does not take it."""
    known: Any = None if backend == "auto" else named(backend)
    taken = getattr(known, "DTYPES", (torch.float32,))
    return torch.float32 if torch.float32 in taken else torch.bfloat16
