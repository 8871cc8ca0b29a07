"""What ptxas made of a kernel: resources, and the loops of its machine code by what they hold."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from tests.kernels.forward.cubin import resources

WORD = 16  # bytes of an instruction
LISTED_EXPONENTIALS = 64  # of a loop that is a softmax's
LISTED_PRODUCTS = 32  # of a loop that issues MMAs
Code = list[tuple[int, str]]  # (address, instruction)


@dataclass(frozen=True)
class Loop:
    """A loop of machine code with many exponentials, and no such loop inside it.

    Attributes:
        length: its instructions.
        shortest: without the longest stretch that a branch in it skips and that has none of them.
        exponentials: MUFU.EX2 among them.
        reads: loads of global memory among them; a loop over blocks with bits has some.
    """

    length: int
    shortest: int
    exponentials: int
    reads: int


@dataclass(frozen=True)
class MachineCode:
    """A kernel's.

    Attributes:
        instructions: in all.
        registers: at launch, a thread.
        stack: bytes a thread, where registers are spilled.
        spills: instructions that load or store there.
        loops: innermost loops with many exponentials, longest jump first.
        products: instructions of the shortest loop that issues many MMAs, and the MMAs among them.
    """

    instructions: int
    registers: int
    stack: int
    spills: int
    loops: tuple[Loop, ...]
    products: tuple[int, int]

    @property
    def size(self) -> int:
        """Bytes of code."""
        return WORD * self.instructions

    def __str__(self) -> str:
        listed = ", ".join(
            f"{x.length} or {x.shortest} ({x.exponentials} ex2, {x.reads} LDG)" for x in self.loops
        )
        return (
            f"{self.instructions} SASS instructions, {self.size} bytes; {self.registers} registers "
            f"at launch, {self.stack} bytes of stack, {self.spills} LDL and STL; "
            f"loops with ex2: {listed}; loop of MMAs: {self.products[0]} ({self.products[1]} MMAs)"
        )


def _stretch_without(code: Code, jump: int, target: int) -> int:
    """Instructions that a jump skips; 0 if there are exponentials among them."""
    skipped = [instruction for address, instruction in code if jump < address < target]
    return 0 if any("MUFU.EX2" in instruction for instruction in skipped) else len(skipped)


def _jumps(code: Code) -> list[tuple[int, int]]:
    """(from, to) of every branch."""
    return [
        (address, int(found[1], 16))
        for address, instruction in code
        if (found := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction))
    ]


def _bodies(code: Code) -> Iterator[tuple[int, int, list[str]]]:
    """(first address, last address, instructions) of every loop, shortest first."""
    back = [(a, b) for a, b in _jumps(code) if b < a]
    for last, first in sorted(back, key=lambda jump: jump[0] - jump[1]):
        yield first, last, [text for address, text in code if first <= address <= last]


def _products(code: Code) -> tuple[int, int]:
    for _, _, body in _bodies(code):
        number = sum("UTCHMMA" in instruction for instruction in body)
        if number >= LISTED_PRODUCTS:
            return len(body), number
    return 0, 0


def _loops(code: Code) -> tuple[Loop, ...]:
    jumps = _jumps(code)
    loops: dict[tuple[int, int], Loop] = {}
    for first, last, body in _bodies(code):
        exponentials = sum("MUFU.EX2" in instruction for instruction in body)
        around = any(first <= inner and last >= end for inner, end in loops)
        if exponentials < LISTED_EXPONENTIALS or around:
            continue
        skipped = max(
            (_stretch_without(code, a, b) for a, b in jumps if first <= a < b <= last), default=0
        )
        reads = sum("LDG" in instruction for instruction in body)
        loops[first, last] = Loop(len(body), len(body) - skipped, exponentials, reads)
    return tuple(loops.values())


def machine_code(cuobjdump: str, cubin: bytes) -> MachineCode:
    """Machine code of the kernel in a CUBIN, listed by `cuobjdump`, the path of that program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [cuobjdump, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    code = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", text)]
    registers, stack = resources(cubin)
    spills = sum(bool(re.search(r"\b(LDL|STL)\b", instruction)) for _, instruction in code)
    return MachineCode(len(code), registers, stack, spills, _loops(code), _products(code))
