"""What an emulated launch executed, by warp, for comparing kernels."""

from collections import Counter

from kernels_sm100.emulator.grid import program
from kernels_sm100.emulator.launch import Launch, Report


def by_warp(launch: Launch, report: Report, *, without: tuple[str, ...] = ("mov",)) -> Counter[int]:
    """Instructions of each warp of a CTA, over all CTAs.

    Args:
        launch: what was emulated, not with `strict_tmem_loads`.
        report: what the emulator said of it.
        without: opcodes that do not count, up to their first dot. Of `mov` most name a register
            anew, which machine code does not need.
    """
    code = program(launch.ptx, launch.kernel, strict_tmem_loads=False)
    counted: dict[int, tuple[int, int]] = {}  # line of a block -> (its instructions, those counted)
    for block, length in enumerate(code.lengths):
        first = code.starts[block]
        kinds = (i.op.split(".")[0] for i in code.kernel.instructions[first : first + int(length)])
        counted[code.line_of(block)] = (int(length), sum(kind not in without for kind in kinds))
    found: Counter[int] = Counter()
    for (warp, line), instructions in report.executed.items():
        length, kept = counted[line]
        found[warp] += instructions // length * kept
    return found
