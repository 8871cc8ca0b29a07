"""Our SM100 backward kernels beside flash-attn-4's: instructions, bytes, machine code; equal plans.

    python -m benchmarks.sm100_backward_beside_fa4 --cuobjdump PATH

All run in the emulator, D 128, on blocks of 256 queries by 128 keys, which all attend. The first
table is what one more pair of tiles (128 queries, 128 keys) costs: runs of one head whose KV blocks
are seen by 2 and by 8 Q tiles each (Q tiles that see 2 and 8 KV blocks, for LoopK), their
difference over the pairs between. The others divide
whole launches of eight query heads by their pairs, at densities 0.1 and 1, with 1, 4 and 8 query
heads a KV head: what an item costs beside its pairs is in them, and for FA4, whose groups add to
float32 sums, the larger output of dK and dV. Preprocess and postprocess are in none of them.
cuobjdump comes with CUDA, and with Triton. It needs the extras sm100 and peers; run it in the root
of a checkout.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine_code import machine_code as listed_code
from benchmarks.sm100_forward_beside_fa4 import Seen
from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.emulator import emulate
from kernels_sm100.emulator.counting import by_warp
from kernels_sm100.launch import CompileCache
from tests.kernels.backward.run import BackwardKernel, problem
from tests.kernels.peers import attention as fa4_calls
from tests.kernels.peers import fa4

HEAD_DIM = 128
TILE = 128
BLOCK_Q = 256  # of the lists: FA4 takes no smaller
LENGTH = 1024  # queries, and keys
SHORT = 512  # of dense plans
FEW, MANY = 1, 4  # Q blocks that see a KV block
HEADS = 8
GROUPS = (1, 4, 8)
DENSITIES = (0.1, 1.0)
# Roles are on the same warps in all three kernels.
ROLES = {"sums": range(4), "compute": range(4, 12), "MMA": (12,), "load": (13,), "other": (14, 15)}
EVENTS = (
    "mma", "mma_flops", "tma_load_bytes", "bulk_load_bytes", "bulk_reduce_bytes",
    "tma_store_bytes", "bulk_store_bytes", "tmem_load_columns",
)  # fmt: skip

Blocks = NDArray[np.bool_]  # [heads, Q blocks of 256, KV blocks of 128]


def blocks_of(length: int, heads: int, density: float) -> Blocks:
    """That share of all blocks, at random, the same number in every run."""
    shape = (heads, length // BLOCK_Q, length // TILE)
    listed = np.zeros(shape, dtype=bool)
    chosen = np.random.default_rng(0).permutation(listed.size)[: round(density * listed.size)]
    listed.reshape(-1)[chosen] = True
    return listed


def observed(call: Callable[[Any], Any]) -> Seen:
    """The one launch of a call; races were judged elsewhere."""
    found: list[Seen] = []
    call(
        lambda launch, memory: found.append(
            Seen(launch, emulate(launch, memory, races=False, strict_exit=False))
        )
    )
    (one,) = found
    return one


def ours(kernel: BackwardKernel, listed: Blocks, group: int) -> Seen:
    mask = listed.repeat(BLOCK_Q, 1).repeat(TILE, 2)[None]
    given = problem(kernel.config, mask, kv_heads=len(listed) // group)
    return observed(lambda on_launch: kernel.launch(given, on_launch, ctas=8))


def theirs(cache: CompileCache, listed: Blocks, group: int) -> Seen:
    """FA4's main kernel, on any numbers: what it executes does not depend on them."""
    heads, rows, _ = listed.shape
    case = fa4_case(rows * BLOCK_Q, heads, group)
    main = fa4.programs(case, cache)[1]
    noise = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=noise).to(dtype)

    of_queries, of_keys = ((1, case.seqlen, n, HEAD_DIM) for n in (heads, case.kv_heads))
    row = (1, heads, case.seqlen)
    sums = [
        torch.zeros(1, n, case.seqlen * HEAD_DIM) for n in (heads, case.kv_heads, case.kv_heads)
    ]
    outputs = [torch.zeros(of_keys, dtype=torch.bfloat16) for _ in range(2)]
    dk, dv = sums[1:] if group > 1 else outputs
    counts, indices = lists(listed.transpose(0, 2, 1))
    none, poison = torch.zeros_like(counts), torch.full_like(indices, 1 << 20)
    tensors = (draw(*of_queries), draw(*of_keys), draw(*of_keys), draw(*of_queries))
    lse, delta = draw(*row, dtype=torch.float32), draw(*row, dtype=torch.float32)
    return observed(
        lambda on_launch: main(
            *tensors, lse + 9, delta, sums[0], dk, dv, HEAD_DIM**-0.5, *[None] * 9, (None, None),
            (none, poison, counts, indices, None, None, None, None), None, on_launch=on_launch,
        )
    )  # fmt: skip


