"""Calls of gathered attention as test values: lists, noise for them, and the one gate."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import maskplan as mp
from maskplan.lower.gathered import Reading, gathered
from tests.attention.loops import Expected
from tests.attention.problems import TOLERANCE
from tests.attention.token_oracle import attend_lists, lists_of

BACKENDS = ("cpu", "reference")
FORMS = ("blocks", "tiles", "tokens")


class Call:
    """Noise for lists, and the results of whatever runs them, [B, S, H, F]."""

    def __init__(
        self,
        indices: Tensor,
        seqlen_k: int,
        *,
        heads: int,
        kv_heads: int,
        batch: int = 1,
        dims: tuple[int, int] = (16, 16),
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        noise = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise).to(dtype)

        seqlen_q = indices.shape[2]
        self.indices, self.dtype = indices, dtype
        self.q = draw(batch, seqlen_q, heads, dims[0])
        self.k, self.v = (
            draw(batch, seqlen_k, kv_heads, dims[0]),
            draw(batch, seqlen_k, kv_heads, dims[1]),
        )
        self.dout = draw(batch, seqlen_q, heads, dims[1])
        self.dlse = torch.randn(batch, heads, seqlen_q, generator=noise)

    def expected(self) -> Expected:
        lists = lists_of(self.indices)
        scale = self.q.shape[3] ** -0.5
        return attend_lists(self.q, self.k, self.v, lists, scale, self.dout, self.dlse)

    def run(self, plan: object, backend: str = "cpu", **options: object) -> dict[str, Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in (self.q, self.k, self.v))
        out, lse = mp.attention(q, k, v, plan, backend=backend, return_lse=True, **options)
        dq, dk, dv = torch.autograd.grad((out, lse), (q, k, v), (self.dout, self.dlse))
        return {"out": out.detach(), "lse": lse.detach(), "dq": dq, "dk": dk, "dv": dv}

    def forced(self, plan: mp.Plan, form: str) -> mp.LoweredPlan:
        """`plan` with its keys read in one form, whichever is cheaper."""
        lists = None if form == "blocks" else gathered(plan, form)
        return replace(plan.lower("cpu"), reading=Reading.of(lists))


def assert_gate(found: dict[str, Tensor], expected: Expected, dtype: torch.dtype) -> None:
    """The one gate: every number of every (batch, head) within the rounding of its dtype.

    Never a share of them: one head of 128 that is NaN would be 0.8 % of the numbers.
    """
    for name, tensor in found.items():
        right, values = getattr(expected, name), tensor.double().numpy()
        assert values.shape == right.shape, name
        if name == "lse":
            right, values = right[..., None].swapaxes(1, 2), values[..., None].swapaxes(1, 2)
        limit = TOLERANCE[torch.float32 if name == "lse" and dtype == torch.float64 else dtype]
        finite = np.isfinite(right)
        np.testing.assert_array_equal(values[~finite], right[~finite], err_msg=name)
        right, values = np.where(finite, right, 0), np.where(finite, values, 0)
        size = np.abs(right).max(axis=(1, 3), initial=1.0)
        worst = np.abs(values - right).max(axis=(1, 3), initial=0.0) / size
        assert (worst <= limit).all(), f"{name}: {worst.max():.2e} of the largest in a head"


def random_lists(shape: tuple[int, ...], topk: int, seqlen_k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, seqlen_k, generator=generator).argsort(-1)[..., :topk].int()
