"""Forms of loads, stores and atomics."""

import re

from kernels_sm100.emulator.codegen.emitter import ADDRESS, Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.tokens import BYTES, STORAGE, TOKEN, unsigned
from kernels_sm100.emulator.ptx import Instruction

ORDER = r"(?:\.(?P<order>weak|relaxed|acquire|release|acq_rel|volatile))?"
SCOPE = r"(?:\.(?:cta|cluster|gpu|sys))?"
SPACE = (
    r"(?:\.(?P<space>global|shared|shared::cta|shared::cluster|local|const|param|param::entry))?"
)
CACHE = r"(?:\.(?:nc|ca|cg|cs|lu|cv|wb|wt))*(?:\.L1::\w+)?(?:\.L2::(?:evict_\w+|cache_hint|\d+B))*"
VECTOR = r"(?:\.v(?P<count>[248]))?"
TYPE = r"\.(?P<type>[busf](?:8|16|32|64)|b128)"


def _space(m: re.Match[str]) -> str:
    return (m["space"] or "generic").split("::")[0]


def _targets(e: Emitter, operand: str, count: int) -> list[str]:
    names = e.list(operand)
    if len(names) != count:
        e.unknown(f"{count} registers")
    return names


def _extended(e: Emitter, register: str, token: str) -> str:
    """What a load of `token` puts into a register: it may be wider."""
    if register == "_":
        return token
    width = BYTES[STORAGE[e.bits_of(register)]]
    return token if token[0] == "i" or BYTES[token] == width else unsigned(token)


@form(rf"(ld|ldu){ORDER}{SCOPE}{SPACE}{CACHE}{VECTOR}{TYPE}")
def load(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Loads of one to eight values a lane; narrow ones extend into their register."""
    if m["type"] == "b128":
        e.unknown("at most 64 bits a register")
    token, count, space = TOKEN[m["type"]], int(m["count"] or 1), _space(m)
    size = BYTES[token]
    targets = _targets(e, i.arguments[0], count)
    if space == "param":
        offset = _parameter_offset(e, i.arguments[1])
        for at, target in enumerate(targets):
            if offset is None:
                address = e.address(i.arguments[1], "u8")
                value = e.let(f"generic.load(w, {address}, {size}, {count}, {e.mask}, None)[{at}]")
            else:
                value = e.let(f"w.parameter({offset + at * size}, {size})")
            value = value if token == unsigned(token) else e.let(f"{value}.view({token})")
            e.write(target, value, token)
        return
    order = m["order"] if m["order"] not in (None, "weak") else None
    if space == "shared":
        call = f"shared.load(w, {e.address(i.arguments[1], 'u4')}, {size}, {count}, {e.mask})"
    elif space == "local":
        call = f"local.load(w, {e.address(i.arguments[1], 'u8')}, {size}, {count}, {e.mask})"
    else:
        address = e.address(i.arguments[1], "u8")
        call = f"generic.load(w, {address}, {size}, {count}, {e.mask}, {order!r})"
    if token != unsigned(token):
        call = f"[v.view({token}) for v in {call}]"
    e.results(call, [(t, _extended(e, t, token)) for t in targets])


def _parameter_offset(e: Emitter, operand: str) -> int | None:
    """Offset of `[name + 4]` in the parameter buffer; None for a register."""
    found = ADDRESS.fullmatch(operand)
    if found is None:
        e.unknown(f"an address in place of {operand}")
    variable = e.program.kernel.parameters.get(found[1])
    if variable is None:
        return None
    return variable.offset + (int(found[3], 0) if found[3] else 0)


@form(rf"st{ORDER}{SCOPE}{SPACE}{CACHE}{VECTOR}{TYPE}")
def store(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Stores of one to eight values a lane."""
    if m["type"] == "b128" or (m["space"] or "").startswith(("param", "const")):
        e.unknown("stores of at most 64 bits a register, to writable memory")
    token, space = unsigned(TOKEN[m["type"]]), _space(m)
    sources = _targets(e, i.arguments[1], int(m["count"] or 1))
    values = ", ".join(_stored(e, source, TOKEN[m["type"]], token) for source in sources)
    order = m["order"] if m["order"] not in (None, "weak") else None
    if space == "shared":
        address = e.address(i.arguments[0], "u4")
        e.effect(f"shared.store(w, {address}, {BYTES[token]}, ({values},), {e.mask})")
    elif space == "local":
        address = e.address(i.arguments[0], "u8")
        e.effect(f"local.store(w, {address}, {BYTES[token]}, ({values},), {e.mask})")
    else:
        address = e.address(i.arguments[0], "u8")
        e.effect(f"generic.store(w, {address}, {BYTES[token]}, ({values},), {e.mask}, {order!r})")


def _stored(e: Emitter, source: str, token: str, raw: str) -> str:
    literal = e.immediate(source, token) if not e.is_register(source) else None
    return e.read(source, raw) if literal is None else e.constant(literal.view(f"{raw}"))


@form(
    rf"(atom|red){ORDER}{SCOPE}{SPACE}\.(?P<op>add|min|max|and|or|xor|exch|cas|inc|dec)"
    rf"(?:\.noftz)?{CACHE}{VECTOR}\.(?P<type>[busf](?:16|32|64)|f16x2|bf16x2|bf16)"
)
def atomic(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Atomic read-modify-writes; `red` returns nothing."""
    token, returns = TOKEN[m["type"]], i.op.startswith("atom")
    count, space = int(m["count"] or 1), _space(m)
    first = 1 if returns else 0
    address = e.address(i.arguments[first], "u4" if space == "shared" else "u8")
    values = [e.read(v, token) for v in _targets(e, i.arguments[first + 1], count)]
    compare = "None"
    if m["op"] == "cas":
        compare, values = values[0], [e.read(i.arguments[first + 2], token)]
    order = m["order"] or "relaxed"
    call = (
        f"atomics.update(w, {m['op']!r}, {space!r}, {address}, {token!r}, {m['type']!r}, "
        f"({', '.join(values)},), {compare}, {e.mask}, {order!r})"
    )
    if not returns:
        e.effect(call)
        return
    e.results(call, [(t, token) for t in _targets(e, i.arguments[0], count)])


@form(r"(?P<op>ldmatrix|stmatrix)\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?"
      r"\.shared(?:::cta)?\.b16", convergent=True)  # fmt: skip
def matrix(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """8x8 matrices of 16-bit values between shared memory and the lanes of a warp."""
    if e.masked:
        e.put("if not w.together(m, None): return DIVERGED")
    loads, count = m["op"] == "ldmatrix", int(m["count"])
    registers = _targets(e, i.arguments[0 if loads else 1], count)
    address = e.address(i.arguments[1 if loads else 0], "u4")
    trans = bool(m["trans"])
    if loads:
        call = f"shared.load_matrices(w, {address}, {count}, {trans})"
        e.results(call, [(register, "u4") for register in registers])
        return
    values = ", ".join(e.read(register, "u4") for register in registers)
    e.effect(f"shared.store_matrices(w, {address}, ({values},), {trans})")
