"""Calls on a CUDA GPU: what a backend makes, whether it is right, and a module that attends."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import maskplan as mp
from maskplan.attention import attention
from tests.attention.problems import Problem
from tests.oracle import plan_of_dense

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU"),
    # Compilers, on their way, import parts of torch that torch has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

CUDA = "cuda"
ENGINES = ("flex", "fa4")
NARROW = torch.bfloat16
TOKENS = 400  # three whole blocks and a part of one: more than one tile


def usable(backend: str, plan: mp.Plan, heads: tuple[int, int], dims: tuple[int, int], **options):
    """Skip, with the backend's own reason, where it does not make such a call."""
    dtype = options.pop("dtype", NARROW)
    q = torch.empty(1, plan.seqlen_q, heads[0], dims[0], device=CUDA, dtype=dtype)
    k = torch.empty(1, plan.seqlen_k, heads[1], dims[0], device=CUDA, dtype=dtype)
    v = torch.empty(1, plan.seqlen_k, heads[1], dims[1], device=CUDA, dtype=dtype)
    one = plan.with_heads(heads[0]) if plan.heads > 1 else plan
    one = replace(one, pattern_id=one.pattern_id[:1])
    said = mp.backends(q.requires_grad_(), k, v, one.to(CUDA), **options)
    (reason,) = (status.reason for status in said if status.name == backend)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def right(plan: mp.Plan, backend: str, heads=(2, 2), dims=(64, 64), **options: object) -> None:
    usable(backend, plan, heads, dims, dtype=options.get("dtype", NARROW))
    report = mp.verify(
        plan, backend, device=CUDA, heads=heads[0], kv_heads=heads[1], head_dim=dims[0],
        head_dim_v=dims[1], samples=64, **({"dtype": NARROW} | options),
    )  # fmt: skip

    assert report.backend == backend
    assert report.ok, str(report)


def plan_of(mask: Tensor, block_size: tuple[int, int]) -> mp.Plan:
    """The plan of bool [batch, heads, SQ, SK]."""
    batch, heads = mask.shape[:2]
    ids = torch.arange(batch * heads).view(batch, heads)
    return plan_of_dense(mask.flatten(0, 1), ids, block_size).canonical()


def random_mask(*shape: int, density: float, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def on_gpu(made: Problem) -> Problem:
    """The problem there; a Plan becomes a device plan."""
    moved = {name: getattr(made, name).to(CUDA) for name in ("q", "k", "v", "dout", "dlse")}
    return replace(made, plan=made.plan.to(CUDA), **moved)


class Block(nn.Module):
    """LayerNorm, projection to q, k and v, attention, projection of its output."""

    def __init__(self, heads: int = 2, dim: int = 64) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.norm, self.qkv = nn.LayerNorm(heads * dim), nn.Linear(heads * dim, 3 * heads * dim)
        self.project = nn.Linear(heads * dim, heads * dim)

    def forward(self, x: Tensor, plan: object) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, self.dim)).unbind(2)
        return x + self.project(attention(q, k, v, plan).flatten(2))


def lowered_plans(backend: str, tokens: int = TOKENS) -> tuple[mp.LoweredPlan, mp.LoweredPlan]:
    plans = (
        mp.causal(tokens, tokens, block_size=(128, 128)),
        mp.sliding_window(tokens, tokens, block_size=(128, 128), left=90, right=40),
    )
    usable(backend, plans[0], (2, 2), (64, 64))
    first, second = (plan.lower(backend, head_dim=64, heads=2).to(CUDA) for plan in plans)
    return first, second


def gradients(block: nn.Module, run, plan: object, x: Tensor) -> list[Tensor]:
    block.zero_grad()
    x = x.detach().requires_grad_()
    out = run(x, plan)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


def close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        size = float(other.float().abs().max())
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * size)
