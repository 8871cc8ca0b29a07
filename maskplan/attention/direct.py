"""The registered operator's work in eager mode, without the operator.

NOTE [Direct calls]: a call of `maskplan::attention` costs the dispatcher two rounds through Python
with a list of tensors, and the plan is put together again from them: 45 microseconds, where a
kernel of a short sequence takes 20. Nobody sees the operator where no compiler, no mode, no
transform and no trace looks on; then backends are called as they are, with the plan at hand. The
node of the graph and what it refuses are the same. The plan is not saved tensor by tensor, which
costs a microsecond each: it is held as it is, and what was written to it since is seen by torch's
counts (NOTE [Overwritten plans]).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from maskplan.attention import operators
from maskplan.attention.call import AttentionCall
from maskplan.attention.dispatch_keys import below_autograd, unobserved
from maskplan.attention.transforms import refuse_forward_mode
from maskplan.errors import PlanError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.packing import Packed


def attention(call: AttentionCall, backend: str) -> tuple[Tensor, Tensor]:
    """(out, lse) as `operators.attention` gives them."""
    q, k, v = call.q, call.k, call.v
    refuse_forward_mode(q, k, v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        apply: Any = _Direct.apply
        results: tuple[Tensor, Tensor] = apply(q, k, v, call, backend)
        return results
    with below_autograd():
        return operators.dense_forward(call, backend)


class _Direct(Function):
    """`operators.attention` with its backward behind it."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, backend: str
    ) -> tuple[Tensor, Tensor]:
        with below_autograd():
            out, lse = operators.dense_forward(call, backend)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        # Not the call, which holds q, k and v: whoever offloads saved tensors wants them gone.
        ctx.lowered, ctx.writes = call.lowered, call.lowered.packed.writes()
        ctx.rest = (backend, call.scale, call.layout, call.backward, call.deterministic)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        if dout is None and dlse is None:
            return None, None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        _check_unwritten(ctx.lowered.packed, ctx.writes)
        grads = _gradients((q, k, v, out, lse, dout, dlse), ctx.lowered, *ctx.rest)
        return *grads, None, None


def _gradients(
    tensors: tuple[Any, ...], lowered: LoweredPlan, backend: str, scale: float, layout: str,
    backward: str, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`operators.attention_backward`, by itself where a graph of it or a mode is asked for."""
    grads: tuple[Tensor, Tensor, Tensor]
    if torch.is_grad_enabled() or not unobserved():
        packed = lowered.packed
        grads = operators.attention_backward(
            *tensors, packed.tensors, packed.spec, backend, scale, layout, backward, deterministic
        )
        return grads
    q, k, v, *results = tensors
    call = AttentionCall(
        q=q, k=k, v=v, lowered=lowered, scale=scale, layout=layout, backward=backward,
        deterministic=deterministic,
    )  # fmt: skip
    with below_autograd():
        return operators.dense_backward(call, backend, *results)


def _check_unwritten(packed: Packed, writes: tuple[int, ...]) -> None:
    """Refuse gradients of another mask than that of the forward.

    Raises:
        PlanError: if a tensor of the plan was written to since `writes` were counted.
    """
    now = packed.writes()
    if now == writes:
        return
    changed = [number for number, (a, b) in enumerate(zip(writes, now, strict=True)) if a != b]
    raise PlanError(
        sentence(
            what="plan was overwritten between forward and backward",
            where="the backward of attention",
            got=f"a tensor of the plan modified by an inplace operation ({len(changed)} of "
            f"{len(now)} tensors)",
            wanted="the plan that the forward ran",
            remedy="give each layer a plan of its own, or run its backward first",
        )
    )
