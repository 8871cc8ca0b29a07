"""Writes the Python function of one basic block.

NOTE [Values of a block]: registers live in the list `R` between blocks, as unsigned arrays. Inside
a block the emitter keeps each register's newest value in a local variable, under every type it was
asked for (an `add.f32` reads the float view that the `mul.f32` before it made), and stores what
was written once, at the end. Since every blocking instruction is a block of its own, a block that
cannot run yet has changed nothing.

NOTE [Masks]: a block exists in two variants. In the plain one all 32 lanes run, and a write
replaces the register; in the masked one `m` says which lanes run, and a write blends into the old
value. A predicated instruction is computed for all lanes and blended, unless it has side effects.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from kernels_sm100.emulator.codegen import literals
from kernels_sm100.emulator.codegen.literals import Literal
from kernels_sm100.emulator.codegen.tokens import (
    BYTES,
    DTYPE,
    STORAGE,
    unsigned,
)
from kernels_sm100.emulator.ptx import Instruction
from kernels_sm100.errors import UnknownInstruction, sentence

if TYPE_CHECKING:
    from kernels_sm100.emulator.codegen.program import Program

SYMBOL = re.compile(r"([A-Za-z_$][\w$]*)(?:\s*\+\s*(\d+))?")
ADDRESS = re.compile(r"\[\s*(%?[\w$]+)\s*(?:([+-])\s*(-?(?:0x[0-9a-fA-F]+|\d+)))?\s*\]")
SPECIAL = re.compile(
    r"%((?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|laneid|warpid|nwarpid|smid|nsmid|cluster_ctarank|cluster_nctarank|dynamic_smem_size"
    r"|total_smem_size|lanemask_(?:lt|le|eq|ge|gt)|is_explicit_cluster|gridid)"
)
CLOCK = re.compile(r"%(clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi)")


class Emitter:
    """Generates the code of one block; code generators of `forms` call its methods."""

    def __init__(self, program: "Program", *, masked: bool) -> None:
        self.program = program
        self.masked = masked
        self.mask = "m" if masked else "None"
        self.lines: list[str] = []
        self.values: dict[str, dict[str, str]] = {}
        self.dirty: set[str] = set()
        self.count = 0
        self.instruction: Instruction
        self.next_block = 0

    # Writing code

    def put(self, line: str) -> None:
        """One line of the function."""
        self.lines.append(line)

    def fresh(self) -> str:
        """A new local variable."""
        self.count += 1
        return f"v{self.count}"

    def let(self, expression: str) -> str:
        """A local variable that holds `expression`."""
        if expression.isidentifier():
            return expression
        name = self.fresh()
        self.put(f"{name} = {expression}")
        return name

    def effect(self, call: str) -> None:
        """A call with side effects: skipped where no lane's predicate holds."""
        self.put(f"w.line = {self.instruction.line}")
        guard = f"if count_nonzero({self.mask}): " if self.instruction.predicate else ""
        self.put(guard + call)

    def results(self, call: str, outputs: Sequence[tuple[str, str]]) -> None:
        """A call with side effects that returns one array for each (register, token)."""
        self.put(f"w.line = {self.instruction.line}")
        got = self.fresh()
        if self.instruction.predicate:
            self.put(f"{got} = {call} if count_nonzero({self.mask}) else None")
        else:
            self.put(f"{got} = {call}")
        for at, (register, token) in enumerate(outputs):
            if register == "_":
                continue
            value = f"{got}[{at}]"
            if self.instruction.predicate:
                old = self.old(register, token)
                value = f"{old} if {got} is None else {value}"
                value = self.let(value)
            self.write(register, value, token)

    def begin(self, instruction: Instruction) -> None:
        """Start an instruction: sets the mask of its predicate."""
        self.instruction = instruction
        self.mask = "m" if self.masked else "None"
        if instruction.predicate is not None:
            value = self.read(instruction.predicate, "p")
            if instruction.negated:
                value = f"~{value}"
            self.mask = self.let(f"{value} & m" if self.masked else value)

    def unknown(self, why: str) -> NoReturn:
        """Refuse the current instruction."""
        raise UnknownInstruction(
            sentence(
                what="instruction that is not modelled",
                where=self.program.place(self.instruction),
                got=repr(self.instruction.text[:120]),
                wanted=why,
                remedy="add the form to kernels_sm100/emulator/codegen, with a test",
            )
        )

    # Operands

    def is_register(self, operand: str) -> bool:
        """Whether it names a register of the kernel."""
        return self.program.kernel.width_of(operand) is not None

    def bits_of(self, register: str) -> int:
        """Width of a register, 0 for a predicate."""
        width = self.program.kernel.width_of(register)
        if width is None:
            self.unknown(f"a register in place of {register}")
        return width

    def list(self, operand: str) -> list[str]:
        """The members of `{a, b}`, or the operand alone."""
        if operand.startswith("{"):
            return [part.strip() for part in operand[1:-1].split(",")]
        return [operand]

    def constant(self, array: np.ndarray) -> str:
        """Name of a constant array in the generated code."""
        return self.program.constant(array)

    def immediate(self, operand: str, token: str) -> Literal | None:
        """32 lanes of a literal, or None if it is none."""
        return literals.immediate(operand, token)

    def symbol(self, operand: str) -> str | None:
        """Expression (u8) for the address of a variable, or None if it is none."""
        found = SYMBOL.fullmatch(operand)
        if found is None:
            return None
        return self.program.symbol(found[1], int(found[2] or 0))

    def read(self, operand: str, token: str) -> str:
        """Local variable or constant with the 32 lanes of `operand`."""
        operand = operand.strip()
        if operand.startswith("!"):
            return self.let(f"~{self.read(operand[1:], 'p')}")
        if self.is_register(operand):
            return self._read_register(operand, token)
        if found := SPECIAL.fullmatch(operand):
            return self._convert(self.let(f"S[{found[1]!r}]"), "u4", token)
        if found := CLOCK.fullmatch(operand):
            wide = "u8" if found[1] in ("clock64", "globaltimer") else "u4"
            return self._convert(self.let(f"w.clock({found[1]!r})"), wide, token)
        literal = self.immediate(operand, token)
        if literal is not None:
            return self.constant(literal)
        address = self.symbol(operand)
        if address is not None:
            return self._convert(self.let(address), "u8", token)
        return self.unknown(f"a known operand in place of {operand!r}")

    def _read_register(self, register: str, token: str) -> str:
        known = self.values.setdefault(register, {})
        if token in known:
            return known[token]
        if not known:
            name = self.fresh()
            slot = self.program.slot(register)
            self.put(f"{name} = R[{slot}]")
            self.put(f"if {name} is None: {name} = w.unwritten({slot}, {self.instruction.line})")
            known[STORAGE[self.bits_of(register)]] = name
            if token in known:
                return name
        source, value = next(iter(known.items()))
        known[token] = self._convert(value, source, token)
        return known[token]

    def _convert(self, value: str, source: str, token: str) -> str:
        """`value` of type `source` as `token`: the same bits, or the low ones."""
        if source == token:
            return value
        if "p" in (source, token):
            self.unknown("no mixture of predicates and values")
        if BYTES[source] == BYTES[token]:
            return self.let(f"{value}.view({token})")
        if BYTES[source] < BYTES[token]:
            wide = f"{source[0] if source[0] == 'i' else 'u'}{BYTES[token]}"
            if source[0] not in "iu":
                value = self.let(f"{value}.view({unsigned(source)})")
            value = self.let(f"{value}.astype({wide})")
            return value if wide == token else self.let(f"{value}.view({token})")
        if source != unsigned(source):
            value = self.let(f"{value}.view({unsigned(source)})")
        value = self.let(f"{value}.astype({unsigned(token)})")
        return value if unsigned(token) == token else self.let(f"{value}.view({token})")

    def old(self, register: str, token: str) -> str:
        """The value before a blend; poison if there is none."""
        if register not in self.values:
            name = self.fresh()
            storage = STORAGE[self.bits_of(register)]
            self.put(f"{name} = before(R[{self.program.slot(register)}], {storage})")
            self.values[register] = {storage: name}
        return self._read_register(register, token)

    def write(self, register: str, expression: str, token: str) -> None:
        """Assign `expression`, 32 lanes of type `token`, under the current mask."""
        register = register.strip()
        if register == "_":
            return
        storage = STORAGE[self.bits_of(register)]
        if BYTES[token] != BYTES[storage]:
            expression = self._convert(self.let(expression), token, storage)
            token = storage
        if self.mask != "None":
            old = self.old(register, token)
            if token in ("x2", "h2", "c2"):
                expression = f"where(pairs({self.mask}), {expression}, {old})"
            else:
                expression = f"where({self.mask}, {expression}, {old})"
        name = self.let(expression)
        self.values[register] = {token: name}
        self.dirty.add(register)

    def address(self, operand: str, token: str) -> str:
        """Variable with the addresses that `[register + offset]` names, as "u4" or "u8"."""
        found = ADDRESS.fullmatch(operand.strip())
        if found is None:
            self.unknown(f"an address in place of {operand}")
        offset = int(found[3], 0) if found[3] else 0
        offset = -offset if found[2] == "-" else offset
        base = found[1]
        literal = self.immediate(base, token) if not self.is_register(base) else None
        if literal is not None:
            return self.constant(literal + DTYPE[token].type(offset))
        value = self.read(base, token)
        if not offset:
            return value
        return self.let(f"{value} + {self.constant(literals.lanes_of(offset, token))}")

    def carry(self) -> str:
        """The carry flag of each lane, 0 or 1."""
        return self.let("w.carry")

    def keep_carry(self, expression: str) -> None:
        """Set the carry flag, under the current mask."""
        if self.mask != "None":
            expression = f"where({self.mask}, {expression}, w.carry)"
        self.put(f"w.carry = {expression}")

    def store_registers(self) -> None:
        """Put what the block wrote back into `R`."""
        for register in sorted(self.dirty):
            token, value = next(iter(self.values[register].items()))
            storage = STORAGE[self.bits_of(register)]
            if token != storage:
                value = f"{value}.view({storage})"
            self.put(f"R[{self.program.slot(register)}] = {value}")
        self.dirty.clear()
