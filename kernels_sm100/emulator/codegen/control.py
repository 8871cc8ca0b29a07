"""Forms of control flow, and of hints that change nothing the emulator models."""

import re

from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.ptx import Instruction


@form(r"bra(?:\.uni)?")
def branch(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """A branch: of all lanes, of none, or one that splits them."""
    target = e.program.targets.get(i.arguments[0])
    if target is None:
        e.unknown("a label of this kernel")
    e.store_registers()
    if i.predicate is None:
        e.put(f"return {target}")
        return
    e.put(f"return branch({e.mask}, m, {target}, {e.next_block})")


@form(r"(ret|exit)")
def leave(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """The lanes end."""
    e.store_registers()
    if i.predicate is None:
        e.put("return FINISHED")
        return
    e.put(f"return branch({e.mask}, m, FINISHED, {e.next_block})")


@form(r"trap")
def trap(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """The kernel gives up."""
    e.effect("w.trap()")


@form(r"nanosleep\.u32", blocking=True)
def sleep(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """Give way to other warps."""
    e.put("w.pause()")


@form(r"setmaxnreg\.(?P<way>inc|dec)\.sync\.aligned\.u32", blocking=True)
def set_registers(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """A warpgroup's share of the register file; `inc` waits until there are enough."""
    e.put(f"w.line = {i.line}")
    e.put(
        f"if w.cta.register_file.request(w, m, {int(i.arguments[0])}, {m['way']!r}): return BLOCKED"
    )


@form(r"griddepcontrol\.(?:wait|launch_dependents)")
def dependent_launch(_: Emitter, __: Instruction, ___: re.Match[str]) -> None:
    """Launches are emulated one after the other: every earlier grid is complete."""


@form(r"(prefetch|prefetchu|discard|applypriority)[\w.:]*")
@form(r"cp\.async\.bulk\.prefetch\.(?:L2|tensor)[\w.:]*")
@form(r"pmevent(?:\.mask)?")
def hint(_: Emitter, __: Instruction, ___: re.Match[str]) -> None:
    """Caches are not modelled."""


@form(r"createpolicy\.[\w.:]+")
def cache_policy(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """A cache policy is a number that nothing reads."""
    e.write(i.arguments[0], e.read("0", "u8"), "u8")
