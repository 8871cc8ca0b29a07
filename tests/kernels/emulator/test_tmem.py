"""Tensor memory: shapes by the manual's figures, allocation, and what may go wrong with it."""

import numpy as np
import pytest

from kernels_sm100.errors import (
    Deadlock,
    DivergenceError,
    MissingFence,
    RaceError,
    TensorMemoryError,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import run

ALLOCATE = """
    shr.u32 %r5, %r0, 5;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra READY;
    mov.u32 %r2, COLUMNS;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
READY:
    bar.sync 0;
    ld.shared.b32 %r3, [%r1];
    shl.b32 %r4, %r5, 21;
    add.u32 %r4, %r4, %r3;
"""
FREE = """
    bar.sync 0;
    @%p1 bra DONE;
    mov.u32 %r2, COLUMNS;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, %r2;
DONE:
"""
WAIT_LD = "tcgen05.wait::ld.sync.aligned;"
WAIT_ST = "tcgen05.wait::st.sync.aligned;"


def kernel(body: str, columns: int = 64) -> str:
    return (ALLOCATE + body + FREE).replace("COLUMNS", str(columns))


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def place(shape: str, lane: int, register: int) -> tuple[int, int]:
    """(row, column) of a register, written down from the figures of the PTX manual."""
    if shape == "32x32b":
        return lane, register
    if shape == "16x64b":
        return lane // 4 + (8 if lane % 2 else 0), (lane % 4) // 2 + 2 * register
    if shape == "16x128b":
        return lane // 4 + 8 * (register % 2), lane % 4 + 4 * (register // 2)
    assert shape == "16x256b"
    return lane // 4 + 8 * (register % 4 // 2), 2 * (lane % 4) + register % 2 + 8 * (register // 4)


REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}


@pytest.mark.parametrize("shape", sorted(REGISTERS))
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("stores", [True, False])
def test_shapes(shape, number, stores):
    """One side in the shape, the other as rows: 16 columns of warp 1's lanes."""
    count = REGISTERS[shape] * number
    rows = np.random.default_rng(0).integers(0, 2**32, (32, 32), "u4")
    out = np.zeros((32, 32), "u4")
    width = 32
    fill = "\n".join(f"ld.global.b32 %r{100 + c}, [%d10+{4 * c}];" for c in range(width))
    take = "\n".join(f"ld.global.b32 %r{200 + r}, [%d10+{4 * r}];" for r in range(count))
    keep = "\n".join(f"st.global.b32 [%d11+{4 * r}], %r{200 + r};" for r in range(count))
    drain = "\n".join(f"st.global.b32 [%d11+{4 * c}], %r{100 + c};" for c in range(width))
    before = f"{fill}\ntcgen05.st.sync.aligned.32x32b.x{width}.b32 [%r4], {registers(100, width)};\n{WAIT_ST}"
    if stores:
        middle = f"{take}\ntcgen05.st.sync.aligned.{shape}.x{number}.b32 [%r4], {registers(200, count)};\n{WAIT_ST}"
        after = f"tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {registers(100, width)}, [%r4];\n{WAIT_LD}\n{drain}"
    else:
        middle = f"tcgen05.ld.sync.aligned.{shape}.x{number}.b32 {registers(200, count)}, [%r4];"
        after = f"{WAIT_LD}\n{keep}"

    run(
        kernel(
            f"""
            setp.ne.u32 %p2, %r5, 1;
            @%p2 bra SKIP;
            and.b32 %r6, %r0, 31;
            mad.wide.u32 %d10, %r6, 128, %d1;
            mad.wide.u32 %d11, %r6, 128, %d0;
            {before}
            {middle}
            {after}
        SKIP:
            """
        ),
        out,
        rows,
        threads=64,
    )

    wanted = rows.copy() if stores else np.zeros_like(rows)
    for lane in range(32):
        for register in range(count):
            row, column = place(shape, lane, register)
            if stores:
                wanted[row, column] = rows[lane, register]
            else:
                wanted[lane, register] = rows[row, column]
    np.testing.assert_array_equal(out, wanted)


STORE = f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4+COLUMN], {{%r0}};\n{WAIT_ST}"
LOAD = f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r20}}, [%r4+COLUMN];\n{WAIT_LD}"


def at(text: str, column: int) -> str:
    return text.replace("COLUMN", str(column))


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (at(LOAD, 0), UninitialisedRead, "tcgen05.ld of tensor memory that nobody wrote"),
        (at(STORE, 64), TensorMemoryError, "tcgen05.st outside of an allocation"),
        (at(STORE, 0).replace("x1", "x2").replace("{%r0}", "{%r0, %r0}").replace("+0", "+63"),
         TensorMemoryError, "columns [63, 65), wanted inside one of [0, 64) by warp 0"),
        ("add.u32 %r4, %r4, 0x200000;" + at(STORE, 0), TensorMemoryError, "lane 32, wanted lane 0 for warp 0"),
        ("mov.u32 %r2, 64;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, %r2;",
         TensorMemoryError, "deallocation of columns that were not allocated so"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2;",
         TensorMemoryError, "after the permit was relinquished"),
        ("add.u32 %r4, %r4, %r0;" + at(STORE, 0), DivergenceError, "tensor memory address that differs"),
        ("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], %r2;",
         TensorMemoryError, "without a pair of CTAs"),
    ],
)  # fmt: skip
def test_misuse(body, error, said):
    with pytest.raises(error) as caught:
        run(kernel(body))

    assert said in str(caught.value)


