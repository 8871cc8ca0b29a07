"""The autograd node around a backend's forward and backward."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from maskplan.attention.call import AttentionCall
from maskplan.errors import UnsupportedError, sentence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """A backend, and a call without its tensors, which autograd has to hold itself."""

    backend: ModuleType
    call: AttentionCall

    def of(self, q: Tensor, k: Tensor, v: Tensor) -> AttentionCall:
        return replace(self.call, q=q, k=k, v=v)


def run(backend: ModuleType, call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV] in the dtype of q, lse float32 [B, HQ, SQ]), both differentiable."""
    hole = torch.empty(0, device="cpu")
    job = _Job(backend=backend, call=replace(call, q=hole, k=hole, v=hole))
    apply: Any = _Attention.apply
    results: tuple[Tensor, Tensor] = apply(job, call.q, call.k, call.v)
    return results


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = job.backend.forward(job.of(q, k, v))
        ctx.job = job
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        # A copy, where the backend computed in float32: a saved output must not be handed out too.
        return out, lse.to(torch.float32, copy=True)

    @staticmethod
    def backward(
        ctx: Any, dout: Tensor | None, dlse: Tensor | None
    ) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        if dout is None and dlse is None:
            return None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        apply: Any = _Gradients.apply
        return None, *apply(ctx.job, q, k, v, out, lse, dout, dlse)


class _Gradients(Function):
    """The backward as a node of its own, so that going through it again can say what is missing."""

    @staticmethod
    def forward(
        ctx: Any, job: _Job, q: Tensor, k: Tensor, v: Tensor, *results: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        del ctx
        grads: tuple[Tensor, Tensor, Tensor] = job.backend.backward(job.of(q, k, v), *results)
        return grads

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
