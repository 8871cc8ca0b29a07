"""`maskplan::attention` and its backward as operators of torch, whichever backend runs them.

NOTE [Registration]: `torch.library.Library` and an autograd kernel by hand, in place of
`torch.library.custom_op`: for an operator that takes a list of tensors, the latter flattens and
rebuilds every argument of a call that wants a gradient, 50 microseconds on top of 20.

NOTE [What is saved]: the backward needs the plan's tensors again. They are saved like any tensor,
so that a device plan that was overwritten in place in between (by the next layer's, in static
memory) is refused as torch refuses it for q, and does not give gradients of another mask. Inference
tensors have no version to check and are kept beside.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from maskplan.attention.call import AttentionCall, room
from maskplan.attention.choice import named
from maskplan.attention.dispatch_keys import below_autograd
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.lowered import restore

# The plan is a list of tensors and a text: see NOTE [Packed plans]. The last six are as in
# `AttentionCall`. Shapes are [B, S, H, F] in every layout, which says how results lie in memory.
_REST = (
    "Tensor[] plan, str spec, str backend, float scale, str layout, str backward, "
    "bool deterministic"
)
_FORWARD = f"attention(Tensor q, Tensor k, Tensor v, {_REST}) -> (Tensor out, Tensor lse)"
_BACKWARD = (
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, "
    f"Tensor? dlse, {_REST}) -> (Tensor dq, Tensor dk, Tensor dv)"
)

_library: Any = torch.library.Library("maskplan", "DEF")  # type: ignore[no-untyped-call]
_library.define(_FORWARD, tags=(torch.Tag.pt2_compliant_tag,))
_library.define(_BACKWARD, tags=(torch.Tag.pt2_compliant_tag,))

attention = torch.ops.maskplan.attention.default
attention_backward = torch.ops.maskplan.attention_backward.default


def _call(
    q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], spec: str, scale: float, layout: str,
    backward: str, deterministic: bool,
) -> AttentionCall:  # fmt: skip
    return AttentionCall(
        q=q, k=k, v=v, lowered=restore(plan, spec), scale=scale, layout=layout, backward=backward,
        deterministic=deterministic,
    )  # fmt: skip


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    """`tensor` [B, S, H, F], dense in `layout`: itself if it is."""
    dense = tensor if layout == "bshd" else tensor.transpose(1, 2)
    if dense.is_contiguous():
        return tensor
    return room(tensor, int(tensor.shape[3]), tensor.dtype, layout).copy_(tensor)


def _run_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], spec: str, backend: str, scale: float,
    layout: str, backward: str, deterministic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    call = _call(q, k, v, plan, spec, scale, layout, backward, deterministic)
    out, lse = named(backend).forward(call)
    return _laid_out(out, layout), lse.contiguous()


def _run_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None,
    plan: Sequence[Tensor], spec: str, backend: str, scale: float, layout: str, backward: str,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    call = _call(q, k, v, plan, spec, scale, layout, backward, deterministic)
    dq, dk, dv = named(backend).backward(call, out, lse, dout, dlse)
    return _laid_out(dq, layout), _laid_out(dk, layout), _laid_out(dv, layout)


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], spec: str, backend: str, scale: float,
    layout: str, backward: str, deterministic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del k, plan, spec, backend, scale, backward, deterministic
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=wide)
    return room(q, int(v.shape[3]), q.dtype, layout), lse


def _fake_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None,
    plan: Sequence[Tensor], spec: str, backend: str, scale: float, layout: str, backward: str,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del out, lse, dout, dlse, plan, spec, backend, scale, backward, deterministic
    dq, dk, dv = (room(x, int(x.shape[3]), x.dtype, layout) for x in (q, k, v))
    return dq, dk, dv


class _Attention(Function):
    """The forward with its backward behind it."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], *rest: Any
    ) -> tuple[Tensor, Tensor]:
        with below_autograd():
            results: tuple[Tensor, Tensor] = attention(q, k, v, plan, *rest)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, plan, *ctx.rest = inputs
        # See NOTE [What is saved].
        ctx.beside = plan if any(tensor.is_inference() for tensor in plan) else None
        ctx.save_for_backward(q, k, v, *output, *(() if ctx.beside is not None else plan))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * (1 + len(ctx.rest))
        if dout is None and dlse is None:
            return None, None, None, *nothing
        q, k, v, out, lse, *plan = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        plan = plan if ctx.beside is None else ctx.beside
        return *attention_backward(q, k, v, out, lse, dout, dlse, plan, *ctx.rest), *nothing


class _Gradients(Function):
    """The backward, which says what is missing when it is differentiated again."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        with below_autograd():
            grads: tuple[Tensor, Tensor, Tensor] = attention_backward(*inputs)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        del ctx, grads
        raise UnsupportedError(
            sentence(
                what="double backward is not supported",
                where="the backward of attention",
                got="a gradient of its gradient",
                wanted="first derivatives of q, k and v",
                remedy="detach the gradients, or differentiate a dense softmax",
            )
        )


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _differentiable_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, Tensor]:
    run: Any = _Attention.apply if _wants_gradient(q, k, v) else _Attention.forward
    results: tuple[Tensor, Tensor] = run(q, k, v, plan, *rest)
    return results


def _differentiable_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    run: Any = _Gradients.apply if _wants_gradient(*inputs[:7]) else _Gradients.forward
    grads: tuple[Tensor, Tensor, Tensor] = run(*inputs)
    return grads


_library.impl("attention", _run_forward, "CompositeExplicitAutograd")
_library.impl("attention_backward", _run_backward, "CompositeExplicitAutograd")
_library.impl("attention", _differentiable_forward, "Autograd")
_library.impl("attention_backward", _differentiable_backward, "Autograd")
torch.library.register_fake("maskplan::attention", _fake_forward, lib=_library)
torch.library.register_fake("maskplan::attention_backward", _fake_backward, lib=_library)
