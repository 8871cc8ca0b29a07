"""Forms of asynchronous copies: cp.async, bulk copies and reductions, and TMA."""

import re

from kernels_sm100.emulator.codegen.barriers import guard
from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.ptx import Instruction

HINT = r"(?P<hint>\.L2::cache_hint)?"
MBARRIER = r"\.mbarrier::complete_tx::bytes"
TENSOR = re.compile(r"\[\s*([%\w$]+)\s*,\s*(?:\{(.*?)\}|([%\w$]+))\s*\]")
REDUCTION = r"(?P<op>add|min|max|inc|dec|and|or|xor)(?:\.noftz)?"


# cp.async


@form(r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(?:\.L2::cache_hint)?(?:\.L2::\d+B)?")
def copy_async(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """4, 8 or 16 bytes a lane; fewer source bytes leave zeros behind them."""
    target, source = e.address(i.arguments[0], "u4"), e.address(i.arguments[1], "u8")
    size = int(i.arguments[2])
    taken = "None"
    if len(i.arguments) > 3:
        operand = i.arguments[3]
        if e.is_register(operand) and e.bits_of(operand) == 0:
            ignored = e.read(operand, "p")
            taken = e.let(f"where({ignored}, u4.type(0), u4.type({size}))")
        else:
            taken = e.read(operand, "u4")
    e.effect(f"cpasync.copy(w, {target}, {source}, {size}, {taken}, {e.mask})")


@form(r"cp\.async\.commit_group")
def copy_async_commit(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """Close a group of copies."""
    e.effect(f"cpasync.commit(w, {e.mask})")


@form(r"cp\.async\.wait_(?P<what>all|group)", blocking=True)
def copy_async_wait(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Wait until at most so many groups are outstanding."""
    left = int(i.arguments[0]) if m["what"] == "group" else -1
    e.put(f"w.line = {i.line}")
    e.put(f"if {guard(e, i)}cpasync.wait(w, {left}, {e.mask}): return BLOCKED")


@form(r"cp\.async\.mbarrier\.arrive(?P<keep>\.noinc)?(?:\.shared(?:::cta)?)?\.b64")
def copy_async_arrive(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Arrive at an mbarrier when the copies so far are complete."""
    place = e.address(i.arguments[0], "u4")
    e.effect(f"cpasync.arrive(w, {place}, {e.mask}, noinc={bool(m['keep'])})")


# Bulk groups


@form(r"cp\.async\.bulk\.commit_group")
def bulk_commit(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """Close a bulk group."""
    e.effect(f"bulk.commit(w, {e.mask})")


@form(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?", blocking=True)
def bulk_wait(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Wait until at most so many bulk groups are outstanding, or have yet to read."""
    e.put(f"w.line = {i.line}")
    call = f"bulk.wait(w, {int(i.arguments[0])}, {bool(m['read'])}, {e.mask})"
    e.put(f"if {guard(e, i)}{call}: return BLOCKED")


# Bulk copies


@form(
    rf"cp\.async\.bulk\.shared::(?P<to>cluster|cta)\.global{MBARRIER}(?P<multi>\.multicast::cluster)?{HINT}"
)
def bulk_load(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Global to shared memory, of one CTA or several."""
    target, source = e.address(i.arguments[0], "u4"), e.address(i.arguments[1], "u8")
    size, place = e.read(i.arguments[2], "u4"), e.address(i.arguments[3], "u4")
    ctas = e.read(i.arguments[4], "u4") if m["multi"] else "None"
    e.effect(f"bulk.load(w, {target}, {source}, {size}, {place}, {ctas}, {e.mask})")


@form(rf"cp\.async\.bulk\.shared::cluster\.shared::cta{MBARRIER}")
def bulk_exchange(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Shared memory of this CTA to that of another."""
    target, source = e.address(i.arguments[0], "u4"), e.address(i.arguments[1], "u4")
    size, place = e.read(i.arguments[2], "u4"), e.address(i.arguments[3], "u4")
    e.effect(f"bulk.exchange(w, {target}, {source}, {size}, {place}, None, {e.mask})")


@form(
    rf"cp\.reduce\.async\.bulk\.shared::cluster\.shared::cta{MBARRIER}\.{REDUCTION}\.(?P<type>\w+)"
)
def bulk_exchange_reduce(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """The same, added to what is there."""
    target, source = e.address(i.arguments[0], "u4"), e.address(i.arguments[1], "u4")
    size, place = e.read(i.arguments[2], "u4"), e.address(i.arguments[3], "u4")
    how = f"({m['op']!r}, {m['type']!r})"
    e.effect(f"bulk.exchange(w, {target}, {source}, {size}, {place}, {how}, {e.mask})")


@form(rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}(?P<bytes>\.cp_mask)?")
def bulk_store(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shared to global memory."""
    if m["bytes"]:
        e.unknown("bulk stores without a byte mask")
    target, source = e.address(i.arguments[0], "u8"), e.address(i.arguments[1], "u4")
    e.effect(f"bulk.store(w, {target}, {source}, {e.read(i.arguments[2], 'u4')}, None, {e.mask})")


@form(
    rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}\.{REDUCTION}\.(?P<type>\w+)"
)
def bulk_reduce(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shared memory added to global memory."""
    target, source = e.address(i.arguments[0], "u8"), e.address(i.arguments[1], "u4")
    how = f"({m['op']!r}, {m['type']!r})"
    e.effect(f"bulk.store(w, {target}, {source}, {e.read(i.arguments[2], 'u4')}, {how}, {e.mask})")


# TMA


def _tensor(e: Emitter, operand: str) -> tuple[str, str]:
    """Address of the tensor map, and the tuple of coordinates."""
    found = TENSOR.fullmatch(operand)
    if found is None:
        e.unknown("[map, {coordinates}]")
    base = e.address(f"[{found[1]}]", "u8")
    values = [part.strip() for part in (found[2] or found[3]).split(",")]
    return base, "(" + "".join(f"{e.read(value, 'i4')}, " for value in values) + ")"


@form(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.shared::(?P<to>cta|cluster)\.global"
    rf"(?:\.(?P<mode>tile::gather4|tile))?{MBARRIER}(?P<multi>\.multicast::cluster)?"
    rf"(?P<group>\.cta_group::[12])?{HINT}(?:\.cta_group::[12])?"
)
def tma_load(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """A box of a tensor to shared memory, of one CTA or several."""
    target = e.address(i.arguments[0], "u4")
    base, coordinates = _tensor(e, i.arguments[1])
    place = e.address(i.arguments[2], "u4")
    ctas = e.read(i.arguments[3], "u4") if m["multi"] else "None"
    gather = m["mode"] == "tile::gather4"
    e.effect(
        f"tma.load(w, {target}, {base}, {coordinates}, {place}, {ctas}, {e.mask}, "
        f"gather={gather}, rank={m['rank']}, pair={'cta_group::2' in i.op})"
    )


@form(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta"
    rf"(?:\.(?P<mode>tile::scatter4|tile))?\.bulk_group{HINT}"
)
def tma_store(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shared memory to a box of a tensor."""
    base, coordinates = _tensor(e, i.arguments[0])
    source = e.address(i.arguments[1], "u4")
    scatter = m["mode"] == "tile::scatter4"
    e.effect(
        f"tma.store(w, {base}, {coordinates}, {source}, None, {e.mask}, "
        f"scatter={scatter}, rank={m['rank']})"
    )


@form(
    r"cp\.reduce\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta"
    rf"\.(?P<op>add|min|max|inc|dec|and|or|xor)(?:\.tile)?\.bulk_group{HINT}"
)
def tma_reduce(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shared memory combined with a box of a tensor."""
    base, coordinates = _tensor(e, i.arguments[0])
    source = e.address(i.arguments[1], "u4")
    e.effect(
        f"tma.store(w, {base}, {coordinates}, {source}, {m['op']!r}, {e.mask}, "
        f"scatter=False, rank={m['rank']})"
    )


@form(
    r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v(?P<count>[24]))?\.(?P<type>[busf](?:32|64))"
)
def store_async(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Registers to shared memory of another CTA, which learns of it by an mbarrier."""
    token = "u4" if m["type"].endswith("32") else "u8"
    values = ", ".join(e.read(v, token) for v in e.list(i.arguments[1]))
    target, place = e.address(i.arguments[0], "u4"), e.address(i.arguments[2], "u4")
    e.effect(f"remote.store_async(w, {target}, ({values},), {place}, {e.mask})")
