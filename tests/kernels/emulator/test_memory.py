"""Loads, stores and atomics: values, bounds, alignment, poison."""

import numpy as np
import pytest

from kernels_sm100.errors import MemoryFault, MisalignedAccess, UninitialisedRead
from tests.kernels.emulator.snippet import aligned, apply, run

OUT = "mad.wide.u32 %d10, %r0, 4, %d0;\nst.global.b32 [%d10], %r2;"


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("signed", [False, True])
def test_narrow_loads_extend(bits, signed):
    dtype = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")
    a = np.random.default_rng(0).integers(0, 256, 32 * bits // 8, "u1").view(dtype)
    register = {8: "%r2", 16: "%r2", 32: "%r2", 64: "%d20"}[bits]
    out = np.zeros(32, "i8")

    run(
        f"""
        mad.wide.u32 %d10, %r0, {bits // 8}, %d1;
        mad.wide.u32 %d11, %r0, 8, %d0;
        ld.global.nc.L1::no_allocate.{"s" if signed else "u"}{bits} {register}, [%d10];
        {"" if bits == 64 else f"cvt.{'s' if signed else 'u'}64.{'s' if signed else 'u'}32 %d20, %r2;"}
        st.global.b64 [%d11], %d20;
        """,
        out,
        a,
    )

    np.testing.assert_array_equal(out, a.astype("i8"))


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("count", "bits"), [(2, 16), (2, 32), (4, 32), (2, 64)])
def test_vectors(space, count, bits):
    width = count * bits // 8
    a = np.random.default_rng(0).integers(0, 256, 32 * width, "u1")
    source, target = aligned((32 * width,)), aligned((32 * width,))
    source[:] = a
    registers = ", ".join(
        f"%{'d' if bits == 64 else 'h' if bits == 16 else 'r'}{20 + i}" for i in range(count)
    )
    through = ""
    if space == "shared":
        through = f"""
        mad.lo.u32 %r10, %r0, {width}, %r1;
        st.shared.v{count}.b{bits} [%r10], {{{registers}}};
        ld.shared.v{count}.b{bits} {{{registers}}}, [%r10];"""

    run(
        f"""
        mad.wide.u32 %d10, %r0, {width}, %d1;
        mad.wide.u32 %d11, %r0, {width}, %d0;
        ld.global.v{count}.b{bits} {{{registers}}}, [%d10];{through}
        st.global.v{count}.b{bits} [%d11], {{{registers}}};
        """,
        target,
        source,
    )

    np.testing.assert_array_equal(target, a)


def test_lanes_may_read_different_allocations():
    a, b, out = np.full(1, 5, "u4"), np.full(1, 6, "u4"), np.zeros(32, "u4")

    run(
        f"setp.lt.u32 %p1, %r0, 9;\nselp.b64 %d9, %d1, %d2, %p1;\nld.global.b32 %r2, [%d9];\n{OUT}",
        out,
        a,
        b,
    )

    assert out.tolist() == [5] * 9 + [6] * 23


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("ld.global.b32 %r2, [%d0+128];", MemoryFault, "global memory load out of bounds"),
        ("ld.global.b32 %r2, [%d0-4];", MemoryFault, "wanted bytes inside an allocation"),
        ("st.global.b32 [%d0+128], %r0;", MemoryFault, "byte 128 of 'a0' (128 bytes)"),
        ("ld.global.b32 %r2, [%d0+2];", MisalignedAccess, "misaligned global load"),
        ("st.global.v4.b32 [%d0+8], {%r0, %r0, %r0, %r0};", MisalignedAccess, "a multiple of 16"),
        ("ld.shared.b32 %r2, [%r1+4096];", MemoryFault, "shared memory load out of bounds"),
        ("st.shared.b32 [%r1-4], %r0;", MemoryFault, "shared memory store out of bounds"),
        ("ld.shared.v2.b32 {%r2, %r3}, [%r1+4];", MisalignedAccess, "misaligned load"),
        ("ld.shared.b32 %r2, [%r1+8];", UninitialisedRead, "shared memory that nobody wrote"),
        ("ld.global.b32 %r2, [%d1];", UninitialisedRead, "byte 0 of 'a1'"),
        ("atom.global.add.u32 %r2, [%d0+130], %r0;", MisalignedAccess, "misaligned atomic"),
        ("atom.shared.add.u32 %r2, [%r1], %r0;", UninitialisedRead, "atomic of shared memory"),
        ("red.global.add.u32 [%d0+128], %r0;", MemoryFault, "global memory atomic out of bounds"),
        ("ld.b32 %r2, [%d3];", MemoryFault, "out of bounds"),
    ],
)
def test_faults(body, error, said):
    with pytest.raises(error) as caught:
        run(
            f"mov.u64 %d3, 64;\n{body}",
            np.zeros(32, "u4"),
            np.zeros(32, "u4"),
            shared=4096,
            unwritten=(1,),
        )

    assert said in str(caught.value)
    assert f"`{body.rstrip(';')}`" in str(caught.value)


def test_written_bytes_may_be_read():
    scratch, out = np.zeros(32, "u4"), np.zeros(32, "u4")

    run(
        f"mad.wide.u32 %d9, %r0, 4, %d1;\nst.global.b32 [%d9], %r0;\nld.global.b32 %r2, [%d9];\n{OUT}",
        out,
        scratch,
        unwritten=(1,),
    )

    assert out.tolist() == list(range(32))


