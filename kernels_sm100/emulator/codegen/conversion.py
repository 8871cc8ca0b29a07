"""Forms of `cvt`, `mov` and address conversion."""

import re

from kernels_sm100.emulator.codegen.emitter import CLOCK, SPECIAL, Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.tokens import BYTES, STORAGE, TOKEN, unsigned
from kernels_sm100.emulator.ptx import Instruction

INTEGER = r"[us](?:8|16|32|64)"


@form(rf"cvt(?P<sat>\.sat)?\.(?P<to>{INTEGER})\.(?P<from>{INTEGER})")
def integer_to_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Truncation and extension."""
    source, target = TOKEN[m["from"]], TOKEN[m["to"]]
    value = e.read(i.arguments[1], source)
    if m["sat"]:
        value = f"convert.saturated({value}, {target})"
    elif source != target:
        value = f"{value}.astype({target})"
    e.write(i.arguments[0], value, target)


@form(rf"cvt(?P<mode>\.r[nzmp])?\.(?P<to>f32|f64|f16|bf16)\.(?P<from>{INTEGER})")
def integer_to_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Integers to floats; f64 holds 32-bit ones exactly."""
    value = e.read(i.arguments[1], TOKEN[m["from"]])
    mode = (m["mode"] or ".rn")[1:]
    if mode != "rn":
        if m["to"] != "f32" or m["from"].endswith("64"):
            e.unknown("round to nearest, or f32 from at most 32 bits")
        value = f"floating.directed({value}.astype(f8), np.zeros(32), {mode!r})"
    elif m["to"] == "bf16":
        value = f"half.narrow({value}.astype(f8), True)"
    else:
        value = f"{value}.astype({TOKEN[m['to']]})"
    e.write(i.arguments[0], value, TOKEN[m["to"]])


@form(
    rf"cvt\.(?P<mode>rni|rzi|rmi|rpi)(?P<ftz>\.ftz)?(?:\.sat)?\.(?P<to>{INTEGER})\."
    r"(?P<from>f32|f64|f16|bf16)"
)
def float_to_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Floats to integers: rounded, clamped, NaN to 0."""
    value = e.read(i.arguments[1], TOKEN[m["from"]])
    if m["from"] == "bf16":
        value = f"convert.bf16_value({value})"
    if m["ftz"]:
        value = f"floating.flush({value})"
    target = TOKEN[m["to"]]
    e.write(i.arguments[0], f"convert.to_integer({value}, {target}, {m['mode']!r})", target)


@form(
    r"cvt\.(?P<mode>rni|rzi|rmi|rpi)(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.(?P<type>f32|f64|f16)\.(?P=type)"
)
def round_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Rounding to an integral float."""
    token = TOKEN[m["type"]]
    value = f"convert.whole({e.read(i.arguments[1], token)}, {m['mode']!r})"
    e.write(i.arguments[0], f"floating.saturate({value})" if m["sat"] else value, token)


@form(r"cvt(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.f32\.(?P<from>f32|f16|bf16)")
def widen_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """To f32, exactly; or a saturation in place."""
    value = e.read(i.arguments[1], TOKEN[m["from"]])
    if m["from"] == "bf16":
        value = f"convert.bf16_value({value})"
    elif m["from"] == "f16":
        value = f"{value}.astype(f4)"
    if m["ftz"]:
        value = f"floating.flush({value})"
    e.write(i.arguments[0], f"floating.saturate({value})" if m["sat"] else value, "f4")


@form(r"cvt(?:\.rn)?\.(?P<to>f64\.f32|f32\.f64)")
def double_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Between f32 and f64."""
    target, source = (TOKEN[name] for name in m["to"].split("."))
    e.write(i.arguments[0], f"{e.read(i.arguments[1], source)}.astype({target})", target)


@form(r"cvt\.(?P<mode>rn|rz)(?P<relu>\.relu)?\.(?P<to>f16|bf16)\.f32")
def narrow_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """f32 to 16 bits."""
    value = e.read(i.arguments[1], "f4")
    if m["relu"]:
        value = f"half.relu({value}).astype(f4)"
    name = "f16" if m["to"] == "f16" else "bf16_bits"
    cut = f", truncate={m['mode'] == 'rz'}"
    e.write(i.arguments[0], f"convert.{name}({value}{cut})", TOKEN[m["to"]])


@form(r"cvt\.(?P<mode>rn|rz)(?P<relu>\.relu)?\.(?P<to>f16|bf16)x2\.f32")
def narrow_pair(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Two f32 to one register; the first source is the upper half."""
    high, low = e.read(i.arguments[1], "f4"), e.read(i.arguments[2], "f4")
    flags = f", relu={bool(m['relu'])}, truncate={m['mode'] == 'rz'}"
    e.write(i.arguments[0], f"convert.{m['to']}_pair({high}, {low}{flags})", "u4")


