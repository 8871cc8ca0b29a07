"""`attention`: the one way in. It checks the call, chooses the backend and runs it."""

from typing import Any, Literal, overload

import torch
from torch import Tensor

from maskplan.attention import direct, operators
from maskplan.attention.arguments import (
    check_cache,
    check_flag,
    check_plan_type,
    plain_scale,
)
from maskplan.attention.call import AttentionCall, checked
from maskplan.attention.choice import BACKENDS, BackendStatus, decide, metadata, named, status
from maskplan.attention.dispatch_keys import any_autocast, in_transform
from maskplan.attention.facts import facts_of, operands
from maskplan.attention.signature import SettledCalls, plain, signature_of
from maskplan.attention.tiled import resolved
from maskplan.attention.transforms import refuse_functionalize
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.plan_cache import PlanCache
from maskplan.lower.token_tiles import TokenTiles
from maskplan.plan import Plan

_SETTLED = SettledCalls()


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan | TokenTiles,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: Literal[False] = False,
    cache: PlanCache | None = None,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan | TokenTiles,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: Literal[True],
    cache: PlanCache | None = None,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan | TokenTiles,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: bool = False,
    cache: PlanCache | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention over the pairs that `plan` keeps; differentiable in q, k and v.

    A query that sees no key gives zeros, with lse -inf and gradients 0. On the CPU, what a query
    does not select never reaches it, NaN and infinity included; the kernels of fa4 and flex let a
    NaN of V through to every query whose listed blocks hold it.

    Under torch.autocast of their device q, k and v of float32, bfloat16 and float16 are cast to its
    dtype, as for dense attention. Compiled regions take a LoweredPlan; one of equal shapes does not
    compile again.

    Args:
        q: [B, SQ, HQ, D] of float32, bfloat16, float16 or float64; any strides.
        k: [B, SK, HK, D], HQ a multiple of HK; query head h reads KV head h // (HQ / HK).
        v: [B, SK, HK, DV].
        plan: for these lengths, with batch 1 or B and heads 1, HK or HQ; what `plan.lower` made of
            it for an engine; or token tiles, which every backend but flex and fa4 gathers.
        scale: factor of the scores; None for 1 / sqrt(D).
        layout: "bshd", as written here, or "bhsd", with heads before tokens in q, k, v and out.
        backend: "auto", "fa4", "sm100", "flex", "cpu", "reference" or "sm100-emulated". "auto"
            takes the first that supports the call in this order, from shapes, dtypes and devices
            alone; `backends` says why. It never takes "sm100-emulated", which runs the kernels of
            "sm100" in an emulator, on a CPU, for small shapes.
        backward: which side a backward owns: "loop_q" owns keys, streams queries and adds to dQ,
            "loop_k" owns queries, streams keys and adds to dK and dV. "auto" is decided by the
            backend: on "cpu" loop_k for key blocks of a few tokens, else loop_q; for "sm100" by the
            lists of the plan, as `mp.backward_choice` explains; "fa4" and "flex" have one way.
        deterministic: equal calls give equal bits. "cpu", for one number of torch threads,
            "reference" and "flex" always do; the backward of "sm100" does by LoopQ in the plan's
            write order, and refuses backward="loop_k"; that of "fa4" can on SM100 and refuses on
            SM90.
        return_lse: return (out, lse), with lse float32 [B, HQ, SQ] in natural log, differentiable.
        cache: where to keep what a Plan is lowered to, for the next call; the Plan may then be on
            another device than q. None to lower it in each call that needs it.

    Returns:
        out [B, SQ, HQ, DV], or [B, HQ, SQ, DV] with layout "bhsd", in the dtype of q.

    Raises:
        PlanTypeError: on a wrong type, dtype or rank, a TransposedPlan for one.
        PlanError: on shapes, lengths, heads or devices that do not fit each other, or an unknown
            layout, backend or backward.
        UnsupportedError: if the backend cannot make the call, or by a double backward.
    """
    check_flag("return_lse", return_lse)
    _, out, lse = _run(
        q, k, v, plan, scale=scale, layout=layout, backend=backend, backward=backward,
        deterministic=deterministic, cache=cache, wants_lse=return_lse,
    )  # fmt: skip
    if layout == "bhsd":
        out = out.transpose(1, 2)
    if not return_lse:
        return out
    assert lse is not None, "asked for"
    return out, lse.to(torch.float32)


def run(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan | LoweredPlan | TokenTiles, *,
    scale: float | None, layout: str, backend: str, backward: str, deterministic: bool,
    cache: PlanCache | None,
) -> tuple[str, Tensor, Tensor]:  # fmt: skip
    """`attention` as it comes: (backend, out [B, SQ, HQ, DV], lse in the computation's dtype)."""
    name, out, lse = _run(
        q, k, v, plan, scale=scale, layout=layout, backend=backend, backward=backward,
        deterministic=deterministic, cache=cache, wants_lse=True,
    )  # fmt: skip
    assert lse is not None, "asked for"
    return name, out, lse


def _run(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan | LoweredPlan | TokenTiles, *,
    scale: float | None, layout: str, backend: str, backward: str, deterministic: bool,
    cache: PlanCache | None, wants_lse: bool,
) -> tuple[str, Tensor, Tensor | None]:  # fmt: skip
    """`run`; lse may be None where it is not wanted."""
    check_flag("deterministic", deterministic)
    check_cache(cache)
    plan = check_plan_type(resolved(plan, cache))
    q, k, v = _autocast(q, k, v)
    signature = signature_of(q, k, v, plan, layout, backend, backward, deterministic)
    name = None if signature is None else _SETTLED.get(signature)
    if name is not None and isinstance(plan, LoweredPlan):  # NOTE [Settled calls]
        if layout == "bhsd":
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        factor = plain_scale(scale, int(q.shape[3]))
        return name, *_attended(
            q, k, v, plan, name, factor, layout, backward, deterministic, wants_lse
        )
    q, k, v, known = checked(
        q, k, v, plan, layout=layout, backward=backward, moves=cache is not None
    )
    factor = plain_scale(scale, int(q.shape[3]))
    packed = operands(known)
    facts = facts_of(q, k, v, known, packed.spec, layout, backward, deterministic)
    _check_name(backend)
    name = decide(backend, *facts)
    chosen = named(name)
    if isinstance(known, Plan) and (cache is not None or "plan" not in chosen.ENGINES):
        known = _lowered(known, chosen, facts, cache)
        packed = known.packed
    if isinstance(known, LoweredPlan) and (not chosen.OPERATOR or plain(q, k, v)):
        if signature is not None:
            _SETTLED.add(signature, name)
        return name, *_attended(
            q, k, v, known, name, factor, layout, backward, deterministic, wants_lse
        )
    transformed = not torch.compiler.is_compiling() and in_transform()
    if transformed:
        refuse_functionalize()
    call: Any = operators.TransformedAttention.apply if transformed else operators.attention
    out, lse = call(
        q, k, v, packed.tensors, packed.spec, name, factor, layout, backward, deterministic
    )
    return name, out, lse


def _attended(
    q: Tensor, k: Tensor, v: Tensor, lowered: LoweredPlan, name: str, scale: float, layout: str,
    backward: str, deterministic: bool, wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse) by the backend itself, without the operator: q, k and v are [B, S, H, F]."""
    call = AttentionCall(
        q=q, k=k, v=v, lowered=lowered, scale=scale, layout=layout, backward=backward,
        deterministic=deterministic, lse=wants_lse,
    )  # fmt: skip
    chosen = named(name)
    if chosen.OPERATOR:
        return direct.attention(call, name)
    found: tuple[Tensor, Tensor | None] = chosen.attend(call)
    return found


def backends(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan | TokenTiles,
    *,
    layout: str = "bshd",
    backward: str = "auto",
    deterministic: bool = False,
) -> tuple[BackendStatus, ...]:
    """Every backend, in the order of "auto": usable for this call, or the reason why not.

    Arguments and errors as in `attention`.
    """
    check_flag("deterministic", deterministic)
    plan = check_plan_type(resolved(plan))
    q, k, v = _autocast(q, k, v)
    q, k, v, known = checked(q, k, v, plan, layout=layout, backward=backward)
    facts = facts_of(q, k, v, known, operands(known).spec, layout, backward, deterministic)
    return tuple(status(backend, metadata(*facts)) for backend in BACKENDS)


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as torch.autocast wants them for attention: float64 and non-floats stay."""
    if not torch.compiler.is_compiling() and not any_autocast():
        return q, k, v
    kind = q.device.type if isinstance(q, Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    narrow = (torch.float32, torch.bfloat16, torch.float16)
    q, k, v = (x.to(dtype) if isinstance(x, Tensor) and x.dtype in narrow else x for x in (q, k, v))
    return q, k, v


def _check_name(backend: object) -> None:
    """Refuse what is no text, which may not be hashable, before answers are looked up by it."""
    if not isinstance(backend, str):
        named(backend)


def _lowered(
    plan: Plan, backend: Any, facts: tuple[Any, ...], cache: PlanCache | None
) -> LoweredPlan:
    """`plan` lowered for a backend, on the fly or by way of a cache."""
    if torch.compiler.is_compiling():
        engine = "cpu" if "plan" in backend.ENGINES else backend.ENGINES[0]
        raise UnsupportedError(
            sentence(
                what="a Plan cannot be lowered in a compiled region",
                where="attention",
                got=f"a Plan{'' if cache is None else ' and a cache'} for {backend.NAME}",
                wanted="a LoweredPlan, made outside",
                remedy=f'pass plan.lower("{engine}")',
            )
        )
    asked = metadata(*facts)
    lowering = backend.lowering(asked)
    return lowering.of(plan) if cache is None else cache.find(plan, lowering, asked.device)
