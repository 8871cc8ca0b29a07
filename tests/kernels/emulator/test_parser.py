"""What the parser makes of PTX, and how it refuses what it does not know."""

import pytest

from kernels_sm100.emulator.mutation import mutants
from kernels_sm100.emulator.parser import parameter_sizes, parse, split_arguments
from kernels_sm100.errors import LaunchError, PtxSyntaxError, UnknownInstruction
from tests.kernels.emulator.snippet import HEAD, run

TEXT = (
    HEAD
    + """
.extern .shared .align 1024 .b8 dynamic[];
.shared .align 8 .b8 fixed[24];
.visible .entry first(
    .param .u32 a,
    .param .align 64 .b8 b[128],
    .param .u64 .ptr .global .align 16 c
)
.reqntid 128, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .shared .align 16 .b8 own[32];
    .loc 1 12 5
    mov.u32 %r1, 7; // a comment; with a semicolon
    /* another:
       over lines */
    {
        .reg .pred P;
        .reg .b32 many<2>;
    TRY:
        mbarrier.try_wait.parity.shared::cta.b64 P, [%r1], 0;
        @!P bra TRY;
        mov.u32 many1, %r1;
    }
    {
        .reg .pred P;
    TRY:
        @P bra TRY;
    }
    .loc 1 13 5, function_name $L__info0, inlined_at 1 40 3
    ld.global.v2.b32 {%r2, %r3}, [%rd1+16];
    ret;
}
.file 1 "/somewhere/kernel.py"
"""
)


def test_parameters_are_placed_by_alignment():
    kernel = parse(TEXT).kernels["first"]

    assert [(p.offset, p.size) for p in kernel.parameters.values()] == [(0, 4), (64, 128), (192, 8)]
    assert kernel.parameter_bytes == 200
    assert parameter_sizes(TEXT, "first") == (4, 128, 8)
    assert kernel.directives == ".reqntid 128, 1, 1"


def test_shared_variables_of_module_and_kernel():
    module = parse(TEXT)

    assert {v.name: v.size for v in module.shared.values()} == {"dynamic": 0, "fixed": 24}
    assert module.kernels["first"].shared["own"].align == 16


def test_scopes_rename_registers_and_labels():
    kernel = parse(TEXT).kernels["first"]

    waits = [i for i in kernel.instructions if i.op.startswith("mbarrier")]
    branches = [i for i in kernel.instructions if i.op == "bra"]
    assert waits[0].arguments[0] == "P__s1"
    assert [(b.arguments[0], b.predicate, b.negated) for b in branches] == [
        ("TRY__s1", "P__s1", True),
        ("TRY__s2", "P__s2", False),
    ]
    assert set(kernel.labels) == {"TRY__s1", "TRY__s2"}
    assert kernel.width_of("many1__s1") == 32


def test_widths_of_registers():
    kernel = parse(TEXT).kernels["first"]

    assert [kernel.width_of(n) for n in ("%p2", "%r9", "%r10", "%x", "P__s1")] == [
        0, 32, None, None, 0,
    ]  # fmt: skip


def test_source_lines():
    kernel = parse(TEXT).kernels["first"]
    load = next(i for i in kernel.instructions if i.op.startswith("ld"))

    assert kernel.source_of(load.line) == " (kernel.py:13)"
    assert kernel.source_of(1) == ""
    assert TEXT.split("\n")[load.line - 1].strip().startswith("ld.global")


def test_operands_split_outside_of_brackets():
    assert split_arguments("[%d1, {%r1, %r2}], [%r3], {%a, %b}, 5") == (
        "[%d1, {%r1, %r2}]", "[%r3]", "{%a, %b}", "5",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (".reg .b31 %x;", "PTX line 8: got '.reg .b31 %x'"),
        (".weird stuff;", "got '.weird stuff'"),
        ("mov.u32 %r1, 5", "a statement ended by ;"),
        ("5mov;", "wanted an instruction"),
    ],
)
def test_syntax_errors_name_the_line(body, said):
    text = f"{HEAD}.entry k()\n{{\n.reg .b32 %r<4>;\n\n{body}\n}}\n"

    with pytest.raises(PtxSyntaxError) as caught:
        parse(text)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    "instruction",
    [
        "add.u32.mystery %r2, %r0, %r0;",
        "frobnicate.b32 %r2, %r0;",
        "ld.global.L9::evict.b32 %r2, [%d0];",
        "tcgen05.shift.cta_group::1.down [%r0];",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r2}, {%r2}, {%r2}, {%r2};",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mystery [%r1], [%d0, {%r0, %r0}], [%r2];",
    ],
)
def test_unknown_instructions_are_refused_before_anything_runs(instruction):
    with pytest.raises(UnknownInstruction, match="in PTX line") as caught:
        run(f"bra OVER;\n{instruction}\nOVER:")

    assert instruction.split()[0] in str(caught.value)
    assert "wanted an opcode with modifiers that the emulator knows" in str(caught.value)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("mov.u32 %r2, %nonsense;", "a known operand in place of '%nonsense'"),
        ("bra NOWHERE;", "a label of this kernel"),
        ("ld.shared.b32 %r2, [%r1*4];", "an address in place of [%r1*4]"),
        ("ld.shared.v2.b32 %r2, [%r1];", "2 registers"),
        ("add.u32 %r2, %r0;", "2 source operands"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r2}, [%r1];", "2 registers"),
    ],
)
def test_unknown_operands_are_refused(instruction, wanted):
    with pytest.raises(UnknownInstruction) as caught:
        run(instruction)

    assert wanted in str(caught.value)


def test_variables_of_unknown_types_name_the_line():
    for text, line, said in [
        (".visible .entry k(\n.param .u32 a,\n.param .b31 b)\n{\nret;\n}\n", 6, ".param .b31 b"),
        (".visible .entry k()\n{\n.shared .b31 b[5];\nret;\n}\n", 6, ".shared .b31 b[5]"),
        (".entry k()\n{\nret;\n}\n.shared .b31 b[5];\n", 8, ".shared .b31 b[5]"),
    ]:
        with pytest.raises(PtxSyntaxError) as caught:
            parse(HEAD + text)
        assert f"in PTX line {line}: got {said!r}, wanted a variable of one of" in str(caught.value)


def test_what_is_no_text_is_refused():
    with pytest.raises(PtxSyntaxError) as caught:
        parse(TEXT.encode())

    assert str(caught.value) == (
        "PTX that is no text in parse: got a value of type bytes, wanted a str; decode it."
    )


def test_a_kernel_that_is_not_there():
    said = (
        "kernel that the module does not have in the PTX: got 'second', wanted one of first; pass "
        "the PTX that the kernel was compiled to."
    )

    for ask in (parameter_sizes, mutants):
        with pytest.raises(LaunchError) as caught:
            ask(TEXT, "second")
        assert str(caught.value) == said
    with pytest.raises(LaunchError, match="wanted one of no kernels at all; pass the PTX"):
        parameter_sizes(HEAD, "first")


def test_kinds_of_mutants_are_those_there_are():
    for kinds in (["waits"], "wait"):
        with pytest.raises(LaunchError, match=r"unknown kinds of instructions in mutants: got \['"):
            mutants(TEXT, "first", kinds=kinds)
    assert [mutant.kind for mutant in mutants(TEXT, "first", kinds=["wait"])] == ["wait"]
