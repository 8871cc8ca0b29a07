"""Reads PTX text into `ptx.Module`.

PTX is simple to split: statements end with `;`, labels with `:`, and `{ }` nests. What needs care
is that inline assembly declares registers and labels of its own, the same ones at every use, and
that debug directives (`.loc`, `.file`) stand between statements without a `;`.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from kernels_sm100.emulator.ptx import PREDICATE, TYPE_BYTES, Instruction, Kernel, Module, Variable
from kernels_sm100.errors import PtxSyntaxError, sentence

WIDTHS = {name: 8 * size for name, size in TYPE_BYTES.items()} | {"pred": PREDICATE}

FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{]*)\{", re.DOTALL)
VARIABLE = re.compile(
    r"\.(?P<space>shared|local|param)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr[\w.\s]*\s)?(?P<name>[\w$%]+)(?P<array>\[(?P<count>\d*)\])?"
)
LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
IDENTIFIER = re.compile(r"%?[A-Za-z_$][\w$]*")
RANGE = re.compile(r"(%?[\w$]+?)<(\d+)>")
GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+(.*)", re.DOTALL)
OPCODE = re.compile(r"([a-z][\w.:]*)\s*(.*)", re.DOTALL)


@dataclass(slots=True)
class Scope:
    """Names declared inside one pair of braces, and what they are called outside."""

    number: int
    names: dict[str, str] = field(default_factory=dict)


def _syntax_error(line: int, text: str, wanted: str) -> PtxSyntaxError:
    return PtxSyntaxError(
        sentence(
            what="PTX that cannot be read",
            where=f"PTX line {line}",
            got=repr(text[:80]),
            wanted=wanted,
            remedy="extend kernels_sm100/emulator/parser.py if it is legal",
        )
    )


def split_arguments(text: str) -> tuple[str, ...]:
    """Operands of an instruction: split at the commas outside of brackets."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(part.strip() for part in parts if part.strip())


def _variable(match: re.Match[str], line: int) -> Variable:
    size = TYPE_BYTES.get(match["type"])
    if size is None:
        wanted = f"a variable of one of the types {', '.join(TYPE_BYTES)}"
        raise _syntax_error(line, " ".join(match[0].split()), wanted)
    count = 1 if match["array"] is None else int(match["count"] or 0)
    return Variable(match["name"], int(match["align"] or size), size * count)