@pytest.mark.parametrize("columns", [16, 48, 1024])
def test_impossible_allocations(columns):
    with pytest.raises(TensorMemoryError, match="a power of two from 32 to 512"):
        run(kernel("", columns))


def test_columns_that_are_not_freed():
    with pytest.raises(
        TensorMemoryError, match=r"not freed at exit in CTA \(0, 0, 0\): got \[0, 64\)"
    ):
        run(ALLOCATE.replace("COLUMNS", "64"))


def test_freed_with_another_size():
    with pytest.raises(TensorMemoryError, match="got 32 columns from 0"):
        run(ALLOCATE.replace("COLUMNS", "64") + FREE.replace("COLUMNS", "32"))


CONTENTION = """
    shr.u32 %r5, %r0, 5;
    mad.lo.u32 %r10, %r5, 4, %r1;
    mov.u32 %r2, 512;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], %r2;
    ld.shared.b32 %r3, [%r10];
    FREE
"""


def test_allocations_wait_for_each_other():
    run(
        CONTENTION.replace("FREE", "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, %r2;"),
        threads=96,
    )
    with pytest.raises(Deadlock, match="waits for tensor memory: 512 columns; held are"):
        run(CONTENTION.replace("FREE", "bar.sync 0;"), threads=96)


def test_freeing_before_the_last_reader():
    body = kernel(at(STORE, 0) + at(LOAD, 0)).replace("bar.sync 0;\n    @%p1 bra", "@%p1 bra")
    said = set()

    for seed in range(12):
        with pytest.raises((RaceError, TensorMemoryError)) as caught:
            run(body, threads=64, schedule="random", seed=seed)
        said.add(str(caught.value).split(" in ")[0])

    assert "race: write over a write, tensor memory column 0, lanes from 32" in said
    assert "tcgen05.st outside of an allocation of tensor memory" in said


def test_strict_loads_have_to_be_waited_for():
    body = kernel(at(STORE, 0) + at(LOAD, 0) + "add.u32 %r21, %r20, 1;")

    run(body, strict_tmem_loads=True)
    run(body.replace(WAIT_LD, ""))
    with pytest.raises(
        UninitialisedRead, match=r"result of tcgen05.ld that is used before tcgen05.wait::ld"
    ):
        run(body.replace(WAIT_LD, ""), strict_tmem_loads=True)


# Results of a load on their way: copied, packed in pairs and unpacked again, ahead of the wait.
MOVES = """
    mov.b32 %r22, %r20;
    mov.b64 %d20, {%r22, %r0};
    mov.b64 {%r23, %r24}, %d20;
"""


def test_moves_hand_a_load_on():
    load, wait = LOAD.split("\n")
    body = kernel(at(STORE, 0) + at(load, 0) + MOVES + f"{wait}\nadd.u32 %r21, %r23, 1;")

    run(body, strict_tmem_loads=True)
    for register in ("%r23", "%r22", "%r20"):
        early = body.replace(WAIT_LD + "\nadd.u32 %r21, %r23", f"add.u32 %r21, {register}")
        assert early != body
        run(early)
        with pytest.raises(UninitialisedRead, match=r"`add\.u32 %r21"):
            run(early, strict_tmem_loads=True)
    # What never met the load is free, and a register that the load will fill is not to be written.
    run(body.replace(f"{wait}\nadd.u32 %r21, %r23", "add.u32 %r21, %r0"), strict_tmem_loads=True)
    with pytest.raises(UninitialisedRead, match=r"`mov\.b32 %r20"):
        run(body.replace("mov.b32 %r22, %r20", "mov.b32 %r20, %r0"), strict_tmem_loads=True)


# Warp 4 shares the lanes of warp 0: it reads, and overwrites, what warp 0 stored.
HANDOVER = """
    shl.b32 %r4, %r5, 21;
    and.b32 %r4, %r4, 0x600000;
    add.u32 %r4, %r4, %r3;
    setp.eq.u32 %p2, %r5, 0;
    setp.eq.u32 %p3, %r5, 4;
    @!%p2 bra MEET;
    FIRST
    tcgen05.fence::before_thread_sync;
MEET:
    bar.sync 1;
    @!%p3 bra OUT;
    tcgen05.fence::after_thread_sync;
    SECOND
OUT:
"""
UNFENCED = "that a barrier orders without tcgen05.fence"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [("", LOAD, "ld"), (LOAD, STORE, "st"), (STORE, STORE, "st")],
    ids=["read of a write", "write over a read", "write over a write"],
)
@pytest.mark.parametrize("missing", ["", "before", "after"])
def test_fences_of_tensor_memory(first, second, said, missing):
    body = HANDOVER.replace("FIRST", at(STORE + first, 0)).replace("SECOND", at(second, 0))
    body = kernel(body).replace(f"tcgen05.fence::{missing}_thread_sync;", "")

    report = run(body, threads=160, strict_fences=not missing)
    if missing:
        assert report.warnings == {f"tcgen05.{said} {UNFENCED}": 1}
        with pytest.raises(
            MissingFence, match=rf"tcgen05\.{said} behind one of warp 0.*before_thread_sync"
        ):
            run(body, threads=160, strict_fences=True)
    else:
        assert not report.warnings


def test_a_race_is_no_missing_fence():
    body = HANDOVER.replace("FIRST", at(STORE, 0)).replace("SECOND", at(LOAD, 0))
    body = kernel(body).replace("bar.sync 1;", "")

    for seed in range(4):
        with pytest.raises((RaceError, UninitialisedRead)) as caught:
            run(body, threads=160, schedule="random_eager", seed=seed, strict_fences=True)
        assert not isinstance(caught.value, MissingFence)
