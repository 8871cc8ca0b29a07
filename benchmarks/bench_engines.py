"""What partial blocks, fine blocks and the host cost the fa4 and flex backends: JSON lines.

    python benchmarks/bench_engines.py

`maskplan bench` has the backends beside the same engines called by hand. Here are the questions
behind them: bits against a superset of whole blocks, KV tiles of 16 to 128 keys at one number of
pairs, one tensor-core pipeline stage for FlexAttention, and microseconds a call on the host.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch._functorch import config

import maskplan as mp
from maskplan.attention import fa4, fa4_kernels, flex
from maskplan.bench.clock import CudaClock

S, HEADS, HEAD_DIM = 32_768, 12, 128
SCALE = HEAD_DIM**-0.5
RUNS = 7
Work = Callable[[], object]


def report(row: str, **figures: object) -> None:
    print(json.dumps({"row": row, **figures}), flush=True)


def medians(works: dict[str, Work]) -> dict[str, float]:
    """Median milliseconds of each, run in turn with a cold L2, after one warm-up."""
    clock = CudaClock()
    times: dict[str, list[float]] = {name: [] for name in works}
    for run in range(RUNS + 1):
        for name, work in works.items():
            taken = clock(work)
            if run:
                times[name].append(taken)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def host_us(work: Work, calls: int = 100) -> float:
    """Microseconds of the host a call, the best of seven; the GPU's work has to be shorter."""
    best = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, time.perf_counter() - start)
    return round(1e6 * best / calls, 1)


def tensors(seqlen: int = S, heads: int = HEADS) -> list[torch.Tensor]:
    shape = (1, seqlen, heads, HEAD_DIM)
    return [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in range(3)]


def both_ways(plan: mp.Plan, backend: str, qkv: list[torch.Tensor]) -> tuple[Work, Work]:
    """(forward, backward) of `attention`."""
    shape = {"arch": fa4_kernels.architecture(qkv[0].device)} if backend == "fa4" else {}
    lowered = plan.lower(backend, head_dim=HEAD_DIM, heads=HEADS, **shape).to("cuda")
    out = mp.attention(*qkv, lowered, scale=SCALE)
    dout = torch.randn_like(out)

    def forward() -> object:
        with torch.no_grad():
            return mp.attention(*qkv, lowered, scale=SCALE)

    return forward, lambda: torch.autograd.grad(out, qkv, dout, retain_graph=True)


def host() -> None:
    """Microseconds a call: flash-attn-4 by hand, its wrapper here, and `attention`."""
    plan, (q, k, v) = mp.full(256, 256), [x.detach() for x in tensors(256, 1)]
    arch = fa4_kernels.architecture(q.device)
    lowered = plan.lower("fa4", head_dim=HEAD_DIM, arch=arch).to("cuda")
    given = fa4.block_lists(lowered.lists.forward, deterministic=False)
    by_hand = fa4_kernels.interface()._flash_attn_fwd  # noqa: SLF001
    rows = {
        "by hand": lambda: by_hand(
            q, k, v, softmax_scale=SCALE, block_sparse_tensors=given, return_lse=True
        ),
        "fa4_forward": lambda: fa4.fa4_forward(q, k, v, lowered.lists, scale=SCALE),
        "attention": lambda: mp.attention(q, k, v, lowered, scale=SCALE),
    }
    figures = {name: host_us(work) for name, work in rows.items()}
    report("host", over_by_hand_us=round(figures["attention"] - figures["by hand"], 1), **figures)


def bits(backend: str) -> None:
    """A window whose blocks are mostly partial, exact and as its superset of whole blocks."""
    qkv = tensors()
    plan = mp.sliding_window(S, S, left=256, right=255)
    superset = plan.reblock(plan.block_size, superset=True)
    exact, whole = both_ways(plan, backend, qkv), both_ways(superset, backend, qkv)
    for way, name in enumerate(("forward", "backward")):
        figures = medians({"exact": exact[way], "superset": whole[way]})
        ratio = round(figures["exact"] / figures["superset"], 2)
        report(f"bits/{backend}/{name}", exact_over_superset=ratio, **figures)


def tiles() -> None:
    """Equal pairs in KV blocks of 16 to 128 keys: what finer selection costs a pair."""
    qkv, noise = tensors(), torch.Generator().manual_seed(0)
    works = {}
    for keys in (128, 64, 32, 16):
        kept = torch.rand(1, 1, S // 128, S // keys, generator=noise) < 0.2
        plan = mp.from_block_mask(kept, S, S, block_size=(128, keys))
        works[str(keys)] = both_ways(plan, "fa4", qkv)[0]
    figures = medians(works)
    rates = {
        keys: round(0.2 * 4 * S * S * HEADS * HEAD_DIM / 1e9 / taken)
        for keys, taken in figures.items()
    }
    report("tiles/fa4/forward", tflops_by_keys=rates, **figures)


def stages() -> None:
    """FlexAttention's kernels with fewer pipeline stages, where all blocks are partial."""
    qkv, plan = tensors(), mp.sliding_window(S, S, left=256, right=255)
    usual = flex.KERNEL_OPTIONS
    for count in (None, 1, 2):
        flex.KERNEL_OPTIONS = usual if count is None else usual | {"num_stages": count}
        torch.compiler.reset()
        flex.compiled.cache_clear()
        forward, backward = both_ways(plan, "flex", qkv)
        figures = medians({"forward": forward, "backward": backward})
        report(f"stages/flex/{count or 'default'}", **figures)
    flex.KERNEL_OPTIONS = usual


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a CUDA GPU", file=sys.stderr)
        return 1
    config.donated_buffer = False  # FlexAttention's backward is run more than once
    rows: list[Work] = [lambda: bits("flex"), stages]
    if fa4_kernels.missing() is None:
        rows = [host, lambda: bits("fa4"), tiles, *rows]
    for row in rows:
        row()
    return 0


if __name__ == "__main__":
    sys.exit(main())
