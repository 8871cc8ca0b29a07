"""Forms of integer and floating-point arithmetic."""

import re

from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.tokens import BYTES, TOKEN, unsigned
from kernels_sm100.emulator.ptx import Instruction

OPERATOR = {"add": "+", "sub": "-", "mul": "*"}
INTEGERS = r"(?P<type>[us](?:16|32|64))"
ROUNDING = r"(?P<mode>\.rn|\.rz|\.rm|\.rp)?"


def operands(e: Emitter, i: Instruction, token: str, count: int) -> list[str]:
    """The first `count` sources, as `token`."""
    if len(i.arguments) < count + 1:
        e.unknown(f"{count} source operands")
    return [e.read(operand, token) for operand in i.arguments[1 : count + 1]]


# Integers


@form(rf"(add|sub)\.{INTEGERS}")
def add_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Wrapping addition; signs do not matter."""
    token = unsigned(TOKEN[m["type"]])
    a, b = operands(e, i, token, 2)
    e.write(i.arguments[0], f"{a} {OPERATOR[i.op[:3]]} {b}", token)


@form(r"(?P<op>add|sub|addc|subc)(?P<keep>\.cc)?\.[usb](?P<bits>32|64)")
def add_with_carry(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Extended precision: `.cc` keeps the carry (or borrow), `addc` and `subc` take it in."""
    token = f"u{int(m['bits']) // 8}"
    a, b = operands(e, i, token, 2)
    taken = e.carry() if m["op"].endswith("c") else "None"
    got = e.let(f"integer.add_with_carry({a}, {b}, {taken}, {m['op'].startswith('sub')})")
    e.write(i.arguments[0], f"{got}[0]", token)
    if m["keep"]:
        e.keep_carry(f"{got}[1]")


