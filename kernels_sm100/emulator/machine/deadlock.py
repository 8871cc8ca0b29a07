"""What a deadlock report says: for every warp that is left, where it stands and what it misses."""

from typing import TYPE_CHECKING

from kernels_sm100.errors import sentence

MOST_LINES = 64

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.fragment import Fragment
    from kernels_sm100.emulator.machine.warp import Warp


def _waits_for(fragment: "Fragment") -> str:
    if fragment.wait is not None:
        return f"waits for {fragment.wait.kind}: {fragment.wait.describe()}"
    if fragment.held:
        return "waits for lanes of its warp that went another way"
    return "spins, and nothing it can see changes"


def _line(warp: "Warp", fragment: "Fragment") -> str:
    program = warp.grid.program
    line = program.line_of(fragment.block)
    instruction = warp.grid.instruction_at(line)
    text = f"`{instruction.text[:90]}`" if instruction else "its end"
    lanes = "" if fragment.mask is None else f", {int(fragment.mask.sum())} lanes"
    source = program.kernel.source_of(line)
    place = f"CTA {warp.cta.index} warp {warp.index}{lanes}, PTX line {line} {text}{source}"
    return f"  {place}: {_waits_for(fragment)}"


def describe(ctas: list["Cta"], *, spinning: bool) -> str:
    """The whole report: one sentence, then a line for each fragment."""
    warps = [warp for cta in ctas for warp in cta.warps if not warp.finished]
    head = sentence(
        what="livelock" if spinning else "deadlock",
        where=f"{len(warps)} warps of {len(ctas)} resident CTAs",
        got="no warp that can move and nothing outstanding",
        wanted="every wait to end",
        remedy="find the first barrier below whose arrivals are missing",
    )
    lines = [_line(warp, fragment) for warp in warps for fragment in warp.fragments]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"  and {len(lines) - MOST_LINES} more"]
    return "\n".join([head, *lines])