OPERATIONS = {
    "add": lambda old, new: old + new,
    "min": min,
    "max": max,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "exch": lambda _, new: new,
    "inc": lambda old, new: 0 if old >= new else old + 1,
    "dec": lambda old, new: new if old == 0 or old > new else old - 1,
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_atomics_run_lane_after_lane(op, space):
    cell, out = np.array([12], "u4"), np.zeros(32, "u4")
    values = np.random.default_rng(0).integers(0, 40, 32, "u4")
    place = "[%d1]" if space == "global" else "[%r1]"
    kind = "b32" if op in ("and", "or", "xor", "exch") else "u32"

    run(
        f"""
        mov.u32 %r9, 12;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.b32 [%r1], %r9;
        bar.warp.sync -1;
        mad.wide.u32 %d9, %r0, 4, %d2;
        ld.global.b32 %r3, [%d9];
        atom.{space}.{op}.{kind} %r2, {place}, %r3;
        {OUT}
        """,
        out,
        cell,
        values,
    )

    state, seen = 12, []
    for value in values.tolist():
        seen.append(state)
        state = OPERATIONS[op](state, value) & 0xFFFFFFFF
    assert out.tolist() == seen
    if space == "global":
        assert cell[0] == state


def test_compare_and_swap():
    cell, out = np.array([3], "u4"), np.zeros(32, "u4")

    run(
        f"add.u32 %r3, %r0, 1;\natom.acquire.gpu.global.cas.b32 %r2, [%d1], %r0, %r3;\n{OUT}",
        out,
        cell,
    )

    assert cell[0] == 32  # lane 3 finds 3 and writes 4, lane 4 finds 4, and so on
    assert out.tolist() == [3, 3, 3, *range(3, 32)]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f32", "f4"), ("f64", "f8"), ("f16", "f2"), ("u64", "u8")]
)
def test_sums(kind, dtype):
    cell = np.array([1], dtype)
    noftz = ".noftz" if kind == "f16" else ""
    register = {"f4": "%r2", "f8": "%d9", "f2": "%h2", "u8": "%d9"}[dtype]
    make = f"cvt{'.rn' if kind[0] == 'f' else ''}.{kind}.u32 {register}, %r0;"

    run(f"{make}\nred.relaxed.gpu.global.add{noftz}.{kind} [%d0], {register};", cell)

    assert cell[0] == 1 + 496


def test_vector_reductions():
    cells = aligned((4,), np.float32)

    run("cvt.rn.f32.u32 %r2, %r0;\nred.global.add.v4.f32 [%d0], {%r2, %r2, %r2, %r2};", cells)

    assert cells.tolist() == [496] * 4


def test_packed_halves():
    cells = aligned((2,), np.float16)

    run("mov.u32 %r2, 0x40003c00;\nred.global.add.noftz.f16x2 [%d0], %r2;", cells)

    assert cells.tolist() == [32, 64]


def test_clocks_move_and_special_registers_tell_places():
    got = apply("mov.u32 $d, %laneid;", out="u4")
    later = apply(
        "{ .reg .b64 a, b; mov.u64 a, %globaltimer; mov.u64 b, %clock64; setp.ge.u64 $d, b, a; }",
        out=bool,
    )

    assert got.tolist() == list(range(32))
    assert later.all()


@pytest.mark.parametrize("rows", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices(rows, count, trans):
    """Lane 4r + c holds columns 2c, 2c + 1 of row r of each 8x8 matrix."""
    a = np.random.default_rng(0).integers(0, 2**16, (count, 8, 8), "u2")
    out = np.zeros((count, 32, 2), "u2")
    registers = "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"
    word = "\n".join(
        f"mad.wide.u32 %d9, %r0, 4, %d1;\nld.global.b32 %r{20 + i}, [%d9+{128 * i}];"
        for i in range(count)
    )
    keep = "\n".join(f"st.global.b32 [%d10+{128 * i}], %r{20 + i};" for i in range(count))
    plain = "\n".join(f"st.shared.b32 [%r10+{128 * i}], %r{20 + i};" for i in range(count))
    back = "\n".join(f"ld.shared.b32 %r{20 + i}, [%r10+{128 * i}];" for i in range(count))
    row = "and.b32 %r11, %r0, 31;\nmad.lo.u32 %r11, %r11, 16, %r1;"
    form = f".sync.aligned.m8n8.x{count}{trans}.shared.b16"
    middle = (
        f"{plain}\nbar.warp.sync -1;\nldmatrix{form} {registers}, [%r11];"
        if rows == "ldmatrix"
        else f"stmatrix{form} [%r11], {registers};\nbar.warp.sync -1;\n{back}"
    )

    run(
        f"mad.lo.u32 %r10, %r0, 4, %r1;\nmad.wide.u32 %d10, %r0, 4, %d0;\n{row}\n{word}\n{middle}\n{keep}",
        out,
        a,
    )

    wanted = a.transpose(0, 2, 1) if trans else a
    np.testing.assert_array_equal(out, wanted.reshape(count, 32, 2))