@form(r"(?P<op>mad|madc)\.(?P<half>lo|hi)(?P<keep>\.cc)?\.(?P<type>[us](?:32|64))")
def multiply_with_carry(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Half of a product plus a third operand, with carry."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    product = f"{a} * {b}" if m["half"] == "lo" else f"integer.multiply_high({a}, {b})"
    wide = unsigned(token)
    product = e.let(f"({product}).view({wide})")
    taken = e.carry() if m["op"] == "madc" else "None"
    call = f"integer.add_with_carry({product}, {e.read(i.arguments[3], wide)}, {taken}, False)"
    got = e.let(call)
    e.write(i.arguments[0], f"{got}[0]", wide)
    if m["keep"]:
        e.keep_carry(f"{got}[1]")


@form(r"add\.sat\.s32")
def add_saturating(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Clamped addition."""
    a, b = operands(e, i, "i4", 2)
    e.write(i.arguments[0], f"integer.saturating_add({a}, {b})", "i4")


@form(r"(mul|mad)\.lo\.(?P<type>[us](?:16|32|64))")
def multiply_low(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Low half of the product."""
    token = unsigned(TOKEN[m["type"]])
    values = operands(e, i, token, 3 if i.op.startswith("mad") else 2)
    more = f" + {values[2]}" if len(values) == 3 else ""
    e.write(i.arguments[0], f"{values[0]} * {values[1]}{more}", token)


@form(r"(mul|mad)\.hi\.(?P<type>[us](?:16|32|64))")
def multiply_high(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """High half of the product."""
    token = TOKEN[m["type"]]
    values = operands(e, i, token, 3 if i.op.startswith("mad") else 2)
    more = f" + {values[2]}" if len(values) == 3 else ""
    e.write(i.arguments[0], f"integer.multiply_high({values[0]}, {values[1]}){more}", token)


@form(r"(mul|mad)\.wide\.(?P<type>[us](?:16|32))")
def multiply_wide(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """The whole product."""
    token = TOKEN[m["type"]]
    wide = f"{token[0]}{2 * BYTES[token]}"
    a, b = operands(e, i, token, 2)
    more = f" + {e.read(i.arguments[3], wide)}" if i.op.startswith("mad") else ""
    e.write(i.arguments[0], f"{a}.astype({wide}) * {b}.astype({wide}){more}", wide)


@form(rf"(div|rem)\.{INTEGERS}")
def divide_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Division towards zero, and its remainder."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    name = "divide" if i.op.startswith("div") else "remainder"
    e.write(i.arguments[0], f"integer.{name}({a}, {b})", token)


@form(r"(neg|abs)\.(?P<type>s(?:16|32|64))")
def negate_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Negation and absolute value; the most negative number stays."""
    token = TOKEN[m["type"]]
    (a,) = operands(e, i, token, 1)
    e.write(i.arguments[0], f"-{a}" if i.op.startswith("neg") else f"np.abs({a})", token)


@form(r"(min|max)(?P<relu>\.relu)?\.(?P<type>[us](?:16|32|64))")
def extreme_integer(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Minimum and maximum."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    value = f"np.{i.op[:3]}imum({a}, {b})"
    if m["relu"]:
        value = f"np.maximum({value}, {token}.type(0))"
    e.write(i.arguments[0], value, token)


@form(rf"sad\.{INTEGERS}")
def absolute_difference(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Sum of absolute differences."""
    token = TOKEN[m["type"]]
    a, b, c = operands(e, i, token, 3)
    e.write(i.arguments[0], f"integer.absolute_difference({a}, {b}, {c})", token)


# Floating point


def _flushed(e: Emitter, values: list[str], ftz: str | None) -> list[str]:
    return [e.let(f"floating.flush({value})") for value in values] if ftz else values


def _finish(value: str, m: re.Match[str]) -> str:
    if m["ftz"]:
        value = f"floating.flush({value})"
    return f"floating.saturate({value})" if m["sat"] else value


@form(rf"(add|sub|mul){ROUNDING}(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.(?P<type>f32|f32x2)")
def add_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """f32 arithmetic, one or two values a lane."""
    token, op, mode = TOKEN[m["type"]], i.op[:3], (m["mode"] or ".rn")[1:]
    a, b = _flushed(e, operands(e, i, token, 2), m["ftz"])
    if mode == "rn":
        value = f"{a} {OPERATOR[op]} {b}"
    elif op == "mul":
        value = f"floating.multiply({a}, {b}, {mode!r})"
    else:
        value = f"floating.add({a}, {'-' if op == 'sub' else ''}{b}, {mode!r})"
    e.write(i.arguments[0], _finish(value, m), token)


@form(rf"fma{ROUNDING}(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.(?P<type>f32|f32x2)")
@form(rf"mad{ROUNDING}(?P<ftz>\.ftz)?(?P<sat>\.sat)?\.(?P<type>f32)")
def fma_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Fused multiply and add."""
    token, mode = TOKEN[m["type"]], (m["mode"] or ".rn")[1:]
    a, b, c = _flushed(e, operands(e, i, token, 3), m["ftz"])
    value = f"floating.fma({a}, {b}, {c})"
    if mode != "rn":
        value = f"floating.fma_directed({a}, {b}, {c}, {mode!r})"
    e.write(i.arguments[0], _finish(value, m), token)


@form(r"(add|sub|fma)(?:\.rn)?\.f32\.(?P<type>bf16|f16)")
def mixed_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """f32 arithmetic whose first sources are 16-bit: exact conversions, then the f32 operation."""
    count = 2 if i.op.startswith("fma") else 1
    token = TOKEN[m["type"]]
    narrow = [
        e.let(f"convert.bf16_value({value})" if m["type"] == "bf16" else f"{value}.astype(f4)")
        for value in operands(e, i, token, count)
    ]
    last = e.read(i.arguments[count + 1], "f4")
    if i.op.startswith("fma"):
        value = f"floating.fma({narrow[0]}, {narrow[1]}, {last})"
    else:
        value = f"{narrow[0]} {OPERATOR[i.op[:3]]} {last}"
    e.write(i.arguments[0], value, "f4")


@form(r"(add|sub|mul)(?:\.rn)?\.f64")
def add_double(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """f64 arithmetic."""
    a, b = operands(e, i, "f8", 2)
    e.write(i.arguments[0], f"{a} {OPERATOR[i.op[:3]]} {b}", "f8")


@form(r"(add|sub|mul|fma)(?:\.rn)?(?P<relu>\.relu)?\.(?P<type>f16x2|f16|bf16x2|bf16)")
def half_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """16-bit arithmetic: in f64, which holds products exactly, then rounded once."""
    kind = m["type"]
    token = TOKEN[kind]
    values = operands(e, i, token, 3 if i.op.startswith("fma") else 2)
    values = [e.let(f"half.widen({v})") for v in values]
    op = i.op[:3]
    expression = (
        f"{values[0]} * {values[1]} + {values[2]}"
        if op == "fma"
        else f"{values[0]} {OPERATOR[op]} {values[1]}"
    )
    if m["relu"]:
        expression = f"half.relu({expression})"
    e.write(i.arguments[0], f"half.narrow({expression}, {kind.startswith('b')!r})", token)


@form(r"(neg|abs)(?P<ftz>\.ftz)?\.(?P<type>f32|f64|f16|f16x2)")
def negate_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Sign operations."""
    token = TOKEN[m["type"]]
    (a,) = _flushed(e, operands(e, i, token, 1), m["ftz"])
    e.write(i.arguments[0], f"-{a}" if i.op.startswith("neg") else f"np.abs({a})", token)


@form(r"(neg|abs)\.(?P<type>bf16|bf16x2)")
def negate_bf16(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Sign operations on bits."""
    token = TOKEN[m["type"]]
    (a,) = operands(e, i, token, 1)
    negative = i.op.startswith("neg")
    e.write(
        i.arguments[0], f"{a} ^ u2.type(0x8000)" if negative else f"{a} & u2.type(0x7fff)", token
    )


@form(
    r"(min|max)(?P<ftz>\.ftz)?(?P<nan>\.NaN)?(?P<xorsign>\.xorsign\.abs)?(?P<abs>\.abs)?"
    r"\.(?P<type>f32|f16|f16x2)"
)
def extreme_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Minimum and maximum of two or three values."""
    token = TOKEN[m["type"]]
    values = _flushed(e, operands(e, i, token, len(i.arguments) - 1), m["ftz"])
    signed = values
    if m["xorsign"] or m["abs"]:
        values = [e.let(f"np.abs({value})") for value in values]
    if len(values) not in (2, 3) or (m["xorsign"] and len(values) == 3):
        e.unknown("two or three sources")
    result = values[0]
    for value in values[1:]:
        call = f"floating.{i.op[:3]}imum({result}, {value}, nan={bool(m['nan'])})"
        result = e.let(call)
    if m["xorsign"]:
        result = f"floating.magnitude_xorsign({result}, {signed[0]}, {signed[1]})"
    e.write(i.arguments[0], result, token)


@form(r"(min|max)(?P<nan>\.NaN)?\.(?P<type>bf16|bf16x2)")
def extreme_bf16(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Minimum and maximum of bf16, through f32."""
    token = TOKEN[m["type"]]
    a, b = (e.let(f"convert.bf16_value({v})") for v in operands(e, i, token, 2))
    call = f"floating.{i.op[:3]}imum({a}, {b}, nan={bool(m['nan'])})"
    e.write(i.arguments[0], f"convert.bf16_bits({call})", token)


@form(r"(?P<op>ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)(?:\.approx|\.rn)?(?P<ftz>\.ftz)?\.f32")
def transcendental(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Functions of one f32; see NOTE [Accuracy]."""
    if m["op"] == "ex2" and m["ftz"]:
        (a,) = operands(e, i, "f4", 1)
        e.write(i.arguments[0], f"floating.power_of_two_flushed({a})", "f4")
        return
    call = {
        "ex2": "floating.power_of_two", "lg2": "floating.logarithm", "rcp": "floating.reciprocal",
        "rsqrt": "floating.reciprocal_root", "sqrt": "np.sqrt", "sin": "np.sin", "cos": "np.cos",
        "tanh": "np.tanh",
    }[m["op"]]  # fmt: skip
    (a,) = _flushed(e, operands(e, i, "f4", 1), m["ftz"])
    value = f"{call}({a})"
    e.write(i.arguments[0], f"floating.flush({value})" if m["ftz"] else value, "f4")


@form(r"(?P<op>ex2|tanh)\.approx(?:\.ftz)?\.(?P<type>f16x2|f16|bf16x2|bf16)")
def transcendental_half(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Functions of 16-bit values."""
    token = TOKEN[m["type"]]
    (a,) = operands(e, i, token, 1)
    call = "np.exp2" if m["op"] == "ex2" else "np.tanh"
    value = f"{call}(half.widen({a}))"
    e.write(i.arguments[0], f"half.narrow({value}, {m['type'].startswith('b')!r})", token)


@form(r"div(?:\.full|\.approx|\.rn)(?P<ftz>\.ftz)?\.f32")
def divide_float(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Division."""
    a, b = _flushed(e, operands(e, i, "f4", 2), m["ftz"])
    value = f"floating.divide({a}, {b})"
    e.write(i.arguments[0], f"floating.flush({value})" if m["ftz"] else value, "f4")


@form(r"copysign\.(?P<type>f32|f64)")
def copy_sign(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """`copysign d, a, b`: the magnitude of b with the sign of a."""
    a, b = operands(e, i, TOKEN[m["type"]], 2)
    e.write(i.arguments[0], f"np.copysign({b}, {a})", TOKEN[m["type"]])
