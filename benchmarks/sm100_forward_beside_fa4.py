"""Our SM100 forward beside flash-attn-4's: instructions, bytes, MMAs, machine code; one plan.

    python -m benchmarks.sm100_forward_beside_fa4 --cuobjdump PATH

Both run in the emulator on 4 rows of 256 queries, D 128, one CTA, with 2 and with 6 full blocks of
128 keys a row; the difference of the two runs, over 16, is what a KV block costs. cuobjdump comes
with CUDA, and with Triton. It needs the extras sm100 and peers; run it in the root of a checkout.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels_sm100.config import TMEM_COLUMNS, ForwardConfig
from kernels_sm100.emulator import emulate
from kernels_sm100.emulator.counting import by_warp
from kernels_sm100.emulator.launch import Launch, Report
from kernels_sm100.launch import CompileCache
from kernels_sm100.launch.key import compile_key
from tests.kernels.forward.cubin import resources
from tests.kernels.forward.run import ForwardKernel, problem
from tests.kernels.peers import attention as fa4_calls
from tests.kernels.peers import fa4

ROWS, FEW, MANY = 4, 2, 6  # rows of 256 queries; full blocks of each
LENGTH = 256 * ROWS
HEAD_DIM = 128
ROLES = {
    "softmax": range(8), "correction": range(8, 12), "MMA": (12,), "store": (13,), "load": (14,),
}  # fmt: skip
EVENTS = ("mma", "tma_load", "tma_load_bytes", "tma_store", "tmem_load_columns")
WORD = 16  # bytes of an instruction
LISTED_EXPONENTIALS = 64  # of a loop that is the softmax's

OnLaunch = Callable[[Launch, Any], None]


@dataclass
class Seen:
    """One emulated launch."""

    launch: Launch
    report: Report


def observed(call: Callable[[OnLaunch], Any]) -> Seen:
    """The one launch of a call."""
    found: list[Seen] = []
    call(lambda launch, memory: found.append(Seen(launch, emulate(launch, memory))))
    (one,) = found
    return one


def block_mask(blocks: int) -> torch.Tensor:
    """Bool [ROWS, KV blocks]: the first of each row."""
    listed = torch.zeros(ROWS, LENGTH // 128, dtype=torch.bool)
    listed[:, :blocks] = True
    return listed


def ours(kernel: ForwardKernel, blocks: int, *, bits: bool = False) -> Seen:
    listed = block_mask(blocks).numpy()
    mask = listed.repeat(256, 0).repeat(128, 1)[None, None]
    if bits:
        mask = mask & (np.random.default_rng(0).random(mask.shape) < 0.9)
    given = problem(kernel.config, mask)
    return observed(lambda on_launch: kernel.launch(given, on_launch))


def theirs(program: Any, case: fa4.Case, blocks: int) -> Seen:
    given = fa4_calls.inputs(case)
    given.listed = block_mask(blocks)
    return observed(lambda on_launch: fa4_calls.call_forward(case, given, program, on_launch))


def per_block(few: Seen, many: Seen) -> Counter[str]:
    """What one KV block of a pair of Q tiles costs: instructions a warp, and events."""
    steps = ROWS * (MANY - FEW)
    warps = [by_warp(seen.launch, seen.report) for seen in (few, many)]
    found: Counter[str] = Counter()
    for role, members in ROLES.items():
        more = sum(warps[1][w] - warps[0][w] for w in members)
        found[f"{role}, instructions a warp"] = more / len(members) / steps
    for event in EVENTS:
        more = many.report.counts[event] - few.report.counts[event]
        found[event] = more / steps
    return found


@dataclass(frozen=True)
class Loop:
    """A loop of machine code with many exponentials, and no such loop inside it.

    Attributes:
        length: its instructions.
        shortest: without the longest stretch that a branch in it skips and that has none of them.
        exponentials: MUFU.EX2 among them.
    """

    length: int
    shortest: int
    exponentials: int


def stretch_without(code: list[tuple[int, str]], jump: int, target: int) -> int:
    """Instructions that a jump skips; 0 if there are exponentials among them."""
    skipped = [instruction for address, instruction in code if jump < address < target]
    return 0 if any("MUFU.EX2" in instruction for instruction in skipped) else len(skipped)


def sass(cuobjdump: str, cubin: bytes) -> tuple[int, list[Loop]]:
    """(instructions, innermost loops with many exponentials)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [cuobjdump, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    code = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", text)]
    jumps = [
        (address, int(found[1], 16))
        for address, instruction in code
        if (found := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction))
    ]
    loops: dict[tuple[int, int], Loop] = {}
    for last, first in sorted(((a, b) for a, b in jumps if b < a), key=lambda j: j[0] - j[1]):
        body = [instruction for address, instruction in code if first <= address <= last]
        exponentials = sum("MUFU.EX2" in instruction for instruction in body)
        around = any(first <= inner and last >= end for inner, end in loops)
        if exponentials < LISTED_EXPONENTIALS or around:
            continue
        skipped = max(
            (stretch_without(code, a, b) for a, b in jumps if first <= a < b <= last), default=0
        )
        loops[first, last] = Loop(len(body), len(body) - skipped, exponentials)
    return len(code), list(loops.values())