def _parameters(text: str, line: int) -> dict[str, Variable]:
    """Parameters of a list that begins on a line, in order."""
    placed: dict[str, Variable] = {}
    offset = 0
    for match in VARIABLE.finditer(text):
        found = _variable(match, line + text.count("\n", 0, match.start()))
        offset = -(-offset // found.align) * found.align
        placed[found.name] = Variable(found.name, found.align, found.size, offset)
        offset += found.size
    return placed


def _without_debug(text: str) -> tuple[str, dict[int, tuple[str, int]]]:
    """The text without comments and debug directives, and the source location of each line."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    lines = re.sub(r"//[^\n]*", "", text).split("\n")
    files: dict[int, str] = {}
    marks: dict[int, tuple[int, int]] = {}
    current: tuple[int, int] | None = None
    for at, line in enumerate(lines):
        if found := FILE.match(line):
            files[int(found[1])] = found[2]
            lines[at] = ""
        elif found := LOCATION.match(line):
            current = (int(found[1]), int(found[2]))
            lines[at] = ""
        if current is not None:
            marks[at + 1] = current
    return "\n".join(lines), {at: (files.get(f, "?"), n) for at, (f, n) in marks.items()}


class _Body:
    """Walks the text of one kernel body, statement by statement."""

    def __init__(self, kernel: Kernel, text: str, line: int) -> None:
        self.kernel = kernel
        self.text = text
        self.line = line
        self.scopes = [Scope(0)]
        self.count = 0
        self.position = 0

    def read(self) -> None:
        text = self.text
        while self._skip_blank():
            char = text[self.position]
            if char == "{":
                self.count += 1
                self.scopes.append(Scope(self.count))
                self.position += 1
                self._declare_labels()
            elif char == "}":
                self.scopes.pop()
                self.position += 1
            elif label := LABEL.match(text, self.position):
                self.kernel.labels[self._resolve(label[1])] = len(self.kernel.instructions)
                self.position = label.end()
            else:
                end = text.find(";", self.position)
                if end < 0:
                    raise _syntax_error(self.line, text[self.position :], "a statement ended by ;")
                statement = text[self.position : end]
                line, self.line = self.line, self.line + statement.count("\n")
                self.position = end + 1
                self._statement(" ".join(statement.split()), line)

    def _skip_blank(self) -> bool:
        text = self.text
        while self.position < len(text) and text[self.position] in " \t\r\n;":
            self.line += text[self.position] == "\n"
            self.position += 1
        return self.position < len(text)

    def _declare_labels(self) -> None:
        """Rename the labels of the scope that opens here: branches may precede them."""
        scope, depth, at = self.scopes[-1], 0, self.position
        for match in re.compile(r"[{}]|(?<=[;{}\n:])\s*([A-Za-z_$][\w$]*)\s*:(?!:)").finditer(
            self.text, at - 1
        ):
            if match.start() < at and match[1] is None:
                continue
            if match[1] is None:
                depth += 1 if match[0] == "{" else -1
                if depth < 0:
                    return
            elif depth == 0:
                scope.names[match[1]] = f"{match[1]}__s{scope.number}"

    def _resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
        return name

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".reg"):
            self._registers(text, line)
        elif text.startswith("."):
            self._directive(text, line)
        else:
            self._instruction(text, line)

    def _registers(self, text: str, line: int) -> None:
        found = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if found is None or found[1] not in WIDTHS:
            raise _syntax_error(line, text, "a register declaration of a known type")
        width, scope = WIDTHS[found[1]], self.scopes[-1]
        for name in (part.strip() for part in found[2].split(",")):
            many = RANGE.fullmatch(name)
            if many and not scope.number:
                self.kernel.ranges[many[1]] = (width, int(many[2]))
                continue
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                unique = f"{one}__s{scope.number}" if scope.number else one
                scope.names[one] = unique
                self.kernel.registers[unique] = width

    def _directive(self, text: str, line: int) -> None:
        if text.startswith((".pragma", ".branchtargets")):
            return
        found = VARIABLE.match(text)
        if found is None or found["space"] == "param":
            raise _syntax_error(line, text, "a .reg, .shared, .local or .pragma directive")
        into = self.kernel.shared if found["space"] == "shared" else self.kernel.local
        into[found["name"]] = _variable(found, line)

    def _instruction(self, text: str, line: int) -> None:
        predicate, negated, rest = None, False, text
        if guard := GUARD.match(text):
            predicate, negated, rest = self._resolve(guard[2]), guard[1] == "!", guard[3]
        found = OPCODE.match(rest)
        if found is None:
            raise _syntax_error(line, text, "an instruction")
        operands = found[2]
        if len(self.scopes) > 1:
            operands = IDENTIFIER.sub(lambda m: self._resolve(m[0]), operands)
        made = Instruction(found[1], split_arguments(operands), predicate, negated, line, rest)
        self.kernel.instructions.append(made)


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    raise _syntax_error(text.count("\n", 0, start) + 1, text[start:], "a closing brace")


@lru_cache(maxsize=32)
def parse(text: str) -> Module:
    """The kernels of a PTX module; the last few texts are remembered.

    Raises:
        PtxSyntaxError: naming the line; or of what is no text.
    """
    if not isinstance(text, str):
        raise PtxSyntaxError(
            sentence(
                what="PTX that is no text",
                where="parse",
                got=f"a value of type {type(text).__name__}",
                wanted="a str",
                remedy="decode it",
            )
        )
    text, locations = _without_debug(text)
    kernels: dict[str, Kernel] = {}
    outside = text
    for entry in ENTRY.finditer(text):
        end = _closing_brace(text, entry.end())
        listed = text.count("\n", 0, entry.start(2)) + 1 if entry[2] else 0
        parameters = _parameters(entry[2] or "", listed)
        kernel = Kernel(entry[1], parameters, " ".join(entry[3].split()))
        kernel.locations = locations
        _Body(kernel, text[entry.end() : end], text.count("\n", 0, entry.end()) + 1).read()
        kernels[kernel.name] = kernel
        blank = re.sub(r"[^\n]", " ", text[entry.start() : end])
        outside = outside[: entry.start()] + blank + outside[end:]
    shared = {
        m["name"]: _variable(m, outside.count("\n", 0, m.start()) + 1)
        for m in VARIABLE.finditer(outside)
        if m["space"] == "shared"
    }
    return Module(kernels, shared)


def parameter_sizes(text: str, kernel: str) -> tuple[int, ...]:
    """Bytes of each parameter of `kernel`, in order: how much of a launch's arguments to copy.

    Raises:
        PtxSyntaxError: as `parse`.
        LaunchError: if the PTX has no such kernel.
    """
    return tuple(p.size for p in parse(text).kernel(kernel).parameters.values())
