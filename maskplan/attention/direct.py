"""The registered operator's work in eager mode, without the operator.

NOTE [Direct calls]: a call of `maskplan::attention` costs the dispatcher two rounds through Python
with a list of tensors, and the plan is put together again from them: 45 microseconds, where a
kernel of a short sequence takes 20. Nobody sees the operator where no compiler, no mode and no
transform looks on; then backends are called as they are, with the plan at hand. The node of the
graph, what it saves and what it refuses are the same.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter

from maskplan.attention import operators
from maskplan.attention.call import AttentionCall
from maskplan.attention.dispatch_keys import below_autograd, unobserved
from maskplan.attention.transforms import refuse_forward_mode

_PLAIN = (Tensor, Parameter)


def possible(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nobody could tell a direct call from one of the operator."""
    if torch.compiler.is_compiling():
        return False
    return all(type(x) in _PLAIN for x in (q, k, v)) and unobserved()


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
            results = operators.dense_forward(call, backend)
        packed = call.lowered.packed
        rest = (
            packed.spec, backend, call.scale, call.layout, call.backward, call.deterministic,
        )  # fmt: skip
        operators.save(ctx, (q, k, v, packed.tensors, *rest), results)
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = operators.gradients(ctx, dout, dlse, _backward)
        return *grads[:3], None, None


def _backward(*inputs: Any) -> tuple[Tensor, ...]:
    """`operators.attention_backward`, by itself where a graph of it or a mode is asked for."""
    results: tuple[Tensor, ...]
    if torch.is_grad_enabled() or not unobserved():
        results = operators.attention_backward(*inputs)
        return results
    with below_autograd():
        results = operators.run_backward(*inputs)
    return results
