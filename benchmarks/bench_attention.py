"""How fast the cpu backend attends: its rate beside dense SDPA and FlexAttention in the same run.

A rate counts kept pairs alone: 4 * pairs * D floating-point operations forward, 10 * pairs * D
backward. Dense SDPA attends to all pairs, so a ratio of 1 means that no time is lost to sparsity.
FlexAttention is compiled once per call shape and walks the same block lists; it has no backward on
a CPU. Runs are interleaved and every figure is a median.

    python benchmarks/bench_attention.py [--runs 5] [--no-flex]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import maskplan as mp

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan and the shapes it is run with; `mask_mod` says the same to FlexAttention."""

    name: str
    plan: mp.Plan
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 128
    dtype: torch.dtype = torch.float32
    mask_mod: MaskMod | None = None
    flex: bool = True
    noise: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def draw(self, length: int, heads: int) -> Tensor:
        """[1, heads, length, D], laid out as the cases call: heads before tokens."""
        shape = (1, heads, length, self.head_dim)
        return torch.randn(shape, generator=self.noise).to(self.dtype)

    @property
    def pairs(self) -> float:
        """Kept pairs over all heads."""
        return self.plan.stats().density * self.plan.seqlen_q * self.plan.seqlen_k * self.heads


def random_blocks(seqlen: int, heads: int, block: tuple[int, int], density: float) -> mp.Plan:
    """Whole blocks kept at random."""
    noise = torch.Generator().manual_seed(1)
    shape = (1, heads, -(-seqlen // block[0]), -(-seqlen // block[1]))
    kept = torch.rand(shape, generator=noise) < density
    return mp.from_block_mask(kept, seqlen, seqlen, block_size=block)


def random_tokens(seqlen: int, topk: int) -> mp.Plan:
    """`topk` keys of each query, at random, one token a block."""
    noise = torch.Generator().manual_seed(2)
    indices = torch.rand(seqlen, seqlen, generator=noise).topk(topk).indices.sort(1).values
    return mp.from_topk(indices.int()[None, None], seqlen, block_size=(1, 1))


def causal_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Query q sees keys up to q."""
    return q >= k


def window_mod(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Query q sees the 512 keys up to q."""
    return (q >= k) & (q - k < 512)


def cases() -> list[Case]:
    """What is measured, the first being the one that has a target."""
    blocks = random_blocks(8192, 4, (128, 128), 0.1)
    causal = mp.causal(8192, 8192, block_size=(128, 128))
    window = mp.sliding_window(8192, 8192, left=511, right=0, block_size=(128, 128))
    grouped = random_blocks(8192, 2, (128, 128), 0.1)
    small = random_blocks(256, 1, (64, 64), 0.5)
    return [
        Case(name="random blocks, 0.1", plan=blocks),
        Case(name="the same, bfloat16", plan=blocks, dtype=torch.bfloat16),
        Case(name="the same, head dim 64", plan=blocks, head_dim=64),
        Case(name="8 heads over 2", plan=grouped, heads=8, kv_heads=2),
        Case(name="causal", plan=causal, mask_mod=causal_mod),
        Case(name="window of 512", plan=window, mask_mod=window_mod),
        Case(name="blocks of 64", plan=random_blocks(8192, 4, (64, 64), 0.1)),
        Case(name="blocks of 384", plan=random_blocks(8192, 4, (384, 384), 0.1)),
        Case(name="queries x 128 keys", plan=random_blocks(4096, 1, (1, 128), 0.1), flex=False),
        Case(
            name="the same, 8 heads over 1",
            plan=random_blocks(4096, 1, (1, 128), 0.1),
            heads=8,
            kv_heads=1,
            flex=False,
        ),
        Case(name="top 256 of 2048 tokens", plan=random_tokens(2048, 256), flex=False),
        Case(name="256 tokens, 1 head", plan=small, heads=1, kv_heads=1),
    ]


def medians(works: dict[str, Work], runs: int) -> dict[str, float]:
    """Median seconds of each, run in turn, after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if run:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def flex_lists(case: Case) -> BlockMask:
    """The plan's own lists, for FlexAttention."""
    lists = case.plan.block_sparse_tensors(width="dense")
    return BlockMask.from_kv_blocks(
        lists.mask_block_cnt,
        lists.mask_block_idx.clamp(min=0),
        lists.full_block_cnt,
        lists.full_block_idx.clamp(min=0),
        BLOCK_SIZE=case.plan.block_size,
        mask_mod=case.mask_mod,
        seq_lengths=(case.plan.seqlen_q, case.plan.seqlen_k),
    )


def flex_work(case: Case, q: Tensor, k: Tensor, v: Tensor, compiled: Any) -> Work:
    """FlexAttention on the lists of the case."""
    if case.plan.heads not in (1, case.heads):
        lists = flex_lists(Case(**{**vars(case), "plan": case.plan.with_heads(case.heads)}))
    else:
        lists = flex_lists(case)
    return lambda: compiled(q, k, v, block_mask=lists, enable_gqa=case.heads != case.kv_heads)


def measure(case: Case, runs: int, compiled: Any) -> dict[str, float]:
    """Seconds of each engine, forward and backward."""
    plan = case.plan
    q = case.draw(plan.seqlen_q, case.heads)
    k, v = (case.draw(plan.seqlen_k, case.kv_heads) for _ in range(2))
    grad = case.draw(plan.seqlen_q, case.heads)
    grouped = case.heads != case.kv_heads

    def sparse(*tensors: Tensor) -> Tensor:
        return mp.attention(*tensors, plan, layout="bhsd", backend="cpu")

    def dense(*tensors: Tensor) -> Tensor:
        return scaled_dot_product_attention(*tensors, enable_gqa=grouped)

    works: dict[str, Work] = {
        "sparse forward": lambda: sparse(q, k, v),
        "dense forward": lambda: dense(q, k, v),
    }
    if compiled and case.flex:
        works["flex forward"] = flex_work(case, q, k, v, compiled)
    with torch.no_grad():
        seconds = medians(works, runs)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    results = {"sparse backward": sparse(*leaves), "dense backward": dense(*leaves)}

    def backward(out: Tensor) -> Work:
        return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)

    return seconds | medians({name: backward(out) for name, out in results.items()}, runs)


def report(case: Case, seconds: dict[str, float]) -> None:
    """One line: rates in GFLOP/s over kept pairs, and their ratios."""
    every = float(case.plan.seqlen_q * case.plan.seqlen_k * case.heads)
    work = {"forward": 4 * case.head_dim, "backward": 10 * case.head_dim}
    cells = [f"{case.name:25s} {case.pairs / every:8.4f}"]
    for way, flops in work.items():
        rate = case.pairs * flops / seconds[f"sparse {way}"] / 1e9
        full = every * flops / seconds[f"dense {way}"] / 1e9
        faster = seconds[f"dense {way}"] / seconds[f"sparse {way}"]
        cells.append(f"{rate:7.1f} {full:7.1f} {rate / full:6.2f} {faster:6.1f}x")
        if way == "forward":
            flex = seconds.get("flex forward")
            ratio = f"{flex / seconds['sparse forward']:6.2f}x" if flex else "      -"
            cells.append(ratio)
    print(" ".join(cells), flush=True)


def main() -> None:
    """Measure every case, and print a line as each is done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention out")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    compiled = None if options.no_flex else torch.compile(flex_attention, dynamic=False)
    print(f"{torch.get_num_threads()} threads; GFLOP/s over kept pairs; ratios above 1 are better")
    print(f"{'':34s} {'forward':>7s} {'dense':>7s} {'ratio':>6s} {'faster':>7s} {'/flex':>7s}"
          f" {'backw.':>7s} {'dense':>7s} {'ratio':>6s} {'faster':>7s}")  # fmt: skip
    for case in cases():
        if options.only in case.name:
            report(case, measure(case, options.runs, compiled))


if __name__ == "__main__":
    main()