@form(r"mov\.(?P<type>pred|[busf](?:8|16|32|64))", moves=True)
def move(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Copies, packs `d, {a, b}` and unpacks `{a, b}, d`."""
    target, source = i.arguments
    size = 0 if m["type"] == "pred" else int(re.sub(r"\D", "", m["type"])) // 8
    if target.startswith("{"):
        _unpack(e, e.list(target), source, size)
    elif source.startswith("{"):
        _pack(e, target, e.list(source), size)
    elif m["type"] == "pred" or e.bits_of(target) == 0:
        e.write(target, e.read(source, "p"), "p")
    elif e.is_register(source):
        known = e.values.get(source) or {}
        token = next((t for t in known if BYTES[t] == size), f"u{size}")
        e.write(target, e.read(source, token), token)
    elif SPECIAL.fullmatch(source) or CLOCK.fullmatch(source):
        e.write(target, e.read(source, f"u{size}"), f"u{size}")
    else:
        token = STORAGE[e.bits_of(target)]
        floating = m["type"][0] == "f" and size == BYTES[token]
        e.write(
            target,
            e.read(source, f"f{size}" if floating else token),
            f"f{size}" if floating else token,
        )


def _unpack(e: Emitter, targets: list[str], source: str, size: int) -> None:
    count = len(targets)
    part = f"u{size // count}"
    known = e.values.get(source) or {}
    if count == 2 and "x2" in known:
        part, whole = "f4", known["x2"]
    else:
        whole = e.let(f"{e.read(source, f'u{size}')}.view({part})")
    for at, target in enumerate(targets):
        if target != "_":
            e.write(target, f"{whole}[{at}::{count}]", part)


def _pack(e: Emitter, target: str, sources: list[str], size: int) -> None:
    part = f"u{size // len(sources)}"
    if part == "u4" and all("f4" in (e.values.get(s) or {}) for s in sources):
        high, low = e.read(sources[1], "f4"), e.read(sources[0], "f4")
        e.write(target, f"convert.interleave({high}, {low})", "x2")
        return
    values = [e.read(source, part) for source in sources]
    e.write(target, f"convert.pack(({', '.join(values)}), {unsigned(f'u{size}')})", f"u{size}")


@form(
    r"cvta(?P<to>\.to)?\.(?P<space>shared|shared::cta|shared::cluster|global|local|const|param)\.u(?P<bits>32|64)"
)
def convert_address(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Between a window and the generic space; global addresses are generic ones."""
    value = e.read(i.arguments[1], "u8")
    window = {"s": "SHARED_WINDOW", "l": "LOCAL_WINDOW"}.get(m["space"][0])
    if window is not None:
        value = f"{value} {'-' if m['to'] else '+'} {window}"
    e.write(i.arguments[0], value, "u8")


@form(r"mapa(?P<shared>\.shared::cluster)?\.(?P<type>u32|u64)")
def map_address(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """The address of the same variable in another CTA of the cluster."""
    token = TOKEN[m["type"]]
    if not m["shared"]:
        e.unknown("mapa.shared::cluster")
    value, rank = e.read(i.arguments[1], token), e.read(i.arguments[2], "u4")
    e.put(f"w.line = {i.line}")
    e.write(i.arguments[0], f"w.map_address({value}, {rank}, {e.mask})", token)


@form(r"getctarank\.shared::cluster\.(?P<type>u32|u64)")
def rank_of_address(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Which CTA of the cluster an address belongs to."""
    value = e.read(i.arguments[1], TOKEN[m["type"]])
    e.write(i.arguments[0], f"({value} >> 24).astype(u4)", "u4")


@form(r"isspacep\.(?P<space>shared|shared::cta|shared::cluster|global|local)")
def is_space(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Whether a generic address lies in a window."""
    value = e.read(i.arguments[1], "u8")
    test = {"s": "== 1", "l": "== 2", "g": "> 3"}[m["space"][0]]
    if m["space"] == "shared::cta":
        e.write(i.arguments[0], f"({value} >> 24) == (0x100 | w.cta.rank)", "p")
        return
    e.write(i.arguments[0], f"({value} >> 32) {test}", "p")
