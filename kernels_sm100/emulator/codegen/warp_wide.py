"""Forms that lanes of a warp execute together."""

import re

from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.tokens import TOKEN
from kernels_sm100.emulator.ptx import Instruction


def together(e: Emitter, member: str | None = None) -> None:
    """Wait for the lanes that `member` names (all of the warp's, if None)."""
    if e.masked:
        members = "None" if member is None else e.read(member, "u4")
        e.put(f"if not w.together(m, {members}): return DIVERGED")


def members(e: Emitter, member: str) -> str:
    """Mask of the running lanes that a member operand names."""
    literal = e.immediate(member, "u4")
    if literal is not None and int(literal[0]) == 0xFFFFFFFF:
        return "m" if e.masked else "None"
    return e.let(f"w.members({e.read(member, 'u4')}, {'m' if e.masked else 'None'})")


@form(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32", convergent=True)
def shuffle(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Exchange of registers."""
    targets = i.arguments[0].split("|")
    together(e, i.arguments[4])
    value, lane, clamp = (e.read(operand, "u4") for operand in i.arguments[1:4])
    got = e.let(f"exchange.shuffle({m['mode']!r}, {value}, {lane}, {clamp})")
    e.write(targets[0], f"{got}[0]", "u4")
    if len(targets) == 2:
        e.write(targets[1], f"{got}[1]", "p")


@form(r"vote\.sync\.ballot\.b32", convergent=True)
def ballot(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Bits of a predicate."""
    together(e, i.arguments[2])
    mask = members(e, i.arguments[2])
    e.write(i.arguments[0], f"exchange.ballot({e.read(i.arguments[1], 'p')}, {mask})", "u4")


@form(r"vote\.sync\.(?P<how>any|all|uni)\.pred", convergent=True)
def vote(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Whether a predicate holds in any, in all, or alike in all lanes."""
    together(e, i.arguments[2])
    mask = members(e, i.arguments[2])
    call = f"exchange.vote({m['how']!r}, {e.read(i.arguments[1], 'p')}, {mask})"
    e.write(i.arguments[0], call, "p")


@form(r"elect\.sync", convergent=True)
def elect(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """One lane of those named: the lowest."""
    together(e, i.arguments[1])
    number, _bar, predicate = i.arguments[0].partition("|")
    got = e.let(f"exchange.elect({members(e, i.arguments[1])})")
    e.write(number, f"{got}[0]", "u4")
    e.write(predicate, f"{got}[1]", "p")


@form(r"redux\.sync\.(?P<how>add|min|max|and|or|xor)\.(?P<type>[usb]32)", convergent=True)
def reduce(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Reduction over lanes."""
    together(e, i.arguments[2])
    token = TOKEN[m["type"]]
    mask = members(e, i.arguments[2])
    call = f"exchange.reduce({m['how']!r}, {e.read(i.arguments[1], token)}, {mask})"
    e.write(i.arguments[0], call, token)


@form(r"redux\.sync\.(?P<how>min|max)(?P<abs>\.abs)?(?P<nan>\.NaN)?\.f32", convergent=True)
def reduce_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Minimum and maximum of floats over lanes."""
    together(e, i.arguments[2])
    value, mask = e.read(i.arguments[1], "f4"), members(e, i.arguments[2])
    value = f"np.abs({value})" if m["abs"] else value
    call = f"exchange.reduce_float({m['how']!r}, {value}, {mask}, {bool(m['nan'])})"
    e.write(i.arguments[0], call, "f4")


@form(r"match\.any\.sync\.(?P<type>b32|b64)", convergent=True)
def match_any(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Lanes with the same value."""
    together(e, i.arguments[2])
    value, mask = e.read(i.arguments[1], TOKEN[m["type"]]), members(e, i.arguments[2])
    e.write(i.arguments[0], f"exchange.match_any({value}, {mask})", "u4")


@form(r"match\.all\.sync\.(?P<type>b32|b64)", convergent=True)
def match_all(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Whether all lanes hold one value."""
    together(e, i.arguments[2])
    value, mask = e.read(i.arguments[1], TOKEN[m["type"]]), members(e, i.arguments[2])
    word, _bar, predicate = i.arguments[0].partition("|")
    got = e.let(f"exchange.match_all({value}, {mask})")
    e.write(word, f"{got}[0]", "u4")
    if predicate:
        e.write(predicate, f"{got}[1]", "p")


@form(r"activemask\.b32")
def active(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """The running lanes."""
    e.write(i.arguments[0], f"exchange.ballot(exchange.EVERY, {'m' if e.masked else 'None'})", "u4")


@form(r"bar\.warp\.sync", convergent=True)
def warp_barrier(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Lanes of a warp meet."""
    together(e, i.arguments[0])
