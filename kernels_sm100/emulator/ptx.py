"""What a PTX module is made of: kernels, their parameters, registers, memory and instructions.

NOTE [Register names]: a register declared inside `{ }` (inline assembly) hides one of the same name
outside. The parser renames it to `name__sN`, N the number of the scope, and so for labels. After
that every name of a kernel is unique and nothing downstream knows about scopes.
"""

from dataclasses import dataclass, field

from kernels_sm100.errors import LaunchError, sentence

# Bytes of a PTX fundamental type.
TYPE_BYTES = {
    **dict.fromkeys(("b8", "u8", "s8"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 8),
    "b128": 16,
}

PREDICATE = 0  # the width of a predicate register, in bits


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement.

    Attributes:
        op: opcode with its modifiers, `ld.shared.v4.b32`.
        arguments: operands, split at top-level commas.
        predicate: register of `@p`, or None.
        negated: whether it is `@!p`.
        line: 1-based line in the PTX text.
        text: the statement on one line.
    """

    op: str
    arguments: tuple[str, ...]
    predicate: str | None
    negated: bool
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A `.param`, `.shared` or `.local` variable: its alignment and size in bytes.

    `offset` is its place in the parameter buffer, and meaningless for other spaces.
    """

    name: str
    align: int
    size: int
    offset: int = 0


@dataclass(slots=True)
class Kernel:
    """One `.entry`.

    Attributes:
        name: of the entry.
        parameters: in order, with their offsets.
        directives: text between the parameter list and the body (`.reqntid 512, 1, 1`).
        instructions: the body, scopes flattened (NOTE [Register names]).
        labels: index of the instruction that follows each label.
        registers: width in bits of each named register; 0 for predicates.
        ranges: width of `%r` for `.reg .b32 %r<9>`, by prefix, and how many there are.
        shared: shared variables of the kernel.
        local: local variables.
        locations: (source file, line) by PTX line, where there is debug information.
    """

    name: str
    parameters: dict[str, Variable]
    directives: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    shared: dict[str, Variable] = field(default_factory=dict)
    local: dict[str, Variable] = field(default_factory=dict)
    locations: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def parameter_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.size for p in self.parameters.values()), default=0)

    def width_of(self, name: str) -> int | None:
        """Bits of register `name`, 0 for a predicate; None if it is no register."""
        if name in self.registers:
            return self.registers[name]
        prefix = name.rstrip("0123456789")
        found = self.ranges.get(prefix)
        if found is None or prefix == name or int(name[len(prefix) :]) >= found[1]:
            return None
        return found[0]

    def source_of(self, line: int) -> str:
        """Where a PTX line comes from: ` (file.py:12)`; nothing without debug information."""
        found = self.locations.get(line)
        return "" if found is None else f" ({found[0].rsplit('/', 1)[-1]}:{found[1]})"


@dataclass(frozen=True, slots=True)
class Module:
    """Everything in one PTX text; `shared` are module-scope variables, of size 0 if `.extern`."""

    kernels: dict[str, Kernel]
    shared: dict[str, Variable]

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`.

        Raises:
            LaunchError: if there is none.
        """
        if name not in self.kernels:
            raise LaunchError(
                sentence(
                    what="kernel that the module does not have",
                    where="the PTX",
                    got=repr(name),
                    wanted=f"one of {', '.join(self.kernels) or 'no kernels at all'}",
                    remedy="pass the PTX that the kernel was compiled to",
                )
            )
        return self.kernels[name]
