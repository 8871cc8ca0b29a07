"""The arguments of an attention call, checked one by one and against each other."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.plan_cache import PlanCache
from maskplan.plan import Plan, TransposedPlan


def _error(kind: type[PlanError] | type[PlanTypeError], **parts: Any) -> Exception:
    return kind(sentence(**parts))


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of `choices`.

    Raises:
        PlanError: if it is none.
    """
    if not isinstance(value, str) or value not in choices:
        raise _error(
            PlanError,
            what=f"unknown {name}",
            where="attention",
            got=repr(value),
            wanted=" or ".join(repr(choice) for choice in choices),
            remedy=f"pass one of these as {name}",
        )


def check_tensors(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    """Dense float tensors of rank 4, of one dtype and device.

    Raises:
        PlanTypeError: on a wrong type, dtype or rank.
        PlanError: if they are on several devices.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        known = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not known or tensor.ndim != 4 or not tensor.is_floating_point():
            raise _error(
                PlanTypeError,
                what="argument is not a dense float tensor of rank 4",
                where=name,
                got=_shape(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__,
                wanted=f"a dense float tensor [{', '.join(layout)}]",
                remedy="add the missing axes, or convert it",
            )
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise _error(
                PlanTypeError,
                what="dtypes differ",
                where=name,
                got=str(tensor.dtype).removeprefix("torch."),
                wanted=f"{str(q.dtype).removeprefix('torch.')}, as q",
                remedy=f"convert {name} or q",
            )
        if tensor.device != q.device:
            raise _error(
                PlanError,
                what="devices differ",
                where=name,
                got=str(tensor.device),
                wanted=f"{q.device}, as q",
                remedy=f"move {name} to {q.device}",
            )


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Agreement of q, k and v, all [B, S, H, F].

    Raises:
        PlanError: if they do not agree.
    """
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape[0] != q.shape[0]:
            raise _error(
                PlanError,
                what="batch sizes differ",
                where=name,
                got=tensor.shape[0],
                wanted=f"{q.shape[0]}, as q",
                remedy=f"expand {name} to the batch of q",
            )
    if q.shape[3] != k.shape[3] or q.shape[3] == 0 or v.shape[3] == 0:
        raise _error(
            PlanError,
            what="head dims do not fit",
            where="q, k and v",
            got=f"{q.shape[3]}, {k.shape[3]} and {v.shape[3]}",
            wanted="q and k alike, none zero",
            remedy="pass q and k with one head dim; v may have its own",
        )
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise _error(
            PlanError,
            what="k and v differ in length or heads",
            where="v",
            got=f"{v.shape[1]} tokens, {v.shape[2]} heads",
            wanted=f"{k.shape[1]} tokens, {k.shape[2]} heads, as k",
            remedy="pass k and v of the same tokens",
        )
    if q.shape[2] % k.shape[2] if k.shape[2] else q.shape[2]:
        raise _error(
            PlanError,
            what="query heads do not divide among KV heads",
            where="q",
            got=f"HQ={q.shape[2]} with HK={k.shape[2]}",
            wanted="HQ a multiple of HK",
            remedy="repeat KV heads, or check which axis is heads",
        )


def check_plan(q: Tensor, k: Tensor, plan: Plan | LoweredPlan, *, moves: bool) -> None:
    """Agreement of the plan with q and k; with `moves` a Plan may be on another device.

    Raises:
        PlanError: if they do not agree.
    """
    for axis, tensor, planned in (("q", q, plan.seqlen_q), ("k", k, plan.seqlen_k)):
        if tensor.shape[1] != planned:
            raise _error(
                PlanError,
                what="plan is for another length",
                where=axis,
                got=f"{tensor.shape[1]} tokens",
                wanted=f"{planned} tokens, as the plan's seqlen_{axis}",
                remedy="build the plan for this length, crop it, or check the layout",
            )
    heads = sorted({1, int(k.shape[2]), int(q.shape[2])})
    if plan.heads not in heads:
        raise _error(
            PlanError,
            what="plan has another number of heads",
            where="plan",
            got=plan.heads,
            wanted=f"one of {heads} (1, KV heads, query heads)",
            remedy="use plan.with_heads, or check which axis is heads",
        )
    if plan.batch not in (1, int(q.shape[0])):
        raise _error(
            PlanError,
            what="plan has another batch size",
            where="plan",
            got=plan.batch,
            wanted=" or ".join(map(str, sorted({1, int(q.shape[0])}))),
            remedy="build the plan for this batch",
        )
    if plan.device != q.device and not (moves and isinstance(plan, Plan)):
        raise _error(
            PlanError,
            what="devices differ",
            where="plan",
            got=str(plan.device),
            wanted=f"{q.device}, as q",
            remedy=f"move q, k and v to {plan.device}, or the plan to {q.device}",
        )


def plain_scale(scale: object, head_dim: int) -> float:
    """`scale` as a float, 1 / sqrt(D) for None.

    Raises:
        PlanTypeError: if it is no number, or a tensor that wants a gradient, which would get none.
    """
    if scale is None:
        return float(head_dim**-0.5)
    if isinstance(scale, float):
        return scale
    value: Any = scale
    number = isinstance(scale, (int, float))  # a compiler's own too, which has no attributes
    single = number or getattr(scale, "shape", None) == ()
    if single and (number or not getattr(scale, "requires_grad", False)):
        # Text and complex numbers have the shape of one number; an int may exceed every float.
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(value)
    raise _error(
        PlanTypeError,
        what="scale is not a plain number",
        where="scale",
        got=f"{scale!r:.80} of type {type(scale).__name__}",
        wanted="a float without a gradient of its own, or None for 1 / sqrt(D)",
        remedy="pass a float; multiply q by a scale that is learned",
    )


def check_cache(cache: object) -> None:
    """Refuse what is neither a PlanCache nor None.

    Raises:
        PlanTypeError: if it is neither.
    """
    if cache is not None and not isinstance(cache, PlanCache):
        raise _error(
            PlanTypeError,
            what="argument is no cache of plans",
            where="cache",
            got=type(cache).__name__,
            wanted="a maskplan.PlanCache, or None",
            remedy="make one, and hold it from call to call",
        )


def check_flag(name: str, value: object) -> None:
    """Refuse what is no bool.

    Raises:
        PlanTypeError: if it is none.
    """
    if not isinstance(value, bool):
        raise _error(
            PlanTypeError,
            what="argument is no flag",
            where=name,
            got=f"{value!r:.80} of type {type(value).__name__}",
            wanted="True or False",
            remedy="pass one of these",
        )


def check_plan_type(plan: object) -> Plan | LoweredPlan:
    """`plan` as a Plan or a LoweredPlan.

    Raises:
        PlanTypeError: if it is something else, a TransposedPlan above all.
    """
    if isinstance(plan, (LoweredPlan, Plan)):
        return plan
    transposed = isinstance(plan, TransposedPlan)
    raise _error(
        PlanTypeError,
        what="plan lists queries per key block" if transposed else "plan is of the wrong type",
        where="plan",
        got=type(plan).__name__,
        wanted="a Plan, which lists keys per query block",
        remedy="pass plan.transpose()" if transposed else "make one with a builder",
    )
