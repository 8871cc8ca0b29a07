"""A kernel as basic blocks of Python code, compiled when they are first executed.

A block ends at a label, behind a branch, and around blocking instructions (NOTE [Kinds of
instruction]). Its function takes a warp, its registers and the mask of the lanes that run, and
returns what to do next: a block number, BLOCKED, DIVERGED, FINISHED, or a branch that splits lanes.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from kernels_sm100.emulator.codegen import forms
from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.tokens import DTYPE
from kernels_sm100.emulator.ptx import Instruction, Kernel, Module, Variable
from kernels_sm100.errors import UnknownInstruction, sentence

BLOCKED = -1  # wait and execute the block again
DIVERGED = -2  # wait for the other lanes of the warp
FINISHED = -3  # the lanes have exited

# Windows of the generic address space. Global addresses are host addresses, which lie higher.
SHARED_WINDOW = 0x1_0000_0000
LOCAL_WINDOW = 0x2_0000_0000
PARAMETER_WINDOW = 0x3_0000_0000
SHARED_START = 1024  # the system's part of shared memory lies before a CTA's own

BlockFunction = Callable[[Any, list[Any], Any], Any]


class Program:
    """The code of one kernel.

    Args:
        module: the PTX module that `kernel` is part of.
        kernel: the entry to run.
        library: modules and functions that generated code calls, by name.
        strict_tmem_loads: whether registers are checked for loads that nobody waited for.

    Raises:
        UnknownInstruction: an opcode that no form matches, with its line.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        library: dict[str, Any],
        *,
        strict_tmem_loads: bool = False,
    ) -> None:
        self.kernel = kernel
        self.strict_tmem_loads = strict_tmem_loads
        self.names: dict[str, Any] = {**library, **DTYPE}
        self.slots: dict[str, int] = {}
        self._constants: dict[bytes, str] = {}
        self.symbols = self._place_shared(module.shared)
        self.register_count = len(kernel.registers) + sum(n for _, n in kernel.ranges.values())
        self._check_opcodes()
        self._split()
        self.plain: list[BlockFunction | None] = [None] * (self.blocks + 1)
        self.masked: list[BlockFunction | None] = [None] * (self.blocks + 1)

    # Layout

    def _place_shared(self, extern: dict[str, Variable]) -> dict[str, int]:
        """Offsets of shared variables: static ones first, then the dynamic array."""
        places: dict[str, int] = {}
        at = SHARED_START
        variables = [*self.kernel.shared.values(), *extern.values()]
        for variable in sorted(variables, key=lambda v: v.size == 0):
            at = -(-at // variable.align) * variable.align
            places[variable.name] = at
            at += variable.size
        self.dynamic_start = at
        self.local_bytes = 0
        self.local_symbols: dict[str, int] = {}
        for variable in self.kernel.local.values():
            self.local_bytes = -(-self.local_bytes // variable.align) * variable.align
            self.local_symbols[variable.name] = self.local_bytes
            self.local_bytes += variable.size
        return places

    def place(self, instruction: Instruction) -> str:
        """Where an instruction stands, for messages."""
        return f"PTX line {instruction.line}{self.kernel.source_of(instruction.line)}"

    def _check_opcodes(self) -> None:
        for instruction in self.kernel.instructions:
            if forms.find(instruction.op) is None:
                raise UnknownInstruction(
                    sentence(
                        what="instruction that is not modelled",
                        where=self.place(instruction),
                        got=repr(instruction.text[:120]),
                        wanted="an opcode with modifiers that the emulator knows",
                        remedy="add the form to kernels_sm100/emulator/codegen, with a test",
                    )
                )

    def _split(self) -> None:
        code = self.kernel.instructions
        starts = {0, len(code), *self.kernel.labels.values()}
        for at, instruction in enumerate(code):
            known = forms.find(instruction.op)
            assert known is not None
            if known[0].blocking:
                starts |= {at, at + 1}
            elif known[0].convergent:
                starts.add(at)
            if instruction.op.startswith(("bra", "ret", "exit", "brx")):
                starts.add(at + 1)
        self.starts = sorted(starts)
        if len(self.starts) == 1:
            self.starts.append(0)
        number = {start: block for block, start in enumerate(self.starts)}
        self.blocks = len(self.starts) - 1
        self.targets = {label: number[at] for label, at in self.kernel.labels.items()}
        self.lengths = [self.starts[b + 1] - self.starts[b] for b in range(self.blocks)]

    def line_of(self, block: int) -> int:
        """PTX line of the first instruction of a block; 0 past the end."""
        at = self.starts[min(block, self.blocks)]
        code = self.kernel.instructions
        return code[at].line if at < len(code) else 0

    # Names of generated code

    def slot(self, register: str) -> int:
        """Index of a register in the list of a warp's registers."""
        return self.slots.setdefault(register, len(self.slots))

    def register_at(self, slot: int) -> str:
        """The register that `slot` is of."""
        return next(name for name, at in self.slots.items() if at == slot)

    def constant(self, array: np.ndarray) -> str:
        """Name of a constant; equal ones share one."""
        key = array.dtype.str.encode() + array.tobytes()
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"k{len(self._constants)}"
            array.flags.writeable = False
            self.names[name] = array
        return name

    def symbol(self, name: str, offset: int) -> str | None:
        """Expression (u8) for the address of a variable."""
        if name in self.kernel.parameters:
            place = PARAMETER_WINDOW + self.kernel.parameters[name].offset + offset
            return self.constant(np.full(32, place, dtype=np.uint64))
        if name in self.symbols:
            return f"w.shared_address({self.symbols[name] + offset})"
        if name in self.local_symbols:
            return self.constant(np.full(32, self.local_symbols[name] + offset, dtype=np.uint64))
        return None

    # Compilation

    def function(self, block: int, *, masked: bool) -> BlockFunction:
        """The code of a block, compiled on first use."""
        kept = self.masked if masked else self.plain
        found = kept[block]
        if found is None:
            found = kept[block] = self._compile(block, masked=masked)
        return found

    def source(self, block: int, *, masked: bool) -> str:
        """Python text of a block."""
        emitter = Emitter(self, masked=masked)
        emitter.next_block = block + 1
        closed = False
        for instruction in self.kernel.instructions[self.starts[block] : self.starts[block + 1]]:
            found = forms.find(instruction.op)
            assert found is not None
            known, match = found
            emitter.begin(instruction)
            if known.convergent and instruction.predicate is not None:
                emitter.put(f"w.line = {instruction.line}")
                emitter.put(f"w.check_uniform({emitter.mask}, m)")
            if self.strict_tmem_loads:
                self._check_waited(emitter, instruction, known)
            known.generate(emitter, instruction, match)
            closed = instruction.op.startswith(("bra", "ret", "exit"))
        if not closed:
            emitter.store_registers()
            emitter.put(f"return {block + 1 if block + 1 < self.blocks else FINISHED}")
        body = "\n".join(f"    {line}" for line in emitter.lines)
        return f"def block(w, R, m):\n    S = w.specials\n{body}\n"

    def _slots_in(self, text: str) -> set[int]:
        """Slots of the registers that operands name."""
        named = re.findall(r"%?[A-Za-z_$][\w$]*", text)
        return {self.slot(name) for name in named if self.kernel.width_of(name) is not None}

    def _check_waited(self, emitter: Emitter, instruction: Instruction, form: forms.Form) -> None:
        """Refuse an instruction that uses the result of a load nobody waited for.

        A move does not use it: what it writes has to be waited for instead. Compilers move and pack
        registers ahead of `tcgen05.wait::ld`, which is an instruction that names none.
        """
        if instruction.op.startswith("tcgen05.ld"):
            return
        if form.moves and instruction.predicate is None:
            target, source = (self._slots_in(text) for text in instruction.arguments)
            if source:
                emitter.put(
                    f"if w.unwaited: w.hand_on(frozenset({sorted(source)}), "
                    f"frozenset({sorted(target)}), {instruction.line})"
                )
            return
        if slots := self._slots_in(" ".join([*instruction.arguments, instruction.predicate or ""])):
            constant = f"frozenset({sorted(slots)})"
            emitter.put(f"if w.unwaited: w.check_waited({constant}, {instruction.line})")

    def _compile(self, block: int, *, masked: bool) -> BlockFunction:
        text = self.source(block, masked=masked)
        variant = "masked" if masked else "plain"
        file = f"<{self.kernel.name[:40]}, PTX line {self.line_of(block)}, {variant}>"
        scope: dict[str, Any] = {}
        exec(_code(text, file), self.names, scope)  # noqa: S102 - our own text
        made: BlockFunction = scope["block"]
        return made

    def registers(self) -> list[Any]:
        """Storage for the registers of one warp; None is never written."""
        return [None] * self.register_count


@lru_cache(maxsize=2048)
def _code(text: str, file: str) -> CodeType:
    """Python text compiled; a kernel and its mutants have most of their blocks in common."""
    return compile(text, file, "exec")
