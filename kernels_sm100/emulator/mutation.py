"""Mutants of a kernel: each synchronising instruction of its PTX dropped in turn.

A kernel whose mutants all fail is one whose every wait, arrival and fence is tested. A mutant that
survives is either a hole in the tests or an instruction that this launch does not need; which of
the two has to be argued, one by one.

    for mutant in mutants(launch.ptx, launch.kernel, executed=report.lines):
        verdict = try_mutant(mutant, run, SCHEDULES)
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from kernels_sm100.emulator.parser import parse
from kernels_sm100.emulator.ptx import Instruction
from kernels_sm100.errors import EmulatorError, LaunchError, sentence

# Kind -> opcodes; the first that matches. Arrivals that expect bytes come before plain ones.
KINDS = (
    ("wait", re.compile(r"mbarrier\.(try_wait|test_wait)")),
    ("expect_tx", re.compile(r"mbarrier\.(arrive\.)?expect_tx")),
    ("arrive", re.compile(r"mbarrier\.arrive|cp\.async\.mbarrier\.arrive")),
    ("init", re.compile(r"mbarrier\.init")),
    ("commit", re.compile(r"tcgen05\.commit")),
    ("group commit", re.compile(r"cp\.async(\.bulk)?\.commit_group")),
    ("group wait", re.compile(r"cp\.async(\.bulk)?\.wait_(group|all)")),
    ("proxy fence", re.compile(r"fence\.proxy")),
    ("init fence", re.compile(r"fence\.mbarrier_init")),
    ("tmem fence", re.compile(r"tcgen05\.fence")),
    ("fence", re.compile(r"fence\.|membar\.")),
    ("tmem wait", re.compile(r"tcgen05\.wait")),
    ("dealloc", re.compile(r"tcgen05\.dealloc")),
    ("cluster barrier", re.compile(r"barrier\.cluster\.")),
    ("warp sync", re.compile(r"bar\.warp\.sync")),
    ("barrier arrive", re.compile(r"(bar|barrier)(\.cta)?\.arrive")),
    ("barrier sync", re.compile(r"(bar|barrier)(\.cta)?\.(sync|red)")),
)


class WrongValues(AssertionError):  # noqa: N818 - names what it is
    """A mutant ran to its end and computed something else."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel without one instruction.

    Attributes:
        kind: of the instruction, a first part of `KINDS`.
        line: of the PTX text, 1-based; lines of the mutant are those of the original.
        source: where the instruction comes from, if the PTX has line information.
        text: the instruction.
        ptx: text of the module without it.
    """

    kind: str
    line: int
    source: str
    text: str
    ptx: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        mutant: the mutant.
        killers: schedule and seed -> class of the error, or None where it went unnoticed. Schedules
            behind the first that killed it were not tried.
        message: of the first error.
    """

    mutant: Mutant
    killers: dict[tuple[str, int], str | None]
    message: str

    @property
    def killed(self) -> bool:
        """Whether any schedule noticed."""
        return any(killer is not None for killer in self.killers.values())

    @property
    def killer(self) -> str | None:
        """Class of the error that killed it."""
        return next((killer for killer in self.killers.values() if killer is not None), None)


def kind_of(op: str) -> str | None:
    """The kind of an opcode, or None for one that synchronises nothing."""
    return next((kind for kind, pattern in KINDS if pattern.match(op)), None)


def mutants(
    ptx: str,
    kernel: str,
    *,
    executed: Collection[int] | None = None,
    kinds: Collection[str] | None = None,
) -> list[Mutant]:
    """One mutant for each synchronising instruction of `kernel`.

    A wait becomes one that succeeds at once; any other instruction goes.

    Args:
        ptx: text of the module.
        kernel: name of its entry.
        executed: PTX lines that a run has executed (`Report.lines`); dropping another instruction
            would change nothing. All lines if None.
        kinds: which kinds to drop; all if None.

    Raises:
        LaunchError: for a kernel that the PTX does not have, or an unknown kind.
    """
    known = [kind for kind, _ in KINDS]
    if strangers := sorted(set(kinds or ()) - set(known)):
        raise LaunchError(
            sentence(
                what="unknown kinds of instructions",
                where="mutants",
                got=strangers,
                wanted=f"some of {known}",
                remedy="pass kinds out of KINDS, in a list",
            )
        )
    found = parse(ptx).kernel(kernel)
    made = []
    seen: Counter[tuple[int, str]] = Counter()
    for instruction in found.instructions:
        kind = kind_of(instruction.op)
        number = seen[instruction.line, instruction.op]
        seen[instruction.line, instruction.op] += 1
        if kind is None or (kinds is not None and kind not in kinds):
            continue
        if executed is not None and instruction.line not in executed:
            continue
        source = found.source_of(instruction.line).strip(" ()")
        text = _without(ptx, instruction, number)
        made.append(Mutant(kind, instruction.line, source, instruction.text, text))
    return made


def _without(ptx: str, instruction: Instruction, number: int) -> str:
    """The module without the `number`th instruction of its opcode on its line."""
    lines = ptx.split("\n")
    start = sum(len(line) + 1 for line in lines[: instruction.line - 1])
    pattern = re.compile(r"(@!?%?[\w$]+\s+)?" + re.escape(instruction.op) + r"(?![\w.:])[^;]*;")
    at = start
    match = None
    for _ in range(number + 1):
        match = pattern.search(ptx, at)
        if match is None:
            break
        at = match.end()
    if match is None or "\n" in ptx[start : match.start()].rstrip():
        raise LaunchError(
            sentence(
                what="instruction not found in the text",
                where=f"PTX line {instruction.line}",
                got=instruction.text,
                wanted="the statement on the line where it was parsed",
                remedy="report a fault of kernels_sm100.emulator.mutation",
            )
        )
    instead = ""
    if kind_of(instruction.op) == "wait":
        # Named as in the text: the parser has other names for registers of inline assembly.
        outcome = match[0].split(instruction.op, 1)[1].split(",", 1)[0].strip()
        instead = f"setp.eq.u32 {outcome}, 0, 0;"
    return ptx[: match.start()] + instead + "\n" * match[0].count("\n") + ptx[match.end() :]


def try_mutant(
    mutant: Mutant,
    run: Callable[[str, str, int], None],
    schedules: Sequence[tuple[str, int]],
) -> Verdict:
    """Run a mutant under one schedule after the other, until one of them kills it.

    Args:
        mutant: from `mutants`.
        run: (PTX, schedule, seed) -> nothing; resets memory, emulates, and raises `WrongValues` if
            what came out is wrong. Errors of the emulator kill a mutant as well.
        schedules: (schedule, seed), those that find most first.
    """
    killers: dict[tuple[str, int], str | None] = {}
    for schedule, seed in schedules:
        try:
            run(mutant.ptx, schedule, seed)
        except (EmulatorError, WrongValues) as error:
            killers[schedule, seed] = type(error).__name__
            return Verdict(mutant, killers, str(error))
        killers[schedule, seed] = None
    return Verdict(mutant, killers, "")


def kill_rates(verdicts: Iterable[Verdict]) -> dict[str, tuple[int, int, Counter[str]]]:
    """Kind -> (mutants killed, mutants, how often each class of error killed one)."""
    rates: dict[str, tuple[int, int, Counter[str]]] = {}
    for verdict in verdicts:
        killed, total, by = rates.get(verdict.mutant.kind, (0, 0, Counter()))
        if verdict.killer is not None:
            by[verdict.killer] += 1
        rates[verdict.mutant.kind] = (killed + verdict.killed, total + 1, by)
    return rates
