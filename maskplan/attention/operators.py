"""`maskplan::attention` and its backward as operators of torch, whichever backend runs them.

NOTE [Registration]: `torch.library.Library` and an autograd kernel by hand, in place of
`torch.library.custom_op`: for an operator that takes a list of tensors, the latter flattens and
rebuilds every argument of a call that wants a gradient, 50 microseconds on top of 20.

NOTE [What is saved]: the backward needs the plan's tensors again. They are saved like any tensor,
so that a device plan that was overwritten in place in between (by the next layer's, in static
memory) is refused as torch refuses it for q, and does not give gradients of another mask. Inference
tensors have no version to check and are kept beside.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from maskplan.attention.call import AttentionCall, room
from maskplan.attention.choice import named
from maskplan.attention.dispatch_keys import below_autograd, in_transform
from maskplan.attention.transforms import refusal, refuse_forward_mode, register_vmap
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


def dense_forward(call: AttentionCall, backend: str) -> tuple[Tensor, Tensor]:
    """(out, lse) of a backend, dense in the layout of the call."""
    out, lse = named(backend).forward(call)
    return _laid_out(out, call.layout), lse.contiguous()


def dense_backward(
    call: AttentionCall, backend: str, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of a backend, dense in the layout of the call."""
    dq, dk, dv = named(backend).backward(call, out, lse, dout, dlse)
    layout = call.layout
    return _laid_out(dq, layout), _laid_out(dk, layout), _laid_out(dv, layout)


def _run_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Sequence[Tensor], spec: str, backend: str, scale: float,
    layout: str, backward: str, deterministic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    call = _call(q, k, v, plan, spec, scale, layout, backward, deterministic)
    return dense_forward(call, backend)


def _run_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None,
    plan: Sequence[Tensor], spec: str, backend: str, scale: float, layout: str, backward: str,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`maskplan::attention_backward` of tensors that carry no graph."""
    call = _call(q, k, v, plan, spec, scale, layout, backward, deterministic)
    return dense_backward(call, backend, out, lse, dout, dlse)


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


def _below(operator: Any, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    with below_autograd():
        results: tuple[Tensor, ...] = operator(*inputs)
    return results


def save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Keep what the backward needs; see NOTE [What is saved]."""
    q, k, v, plan, *ctx.rest = inputs
    ctx.beside = plan if any(tensor.is_inference() for tensor in plan) else None
    ctx.save_for_backward(q, k, v, *results, *(plan if ctx.beside is None else ()))
    ctx.set_materialize_grads(False)


def gradients(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None, operator: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of every input of the forward, by `operator`."""
    nothing = (None,) * (1 + len(ctx.rest))
    if dout is None and dlse is None:
        return None, None, None, *nothing
    q, k, v, out, lse, *plan = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    plan = plan if ctx.beside is None else ctx.beside
    return *operator(q, k, v, out, lse, dout, dlse, plan, *ctx.rest), *nothing


class _Attention(Function):
    """The forward with its backward behind it."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        results = _below(attention, inputs)
        save(ctx, inputs, results)
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients(ctx, dout, dlse, attention_backward)


class _Gradients(Function):
    """The backward, which says what is missing when it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        del ctx
        return _below(attention_backward, inputs)

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


class TransformedAttention(Function):
    """The same node for transforms of torch.func, which want the context set up apart.

    Nobody else does: torch then binds a signature in each call, which takes 50 microseconds.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        """`maskplan::attention`."""
        results: tuple[Tensor, ...] = attention(*inputs)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the backward needs."""
        save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of every input; the transforms ask for their graph, used or not."""
        return gradients(ctx, dout, dlse, _TransformedGradients.apply)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """There is none."""
        del ctx, tangents
        raise refusal("a tangent of q, k or v", "gradients in reverse mode")


class _TransformedGradients(Function):
    generate_vmap_rule = True
    backward = _Gradients.backward

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = attention_backward(*inputs)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output


def _autograd_kernel(
    operator: Any, function: type[Function], count: int
) -> Callable[..., tuple[Tensor, ...]]:
    """What runs first in a call of `operator`: `count` of its arguments may want a gradient."""

    def kernel(*inputs: Any) -> tuple[Tensor, ...]:
        tensors = inputs[:count]
        refuse_forward_mode(*tensors)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            if in_transform():
                raise refusal("a second derivative", "first derivatives of q, k and v")
            apply: Any = function.apply
            results: tuple[Tensor, ...] = apply(*inputs)
            return results
        return _below(operator, inputs)

    return kernel


_library.impl("attention", _run_forward, "CompositeExplicitAutograd")
_library.impl("attention_backward", _run_backward, "CompositeExplicitAutograd")
for _name, _operator, _function, _count in (
    ("attention", attention, _Attention, 3),
    ("attention_backward", attention_backward, _Gradients, 7),
):
    _library.impl(_name, _autograd_kernel(_operator, _function, _count), "Autograd")
    register_vmap(_library, f"maskplan::{_name}", _operator, _count)
torch.library.register_fake("maskplan::attention", _fake_forward, lib=_library)
torch.library.register_fake("maskplan::attention_backward", _fake_backward, lib=_library)