def fa4_case(length: int, heads: int, group: int) -> fa4.Case:
    return fa4.Case(
        direction="backward", seqlen=length, head_dim=HEAD_DIM, sparse=True, heads=heads,
        group=group,
    )  # fmt: skip


def lists(listed: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """(counts [1, H, R], indices [1, H, R, C]) of each row's blocks."""
    found = [fa4_calls.lists(torch.from_numpy(rows), 1) for rows in listed]
    counts, indices = (torch.cat([pair[i] for pair in found], 1) for i in (0, 1))
    return counts.contiguous(), indices.contiguous()


def cost(seen: Seen, pairs: float) -> Counter[str]:
    """Instructions a warp of each role, and events, a pair of tiles."""
    warps = by_warp(seen.launch, seen.report)
    found: Counter[str] = Counter()
    for role, members in ROLES.items():
        total = sum(warps[w] for w in members)
        found[f"{role}, instructions a warp"] = total / len(members) / pairs
    for event in EVENTS:
        found[event] = seen.report.counts[event] / pairs
    return found


def marginal(run: Callable[[Blocks], Seen], *, rows: bool) -> Counter[str]:
    """What one more pair of tiles costs, where a CTA owns `rows`, Q tiles, or KV blocks."""
    found = []
    for seen in (FEW, MANY):
        listed = np.zeros((1, LENGTH // BLOCK_Q, LENGTH // TILE), dtype=bool)
        tiles = BLOCK_Q // TILE * seen
        if rows:
            listed[:, :, :tiles] = True
        else:
            listed[:, :seen] = True
        found.append(cost(run(listed), 1))
    pairs = (MANY - FEW) * (BLOCK_Q // TILE) * (LENGTH // TILE)
    return Counter({name: (found[1][name] - found[0][name]) / pairs for name in found[0]})


def table(title: str, columns: dict[str, Counter[str]]) -> None:
    print(f"\n| {title} | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for name in next(iter(columns.values())):
        cells = (f"{c[name]:,.1f}" for c in columns.values())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def machine(name: str, cuobjdump: str, cubin: bytes) -> None:
    """Registers, stack and loops of machine code."""
    print(f"{name}: {listed_code(cuobjdump, cubin)}", flush=True)


def kernels(group: int, cache: CompileCache) -> dict[str, BackwardKernel]:
    """Ours, of both directions."""
    return {
        direction: BackwardKernel(
            BackwardConfig(direction=direction, head_dim=HEAD_DIM, group=group), cache
        )
        for direction in ("loop_q", "loop_k")
    }


def machine_code(cuobjdump: str, cache: CompileCache) -> None:
    """What ptxas made of each."""
    for group in (1, GROUPS[-1]):
        for name, kernel in kernels(group, cache).items():
            machine(f"{name}, group {group}", cuobjdump, kernel.compiled.entry.cubin)
        main = fa4.entries(fa4_case(LENGTH, group, group), cache)[1]
        machine(f"FA4, group {group}", cuobjdump, main.cubin)


def further_pair(cache: CompileCache) -> None:
    """The first table."""
    mine = kernels(1, cache)
    table(
        "one more pair of tiles",
        {
            "loop_q": marginal(lambda listed: ours(mine["loop_q"], listed, 1), rows=False),
            "loop_k": marginal(lambda listed: ours(mine["loop_k"], listed, 1), rows=True),
            "FA4": marginal(lambda listed: theirs(cache, listed, 1), rows=False),
        },
    )


def whole_launches(cache: CompileCache, groups: Iterable[int]) -> None:
    """A table for each density and group."""
    for density in DENSITIES:
        for group in groups:
            listed = blocks_of(LENGTH if density < 1 else SHORT, HEADS, density)
            pairs = int(listed.sum()) * (BLOCK_Q // TILE)
            columns = {
                name: cost(ours(kernel, listed, group), pairs)
                for name, kernel in kernels(group, cache).items()
            }
            columns["FA4"] = cost(theirs(cache, listed, group), pairs)
            table(f"a pair of {pairs}, density {density}, group {group}", columns)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--group", type=int, action="append", help="of the whole launches; all")
    parser.add_argument("--short", action="store_true", help="no whole launches")
    arguments = parser.parse_args()
    cache = CompileCache()
    machine_code(arguments.cuobjdump, cache)
    further_pair(cache)
    if not arguments.short:
        whole_launches(cache, arguments.group or GROUPS)


if __name__ == "__main__":
    main()
