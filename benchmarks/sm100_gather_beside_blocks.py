"""Whole blocks loaded by TMA beside the same blocks gathered, by cp.async and by TMA gather4.

    python -m benchmarks.sm100_gather_beside_blocks --cuobjdump PATH

The three kernels run in the emulator on rows of 256 queries that see 2 and 6 blocks of 128 keys,
one CTA; the difference of the two runs, by the blocks between, is what a block costs. Machine
instructions of the load warps are the length of the loop that loads, loops inside it by their
trips. cuobjdump comes with CUDA, and with Triton. It needs the extra sm100; run it in the root of a
checkout.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernels_sm100.config import TILE_K, ForwardConfig
from kernels_sm100.emulator import emulate
from kernels_sm100.emulator.counting import by_warp
from kernels_sm100.launch import CompileCache
from kernels_sm100.modes import InnerLoadMode
from tests.kernels.forward.cubin import resources
from tests.kernels.forward.run import ForwardKernel, problem
from tests.kernels.gather.lists import token_tables

ROWS, FEW, MANY = 2, 2, 6  # rows of 256 queries; blocks of each
KEYS = 1024
ROLES = {
    "softmax": range(8), "correction": range(8, 12), "MMA": (12,), "load": (14, 15),
}  # fmt: skip
COMPUTE = ("softmax", "correction", "MMA")
LOADS = ("UTMALDG", "LDGSTS")
FOUR = 4  # rows of a gather, or of a warp's cp.async

Code = list[tuple[int, str]]


def run(kernel: ForwardKernel, blocks: int) -> tuple[Counter[int], Counter[str]]:
    """(instructions by warp, events) of one launch."""
    mask = np.zeros((1, 1, 256 * ROWS, KEYS), dtype=bool)
    mask[..., : TILE_K * blocks] = True
    given = problem(kernel.config, mask)
    walk = token_tables(mask, kernel.config) if kernel.config.gathered else None
    seen: list[tuple[Counter[int], Counter[str]]] = []

    def launched(launch: Any, memory: Any) -> None:
        report = emulate(launch, memory)
        seen.append((by_warp(launch, report), report.counts))

    kernel.launch(given, launched, walk=walk)
    (one,) = seen
    return one


def per_block(kernel: ForwardKernel) -> dict[str, float]:
    """What a block costs the CTA: instructions, of a role's warps together, and events."""
    few, many = run(kernel, FEW), run(kernel, MANY)
    steps = ROWS * (MANY - FEW)
    found = {
        role: sum(many[0][w] - few[0][w] for w in warps) / steps for role, warps in ROLES.items()
    }
    found["compute warps"] = sum(found[role] for role in COMPUTE)
    found["all warps"] = (many[0].total() - few[0].total()) / steps
    found["TMA loads"] = (many[1]["tma_load"] - few[1]["tma_load"]) / steps
    found["bytes of K and V"] = (
        sum(many[1][name] - few[1][name] for name in ("tma_load_bytes", "cp_async_bytes")) / steps
    )
    return found


def sass(cuobjdump: str, cubin: bytes) -> Code:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [cuobjdump, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    return [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", text)]


def loops(code: Code) -> Iterator[tuple[int, int]]:
    """(first address, last address) of each loop, shortest first."""
    jumps = (
        (address, int(found[1], 16))
        for address, instruction in code
        if (found := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction))
    )
    yield from sorted(((b, a) for a, b in jumps if b < a), key=lambda loop: loop[1] - loop[0])


def load_loop(code: Code, config: ForwardConfig) -> int:
    """Machine instructions of a load warp for a block: the shortest loop with all its loads.

    Of TMA gathers, K's and V's have a loop each inside of that.
    """
    loads = [a for a, text in code if any(name in text for name in LOADS)]
    gathers = [a for a, text in code if "GATHER4" in text]
    found = list(loops(code))
    if config.inner_load is InnerLoadMode.TMA:
        first, last = next((a, b) for a, b in found if any(a <= x <= b for x in loads))
        return _length(code, first, last)
    if not gathers:
        copies = [a for a, text in code if "LDGSTS" in text]
        spans = (config.head_dim + config.head_dim_v) // 64
        all_of_them = spans * TILE_K // len(ROLES["load"]) // FOUR
        first, last = next(
            (a, b) for a, b in found if sum(a <= x <= b for x in copies) >= all_of_them
        )
        return _length(code, first, last)
    inner = [(a, b) for a, b in found if any(a <= x <= b for x in gathers)]
    outer = next((a, b) for a, b in inner if all(a <= x <= b for x in gathers))
    inside = [x for x in inner if x != outer and outer[0] <= x[0] and x[1] <= outer[1]]
    trips = TILE_K // len(ROLES["load"]) // FOUR
    return _length(code, *outer) + (trips - 1) * sum(_length(code, *x) for x in inside)


def _length(code: Code, first: int, last: int) -> int:
    return sum(first <= address <= last for address, _ in code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuobjdump", default="cuobjdump")
    cuobjdump = parser.parse_args().cuobjdump
    cache = CompileCache()
    for head_dim in (128, 64):
        columns: dict[str, dict[str, float]] = {}
        for mode in InnerLoadMode:
            config = ForwardConfig(head_dim=head_dim, head_dim_v=head_dim, inner_load=mode)
            kernel = ForwardKernel(config, cache)
            cost = per_block(kernel)
            cubin = kernel.compiled.entry.cubin
            warps = len(ROLES["load"]) if config.gathered else 1
            cost["load, machine instructions"] = warps * load_loop(sass(cuobjdump, cubin), config)
            cost["bytes of stack"] = resources(cubin)[1]
            columns[mode.name] = cost
        whole = columns[InnerLoadMode.TMA.name]
        for cost in columns.values():
            for name in ("compute warps", "all warps"):
                cost[f"{name}, of the block kernel's"] = cost[name] / whole[name]
        print(f"\n| D {head_dim}, a block of 256 queries | {' | '.join(columns)} |")
        print("| --- | --- | --- | --- |")
        for name in whole:
            print(f"| {name} | {' | '.join(f'{c[name]:,.4g}' for c in columns.values())} |")


if __name__ == "__main__":
    main()
