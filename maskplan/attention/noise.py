"""Seeded noise that fits a plan, and the tokens of it that are compared."""

import torch
from torch import Tensor

from maskplan.attention.call import AttentionCall, make_call
from maskplan.geometry import integer
from maskplan.lower.lowered import LoweredPlan
from maskplan.plan import Plan


def noise_call(
    plan: Plan | LoweredPlan,
    dims: tuple[int, int],
    heads: tuple[int | None, int | None],
    dtype: torch.dtype,
    backward: str,
    seed: int,
) -> tuple[AttentionCall, Tensor, Tensor]:
    """(call, dout, dlse) of noise that fits the plan, all on the CPU."""
    if isinstance(plan, LoweredPlan):
        assert plan.plan is not None, "a plan was lowered"
        plan = plan.plan
    plan = plan.cpu()
    query_heads = plan.heads if heads[0] is None else integer(heads[0], "heads", low=1)
    kv_heads = query_heads if heads[1] is None else integer(heads[1], "kv_heads", low=1)
    noise = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise, device="cpu").to(dtype)

    q = draw(plan.batch, plan.seqlen_q, query_heads, dims[0])
    k = draw(plan.batch, plan.seqlen_k, kv_heads, dims[0])
    v = draw(plan.batch, plan.seqlen_k, kv_heads, dims[1])
    dout = draw(plan.batch, plan.seqlen_q, query_heads, dims[1])
    dlse = draw(plan.batch, query_heads, plan.seqlen_q).float()
    call = make_call(
        q, k, v, plan, scale=None, layout="bshd", backward=backward, deterministic=False
    )
    return call, dout, dlse


def places(length: int, samples: int, seed: int) -> Tensor:
    """All of [0, length), or `samples` of it in order, the first and the last among them."""
    if length <= samples:
        return torch.arange(length, device="cpu")
    noise = torch.Generator().manual_seed(seed)
    inner = 1 + torch.randperm(length - 2, generator=noise, device="cpu")[: max(samples - 2, 0)]
    ends = torch.tensor([0, length - 1], device="cpu")
    return torch.cat([ends, inner]).sort().values