def machine(name: str, cuobjdump: str, cubin: bytes) -> None:
    registers, stack = resources(cubin)
    instructions, loops = sass(cuobjdump, cubin)
    listed = ", ".join(f"{x.length} or {x.shortest} ({x.exponentials} ex2)" for x in loops)
    print(
        f"{name}: {instructions} SASS instructions, {WORD * instructions} bytes; {registers} "
        f"registers at launch, {stack} bytes of stack; loops with ex2: {listed}"
    )


def model(cost: Counter[str], sass_length: float) -> None:
    """Clocks of an SM for a KV block of 256 queries: the largest binds.

    An MMA of M = 128, K = 16 takes N / 2 clocks; the SM has 16 exponentials a clock, four
    schedulers that issue one warp-instruction a clock each, and 128 bytes of shared memory a clock,
    from which Q K^T reads Q and K and P V reads V.
    """
    tensor = cost["mma"] * 128 / 2
    exponentials = 256 * 128 / 16
    other = sum(cost[f"{role}, instructions a warp"] * len(ROLES[role]) for role in ROLES)
    softmax = cost["softmax, instructions a warp"] * len(ROLES["softmax"])
    issue = (other - softmax + sass_length * len(ROLES["softmax"])) / 4
    shared = (2 * 128 * HEAD_DIM * 2 + 2 * 128 * HEAD_DIM * 2 + 2 * 128 * HEAD_DIM * 2) / 128
    print(
        f"clocks a KV block: tensor {tensor:.0f}, exponentials {exponentials:.0f}, issue "
        f"{issue:.0f}, shared memory {shared:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    cuobjdump = parser.parse_args().cuobjdump
    cache = CompileCache()
    kernel = ForwardKernel(ForwardConfig(), cache)
    case = fa4.Case(direction="forward", seqlen=LENGTH, head_dim=HEAD_DIM, sparse=True, sms=1)
    (program,) = fa4.programs(case, cache)
    columns = {
        "ours": per_block(ours(kernel, FEW), ours(kernel, MANY)),
        "ours, bits": per_block(ours(kernel, FEW, bits=True), ours(kernel, MANY, bits=True)),
        "FA4": per_block(theirs(program, case, FEW), theirs(program, case, MANY)),
    }
    print(f"| a KV block of 256 queries | {' | '.join(columns)} |\n| --- | --- | --- | --- |")
    for name in columns["ours"]:
        print(f"| {name} | {' | '.join(f'{c[name]:,.1f}' for c in columns.values())} |")
    whole = (ours(kernel, MANY), theirs(program, case, MANY))
    for name, seen in zip(("ours", "FA4"), whole, strict=True):
        print(f"{name}: {seen.launch.shared_bytes} bytes of dynamic shared memory")
    print(f"tensor memory: {TMEM_COLUMNS} columns each")
    sources = sorted(Path(fa4.interface().__file__).parent.glob("*.py"))
    kept = cache.get(f"{compile_key(case, options=('fa4',), sources=sources)}-0")
    assert kept is not None, "compiled above"
    machine("ours", cuobjdump, kernel.compiled.entry.cubin)
    machine("FA4, full blocks", cuobjdump, kept.cubin)
    _, loops = sass(cuobjdump, kernel.compiled.entry.cubin)
    model(columns["ours"], min(loop.shortest for loop in loops))


if __name__ == "__main__":
    main()
