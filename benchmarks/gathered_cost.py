"""What a pair costs in the CPU engine, gathered for few or many rows, beside one of large blocks.

`maskplan.lower.contiguity` weighs forms by these ratios. CPU time of one thread, so that other work
on the machine counts little: `python benchmarks/gathered_cost.py`.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import maskplan as mp
from maskplan.lower.gathered import gathered

SEQLEN_K, TOPK, RUNS = 4096, 256, 5


def shortest(work: Callable[[], object]) -> float:
    """Seconds of CPU time of the quickest run."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def ns_per_pair(plan: mp.LoweredPlan, heads: int, head_dim: int, pairs: int) -> tuple[float, float]:
    """(forward, backward) of a plan with one KV head."""
    q = torch.randn(1, plan.seqlen_q, heads, head_dim).requires_grad_()
    k, v = (torch.randn(1, plan.seqlen_k, 1, head_dim).requires_grad_() for _ in range(2))
    out = mp.attention(q, k, v, plan, backend="cpu")
    dout = torch.randn_like(out)

    def forward() -> Tensor:
        return mp.attention(q.detach(), k.detach(), v.detach(), plan, backend="cpu")

    def backward() -> object:
        return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    forward(), backward()
    return 1e9 * shortest(forward) / pairs, 1e9 * shortest(backward) / pairs


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for head_dim in (64, 128):
        blocks = mp.full(512, SEQLEN_K).lower("cpu")
        base = ns_per_pair(blocks, 1, head_dim, 512 * SEQLEN_K)
        print(f"D {head_dim}, blocks of 128: {base[0]:.2f} ns forward, {base[1]:.2f} ns backward")
        for heads in (1, 2, 4, 8, 16, 64, 128):
            seqlen_q = max(4096 // heads, 32)
            keys = torch.rand(1, 1, seqlen_q, SEQLEN_K).topk(TOPK).indices
            plan = mp.from_topk(keys, SEQLEN_K)
            lowered = replace(plan.lower("cpu"), gathered=gathered(plan, "tokens"))
            cost = ns_per_pair(lowered, heads, head_dim, seqlen_q * heads * TOPK)
            ratio = [one / other for one, other in zip(cost, base, strict=True)]
            print(f"  {heads:>3} rows a list: forward {ratio[0]:.2f}x, backward {ratio[1]:.2f}x")


if __name__ == "__main__":
    main()
