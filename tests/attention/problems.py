"""Attention calls as test values: tensors, a plan and its dense mask; how to run and judge them."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import maskplan as mp
from maskplan.attention import attention
from tests import strategies
from tests.attention.loops import Expected, attend
from tests.oracle import plan_of_dense

# (backend, backward): every way there is to run a call.
WAYS = (("cpu", "loop_q"), ("cpu", "loop_k"), ("reference", "auto"))
# Errors grow with the size of what is summed; these are far above rounding and below any bug.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True)
class Problem:
    """One call: q, k, v, dout are [B, S, H, F], dlse [B, HQ, SQ], and mask what the plan means."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    dlse: Tensor
    plan: mp.Plan
    mask: Tensor
    scale: float | None = None
    layout: str = "bshd"

    def expected(self) -> Expected:
        scale = self.q.shape[3] ** -0.5 if self.scale is None else self.scale
        return attend(self.q, self.k, self.v, self.mask, scale, self.dout, self.dlse)

    def run(self, backend: str = "cpu", backward: str = "auto", **options: object) -> dict:
        """Results and gradients, out and gradients as [B, S, H, F]."""
        turn = (lambda x: x.transpose(1, 2)) if self.layout == "bhsd" else (lambda x: x)
        q, k, v = (turn(x.detach()).requires_grad_() for x in (self.q, self.k, self.v))
        out, lse = attention(
            q,
            k,
            v,
            self.plan,
            scale=self.scale,
            layout=self.layout,
            backend=backend,
            backward=backward,
            return_lse=True,
            **options,
        )
        grads = torch.autograd.grad(
            (out, lse), (q, k, v), (turn(self.dout), self.dlse), materialize_grads=True
        )
        dq, dk, dv = (turn(grad) for grad in grads)
        return {"out": turn(out.detach()), "lse": lse.detach(), "dq": dq, "dk": dk, "dv": dv}


def problem(
    mask: Tensor,
    block_size: tuple[int, int],
    *,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int | None = None,
    dims: tuple[int, int] = (16, 16),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: object,
) -> Problem:
    """Noise under `mask`, bool [1 or B, heads of the plan, SQ, SK]."""
    noise = torch.Generator().manual_seed(seed)
    kv_heads = heads if kv_heads is None else kv_heads
    plan_batch, plan_heads, seqlen_q, seqlen_k = mask.shape
    ids = torch.arange(plan_batch * plan_heads).view(plan_batch, plan_heads)
    flat = mask.reshape(plan_batch * plan_heads, seqlen_q, seqlen_k)
    if seqlen_q == 0:
        ids, flat = ids * 0, flat[:1]

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise).to(dtype)

    return Problem(
        q=draw(batch, seqlen_q, heads, dims[0]),
        k=draw(batch, seqlen_k, kv_heads, dims[0]),
        v=draw(batch, seqlen_k, kv_heads, dims[1]),
        dout=draw(batch, seqlen_q, heads, dims[1]),
        dlse=draw(batch, heads, seqlen_q).float(),
        plan=plan_of_dense(flat, ids, block_size).canonical(),
        mask=mask,
        **options,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any small call: ragged lengths, odd blocks, groups, shared plans, layouts and strides."""
    geometry = draw(strategies.geometries())
    batch, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 3))
    shape = (
        draw(st.sampled_from([1, batch])),
        draw(st.sampled_from([1, kv_heads, heads])),
        geometry.seqlen_q,
        geometry.seqlen_k,
    )
    made = problem(
        draw(strategies.dense_masks(shape)),
        geometry.block_size,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        dims=(draw(st.sampled_from([1, 5, 16, 33])), draw(st.sampled_from([1, 7, 16, 40]))),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(st.integers(0, 2**31)),
        scale=draw(st.sampled_from([None, 0.3, -0.5, 0.0])),
        layout=draw(st.sampled_from(["bshd", "bhsd"])),
    )
    return replace(
        made, **{name: _strided(draw, getattr(made, name)) for name in ("q", "k", "v", "dout")}
    )


def _strided(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """Equal shape under other strides, or one batch or head seen as many."""
    kind = draw(st.sampled_from(["as is", "restrided", "one batch", "one head", "one token"]))
    if kind == "restrided":
        return strategies.restrided(draw, tensor)
    axis = {"one batch": 0, "one token": 1, "one head": 2}.get(kind)
    if axis is None or not tensor.numel():
        return tensor
    return tensor.narrow(axis, 0, 1).expand(tensor.shape)


def assert_close(
    found: dict, expected: Expected, dtype: torch.dtype, *, kinds: bool = True
) -> None:
    """Equal but for rounding, with NaN and infinities in the same places.

    Without `kinds` an infinity may stand where a NaN should: where infinities cancel, formulas that
    are equal over the reals differ.
    """
    for name, tensor in found.items():
        right = getattr(expected, name)
        limit = TOLERANCE[torch.float32 if name == "lse" and dtype == torch.float64 else dtype]
        values = tensor.double().numpy()
        assert values.shape == right.shape, name
        finite = np.isfinite(right)
        np.testing.assert_array_equal(np.isfinite(values), finite, err_msg=name)
        if kinds:
            nan = np.isnan(right[~finite])
            np.testing.assert_array_equal(np.isnan(values[~finite]), nan, err_msg=name)
        size = max(1.0, np.abs(right[finite]).max(initial=0.0))
        worst = np.abs(values[finite] - right[finite]).max(initial=0.0)
        assert worst <= limit * size, f"{name}: {worst:.2e} beside values up to {size:.2e}"
