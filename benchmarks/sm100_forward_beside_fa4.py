"""Our SM100 forward beside flash-attn-4's: instructions, bytes, MMAs, machine code; one plan.

    python -m benchmarks.sm100_forward_beside_fa4 --cuobjdump PATH

Both run in the emulator, D 128, one CTA, on rows of 256 queries that see 2 and 6 blocks of 128
keys, all of them full or all with bits; the difference of the two runs, by the blocks between, is
what a KV block costs. FA4's masks are those of tests/kernels/peers/fa4_masks.py, and what it
computes is checked here. cuobjdump comes with CUDA, and with Triton. It needs the extras sm100 and
peers; run it in the root of a checkout.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.machine_code import MachineCode, machine_code
from kernels_sm100.config import TMEM_COLUMNS, ForwardConfig
from kernels_sm100.emulator import emulate
from kernels_sm100.emulator.counting import by_warp
from kernels_sm100.emulator.launch import Launch, Report
from kernels_sm100.launch import CompileCache
from tests.kernels.forward.run import ForwardKernel, problem
from tests.kernels.peers import attention as fa4_calls
from tests.kernels.peers import fa4

FEW, MANY = 2, 6  # KV blocks of a row
KEYS = 1024
HEAD_DIM = 128
TOLERANCE = 0.01
ROLES = {
    "softmax": range(8), "correction": range(8, 12), "MMA": (12,), "store": (13,), "load": (14,),
}  # fmt: skip
EVENTS = (
    "mma", "tma_load", "tma_load_bytes", "global_load_sectors", "tma_store", "tma_store_bytes",
    "tmem_load_columns", "tmem_store_columns",
)  # fmt: skip

OnLaunch = Callable[[Launch, Any], None]


@dataclass
class Seen:
    """One emulated launch."""

    launch: Launch
    report: Report


@dataclass(frozen=True)
class Shape:
    """Heads of a comparison: `items` rows of 256 in all."""

    name: str
    seqlen: int
    group: int
    packed: bool
    masks: tuple[str, ...]
    items: int


SHAPES = (
    Shape("one head", 1024, 1, False, ("dense", "tiles", "pairs"), 4),
    Shape("8 heads over 1, packed", 256, 8, True, ("dense", "tiles"), 8),
    Shape("8 heads over 1, not packed", 256, 8, False, ("dense", "tiles"), 8),
)


def observed(call: Callable[[OnLaunch], Any]) -> Seen:
    """The one launch of a call."""
    found: list[Seen] = []
    call(lambda launch, memory: found.append(Seen(launch, emulate(launch, memory))))
    (one,) = found
    return one


def keep_bits(shape: Shape, *, bits: bool) -> torch.Tensor:
    """Bool [SQ, SK]: nine of ten pairs, or all."""
    noise = torch.rand(shape.seqlen, KEYS, generator=torch.Generator().manual_seed(0))
    return noise < 0.9 if bits else torch.ones_like(noise, dtype=torch.bool)


def ours(kernel: ForwardKernel, shape: Shape, blocks: int, *, bits: bool) -> Seen:
    """The first `blocks` blocks of each row."""
    keep = keep_bits(shape, bits=bits)
    keep[:, blocks * 128 :] = False
    given = problem(kernel.config, keep.numpy()[None, None])
    return observed(lambda on_launch: kernel.launch(given, on_launch))


def fa4_case(shape: Shape, mask: str | None) -> fa4.Case:
    return fa4.Case(
        direction="forward", seqlen=shape.seqlen, head_dim=HEAD_DIM, sparse=True, sms=1,
        heads=shape.group, group=shape.group, packed=shape.packed, mask=mask, keys=KEYS,
    )  # fmt: skip


def theirs(case: fa4.Case, shape: Shape, cache: CompileCache, blocks: int, *, bits: bool) -> Seen:
    """The same for FA4, whose O has to be right."""
    (program,) = fa4.programs(case, cache)
    given = fa4_calls.inputs(case)
    given.listed[:] = False
    given.listed[:, :blocks] = True
    given.keep = keep_bits(shape, bits=bits)
    made: list[torch.Tensor] = []

    def call(on_launch: OnLaunch) -> None:
        made[:] = fa4_calls.call_forward(case, given, program, on_launch)

    seen = observed(call)
    wanted = fa4_calls.reference(case, given)[0]
    error = float((made[0].double() - wanted).abs().max())
    if not error <= TOLERANCE:
        raise AssertionError(f"FA4 is off by {error} for {case}")
    return seen


def per_block(items: int, few: Seen, many: Seen) -> Counter[str]:
    """What one KV block of a pair of Q tiles costs: instructions a warp, and events."""
    steps = items * (MANY - FEW)
    warps = [by_warp(seen.launch, seen.report) for seen in (few, many)]
    found: Counter[str] = Counter()
    for role, members in ROLES.items():
        more = sum(warps[1][w] - warps[0][w] for w in members)
        found[f"{role}, PTX instructions a warp"] = more / len(members) / steps
    for event in EVENTS:
        more = many.report.counts[event] - few.report.counts[event]
        found[event] = more / steps
    return found


def table(title: str, columns: dict[str, Counter[str]]) -> None:
    print(f"\n| {title} | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for name in next(iter(columns.values())):
        print(f"| {name} | {' | '.join(f'{c[name]:,.1f}' for c in columns.values())} |", flush=True)


def softmax_loop(code: MachineCode, *, bits: bool, merged: bool) -> tuple[int, int]:
    """(instructions, exponentials) of the loop over full blocks, or over those with bits.

    `merged` kernels have one loop, which a full block runs without its longest skipped stretch;
    others have loops of their own for blocks with bits, which are those that read global memory.
    """
    if merged:
        loop = min(code.loops, key=lambda loop: loop.shortest)
        return (loop.length if bits else loop.shortest), loop.exponentials
    fitting = [x for x in code.loops if (x.reads > 1) == bits] or list(code.loops)
    loop = min(fitting, key=lambda loop: loop.length)
    return loop.length, loop.exponentials


def model(cost: Counter[str], softmax: int, exponentials: int) -> Counter[str]:
    """Clocks of an SM for a KV block of 256 queries, by unit: the largest binds.

    An MMA of M = 128, K = 16 takes N / 2 clocks; the SM has 16 exponentials a clock, four
    schedulers that issue one warp-instruction a clock each, and 128 bytes of shared memory a clock,
    from which Q K^T reads Q and K and P V reads V, and which TMA writes.
    """
    others = sum(
        cost[f"{role}, PTX instructions a warp"] * len(members)
        for role, members in ROLES.items()
        if role != "softmax"
    )
    read = 6 * 128 * HEAD_DIM * 2
    return Counter(
        {
            "tensor core": cost["mma"] * 128 / 2,
            "exponentials": exponentials * 256 / 16,
            "issue": (others + softmax * len(ROLES["softmax"])) / 4,
            "shared memory, reads of MMAs": read / 128,
            "shared memory, writes of TMA": cost["tma_load_bytes"] / 128,
        }
    )


def compare(shape: Shape, cache: CompileCache, cuobjdump: str) -> None:
    """Tables of one shape."""
    kernel = ForwardKernel(ForwardConfig(group=shape.group, pack_gqa=shape.packed), cache)
    codes = {"ours": machine_code(cuobjdump, kernel.compiled.entry.cubin)}
    columns, clocks = {}, {}

    def add(name: str, owner: str, few: Seen, many: Seen, *, bits: bool) -> None:
        cost = per_block(shape.items, few, many)
        length, exponentials = softmax_loop(codes[owner], bits=bits, merged=owner == "ours")
        cost["softmax, SASS instructions of the loop"] = length
        columns[name] = cost
        clocks[name] = model(cost, length, exponentials)
        print(f"{shape.name}, {name}: {many.launch.shared_bytes} bytes of dynamic shared memory")

    for bits in (False, True):
        few, many = (ours(kernel, shape, blocks, bits=bits) for blocks in (FEW, MANY))
        add(f"ours, {'bits' if bits else 'full'}", "ours", few, many, bits=bits)
    for mask in (None, *shape.masks):
        case = fa4_case(shape, mask)
        owner = f"FA4 {mask or 'without a mask'}"
        (entry,) = fa4.entries(case, cache)
        codes[owner] = machine_code(cuobjdump, entry.cubin)
        for bits in (False, True) if mask else (False,):
            few, many = (theirs(case, shape, cache, blocks, bits=bits) for blocks in (FEW, MANY))
            add(f"{owner}, {'bits' if bits else 'full'}", owner, few, many, bits=bits)
    table(f"{shape.name}: a KV block of 256 queries", columns)
    table(f"{shape.name}: clocks of a KV block", clocks)
    for name, code in codes.items():
        print(f"{shape.name}, {name}: {code}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--only", default="", help="shapes named so")
    arguments = parser.parse_args()
    cache = CompileCache()
    for shape in SHAPES:
        if arguments.only in shape.name:
            compare(shape, cache, arguments.cuobjdump)
    print(f"tensor memory: {TMEM_COLUMNS} columns each")


if __name__ == "__main__":
    main()
