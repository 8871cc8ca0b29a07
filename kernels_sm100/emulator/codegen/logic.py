"""Forms of logic, shifts, bit fields, comparison and selection."""

import re

from kernels_sm100.emulator.codegen.arithmetic import operands
from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.tokens import BYTES, TOKEN
from kernels_sm100.emulator.ptx import Instruction

SYMBOL = {"and": "&", "or": "|", "xor": "^"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


@form(r"(and|or|xor)\.(?P<type>pred|b16|b32|b64)")
def logic(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Bitwise logic."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    e.write(i.arguments[0], f"{a} {SYMBOL[i.op.split('.')[0]]} {b}", token)


@form(r"not\.(?P<type>pred|b16|b32|b64)")
def invert(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Bitwise complement."""
    (a,) = operands(e, i, TOKEN[m["type"]], 1)
    e.write(i.arguments[0], f"~{a}", TOKEN[m["type"]])


@form(r"cnot\.(?P<type>b16|b32|b64)")
def logical_not(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """C's `!`."""
    token = TOKEN[m["type"]]
    (a,) = operands(e, i, token, 1)
    e.write(i.arguments[0], f"({a} == 0).astype({token})", token)


@form(r"(shl|shr)\.(?P<type>[bus](?:16|32|64))")
def shift(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shifts; a literal amount inside the width needs no clamp."""
    token, left = TOKEN[m["type"]], i.op.startswith("shl")
    (a,) = operands(e, i, token, 1)
    amount = e.immediate(i.arguments[2], "u4")
    if amount is not None and amount[0] < 8 * BYTES[token]:
        by = e.constant(amount.astype(token))
        e.write(i.arguments[0], f"{a} {'<<' if left else '>>'} {by}", token)
        return
    by = e.read(i.arguments[2], "u4")
    e.write(i.arguments[0], f"integer.shift_{'left' if left else 'right'}({a}, {by})", token)


@form(r"shf\.(?P<way>l|r)\.(?P<mode>wrap|clamp)\.b32")
def funnel_shift(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Funnel shift of two registers."""
    a, b, c = operands(e, i, "u4", 3)
    flags = f"left={m['way'] == 'l'}, wrap={m['mode'] == 'wrap'}"
    e.write(i.arguments[0], f"integer.funnel({a}, {b}, {c}, {flags})", "u4")


@form(r"lop3\.b32")
def lookup(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Any function of three bits."""
    a, b, c = operands(e, i, "u4", 3)
    e.write(i.arguments[0], f"bits.lookup3({a}, {b}, {c}, {int(i.arguments[4], 0)})", "u4")


@form(r"prmt\.b32(?:\.(?P<mode>f4e|b4e|rc8|ecl|ecr|rc16))?")
def permute(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Byte permutation."""
    a, b, c = operands(e, i, "u4", 3)
    call = f"bits.permute({a}, {b}, {c})"
    if m["mode"]:
        call = f"bits.permute_mode({a}, {b}, {c}, {m['mode']!r})"
    e.write(i.arguments[0], call, "u4")


@form(r"bfe\.(?P<type>[us](?:32|64))")
def extract_field(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Bit field extraction."""
    token = TOKEN[m["type"]]
    a = e.read(i.arguments[1], token)
    position, length = e.read(i.arguments[2], "u4"), e.read(i.arguments[3], "u4")
    e.write(i.arguments[0], f"bits.extract({a}, {position}, {length})", token)


@form(r"bfi\.(?P<type>b32|b64)")
def insert_field(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Bit field insertion."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    position, length = e.read(i.arguments[3], "u4"), e.read(i.arguments[4], "u4")
    e.write(i.arguments[0], f"bits.insert({a}, {b}, {position}, {length})", token)


@form(r"(popc|clz)\.(?P<type>b32|b64)")
def count_bits(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Ones, and leading zeros."""
    (a,) = operands(e, i, TOKEN[m["type"]], 1)
    name = "population" if i.op.startswith("popc") else "leading_zeros"
    e.write(i.arguments[0], f"bits.{name}({a})", "u4")


@form(r"brev\.(?P<type>b32|b64)")
def reverse_bits(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Bits in the other order."""
    (a,) = operands(e, i, TOKEN[m["type"]], 1)
    e.write(i.arguments[0], f"bits.reverse({a})", TOKEN[m["type"]])


@form(r"bfind(?P<shift>\.shiftamt)?\.(?P<type>[us](?:32|64))")
def find_bit(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Highest bit that is not a sign."""
    (a,) = operands(e, i, TOKEN[m["type"]], 1)
    e.write(i.arguments[0], f"bits.highest({a}, shift={bool(m['shift'])})", "u4")


@form(r"bmsk\.clamp\.b32")
def make_mask(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """A mask of consecutive ones."""
    a, b = operands(e, i, "u4", 2)
    e.write(i.arguments[0], f"bits.field_mask({a}, {b})", "u4")


@form(r"selp\.(?P<type>[busf](?:16|32|64))")
def select(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """`a` where the predicate holds, else `b`."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    e.write(i.arguments[0], f"where({e.read(i.arguments[3], 'p')}, {a}, {b})", token)


@form(r"slct\.(?P<type>[busf](?:16|32|64))\.(?P<by>s32|f32)")
def select_by_sign(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """`a` where the third operand is not negative."""
    token = TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    e.write(
        i.arguments[0], f"where({e.read(i.arguments[3], TOKEN[m['by']])} >= 0, {a}, {b})", token
    )


@form(
    r"setp\.(?P<how>eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan)"
    r"(?:\.(?P<join>and|or|xor))?(?P<ftz>\.ftz)?\.(?P<type>[bus](?:16|32|64)|f32|f64|f16|bf16)"
)
def compare(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Comparison into one or two predicates, joined with a third."""
    how, token = m["how"], TOKEN[m["type"]]
    a, b = operands(e, i, token, 2)
    if m["type"] == "bf16":
        a, b, token = e.let(f"convert.bf16_value({a})"), e.let(f"convert.bf16_value({b})"), "f4"
    if m["ftz"]:
        a, b = e.let(f"floating.flush({a})"), e.let(f"floating.flush({b})")
    if token[0] == "f" and how not in ("lt", "le", "gt", "ge", "eq"):
        value = f"floating.compare({a}, {b}, {how!r})"
    elif how in COMPARE:
        value = f"{a} {COMPARE[how]} {b}"
    else:
        e.unknown("a comparison of integers")
    found = e.let(value)
    targets = i.arguments[0].split("|")
    results = [found] if len(targets) == 1 else [found, e.let(f"~{found}")]
    if m["join"]:
        other = e.read(i.arguments[3], "p")
        results = [e.let(f"{value} {SYMBOL[m['join']]} {other}") for value in results]
    for target, value in zip(targets, results, strict=True):
        e.write(target, value, "p")
