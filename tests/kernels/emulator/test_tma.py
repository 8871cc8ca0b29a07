"""Tensor maps and TMA: boxes against NumPy slices, swizzles by their definition, faults."""

import numpy as np
import pytest

from kernels_sm100.emulator.machine.tensor_map import TensorMap, decode, encode
from kernels_sm100.errors import (
    BarrierError,
    MemoryFault,
    MisalignedAccess,
    MissingFence,
    RaceError,
    TensorMapError,
    UninitialisedRead,
)
from tests.kernels.emulator.snippet import aligned, run

KINDS = {"u8": "u1", "u16": "u2", "u32": "u4", "s32": "i4", "f16": "f2", "bf16": "u2", "f32": "f4"}
SETUP = """
    setp.eq.u32 %p1, %r0, 0;
    mov.u32 %r3, 1;
    @%p1 mbarrier.init.shared.b64 [%r1+16384], %r3;
    @%p1 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    mov.u32 %r4, BYTES;
    mov.u64 %d20, map0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+16384], %r4;
"""
WAIT = """
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+16384], 0;
    @!%p2 bra W;
"""
DUMP = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d21, %r0, 16, %d0;
    mov.u32 %r9, BYTES;
    add.u32 %r9, %r9, %r1;
COPY:
    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8];
    st.global.v4.b32 [%d21], {%r20, %r21, %r22, %r23};
    add.u32 %r8, %r8, 512;
    add.s64 %d21, %d21, 512;
    setp.lt.u32 %p3, %r8, %r9;
    @%p3 bra COPY;
"""
LOAD = (
    "@%p1 cp.async.bulk.tensor.RANKd.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    " [%r1], [%d20, {CORNER}], [%r1+16384];"
)


def corner(at: tuple[int, ...]) -> str:
    return ", ".join(str(c) for c in at)


def load_box(
    tensor: np.ndarray,
    kind: str,
    box: tuple[int, ...],
    at: tuple[int, ...],
    swizzle: int = 0,
    **options,
):
    """Bytes of shared memory after a load."""
    size = int(np.prod(box)) * tensor.itemsize
    out = aligned((max(size, 512),))
    body = SETUP + LOAD.replace("RANK", str(len(box))).replace("CORNER", corner(at)) + WAIT + DUMP
    run(
        body.replace("BYTES", str(size)),
        out,
        tensor,
        maps=((1, kind, box, swizzle),),
        shared=20480,
        **options,
    )
    return out[:size]


def box_of(tensor: np.ndarray, box: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    """The box, element by element; zeros outside."""
    result = np.zeros(box[::-1], tensor.dtype)
    for index in np.ndindex(*box[::-1]):
        place = tuple(i + c for i, c in zip(index, at[::-1], strict=True))
        if all(0 <= p < n for p, n in zip(place, tensor.shape, strict=True)):
            result[index] = tensor[place]
    return result


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    tensor = aligned(shape, np.dtype(dtype))
    octets = np.random.default_rng(0).integers(0, 120, tensor.nbytes, "u1")
    tensor.reshape(-1).view("u1")[:] = octets
    return tensor


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_element_types(kind):
    tensor = sample((40, 64), KINDS[kind])

    got = load_box(tensor, kind, (32, 16), (16, 8))

    assert got.tobytes() == box_of(tensor, (32, 16), (16, 8)).tobytes()


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((200,), (128,), (100,)),
        ((9, 64), (32, 4), (0, -2)),
        ((9, 64), (32, 4), (-7, 7)),
        ((9, 64), (32, 4), (50, 5)),
        ((9, 64), (32, 4), (64, 0)),
        ((5, 9, 64), (16, 4, 2), (8, 3, -1)),
        ((3, 5, 9, 64), (16, 2, 3, 2), (60, -1, 3, 2)),
        ((2, 3, 5, 9, 16), (16, 2, 2, 2, 2), (0, 8, 4, 2, 1)),
    ],
)
@pytest.mark.parametrize("schedule", ["round_robin", "lazy"])
def test_ranks_and_edges(shape, box, at, schedule):
    tensor = sample(shape, "f4")

    got = load_box(tensor, "f32", box, at, schedule=schedule)

    assert got.tobytes() == box_of(tensor, box, at).tobytes()


@pytest.mark.parametrize(("swizzle", "row"), [(1, 32), (2, 64), (3, 128), (3, 64)])
def test_swizzles(swizzle, row):
    tensor = sample((32, row), "u1")

    got = load_box(tensor, "u8", (row, 32), (0, 0), swizzle)

    flat = tensor.reshape(-1)
    period = {1: 2, 2: 4, 3: 8}[swizzle]
    for place in range(0, flat.size, 16):
        line = place // 128  # 128-byte lines; the chunk number is exclusive-ored with the line's
        chunk = place // 16 % 8
        swapped = place - chunk * 16 + (chunk ^ line % period) * 16
        assert got[swapped : swapped + 16].tobytes() == flat[place : place + 16].tobytes()


def test_descriptors_survive_the_round_trip():
    for kind in ("u8", "u16", "s64", "f16", "f64", "bf16"):
        size = {"u8": 1, "f64": 8, "s64": 8}.get(kind, 2)
        tensor = TensorMap(
            address=0x7F0012345670,
            kind=kind,
            size=(256, 4096, 3, 1 << 31),
            strides=(size, 4096, 1 << 36, 1 << 37),
            box=(32, 256, 1, 2),
            swizzle=0,
        )
        assert decode(encode(tensor)) == tensor


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        (2, 0x2 | 7 << 4, "impossible rank"),
        (2, 0x2 | 1 << 4 | 15 << 7, "impossible rank or element type"),
        (13, 1, "element strides"),
        (2, 0x2 | 1 << 4 | 7 << 7 | 1 << 11, "interleaved layout"),
        (0, 8, "misaligned tensor"),
        (13, 6 << 24, "inner box"),
    ],
)
def test_descriptors_that_are_refused(word, value, said):
    tensor = TensorMap(1 << 40, "f32", (64, 64), (4, 256), (32, 8), 0)
    words = np.frombuffer(encode(tensor), "<u4").copy()
    words[word] = value

    with pytest.raises(TensorMapError, match=said):
        decode(words.tobytes())


def test_a_swizzled_box_may_not_be_wider_than_its_span():
    with pytest.raises(TensorMapError, match="at most 64"):
        decode(encode(TensorMap(1 << 40, "f32", (64, 64), (4, 256), (32, 8), 2)))


GATHER = """
    @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
        [%r1], [%d20, {16, 7, 2, 200, 2}], [%r1+16384];
"""


def test_gathered_rows():
    tensor, out = sample((40, 64), "f4"), aligned((512,))

    run(
        (SETUP + GATHER + WAIT + DUMP).replace("BYTES", "512"),
        out,
        tensor,
        maps=((1, "f32", (32, 1), 0),),
        shared=20480,
    )

    rows = [tensor[7, 16:48], tensor[2, 16:48], np.zeros(32, "f4"), tensor[2, 16:48]]
    assert out.tobytes() == np.stack(rows).tobytes()


FILL = """
    mad.lo.u32 %r8, %r0, 16, %r1;
    mad.wide.u32 %d21, %r0, 16, %d0;
    mov.u32 %r9, BYTES;
    add.u32 %r9, %r9, %r1;
COPY:
    ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%d21];
    st.shared.v4.b32 [%r8], {%r20, %r21, %r22, %r23};
    add.u32 %r8, %r8, 512;
    add.s64 %d21, %d21, 512;
    setp.lt.u32 %p3, %r8, %r9;
    @%p3 bra COPY;
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
    mov.u64 %d20, map0;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 STORE [%d20, {CORNER}], [%r1];
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
"""
STORE = "cp.async.bulk.tensor.RANKd.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.RANKd.global.shared::cta.OP.tile.bulk_group"


def store_box(form: str, tensor, kind, values, box, at, swizzle=0, **options):
    size = int(np.prod(box)) * tensor.itemsize
    body = FILL.replace("STORE", form).replace("RANK", str(len(box))).replace("BYTES", str(size))
    run(
        body.replace("CORNER", corner(at)),
        values,
        tensor,
        maps=((1, kind, box, swizzle),),
        shared=20480,
        **options,
    )


@pytest.mark.parametrize("at", [(0, 0), (16, 30), (-5, -3), (100, 0)])
@pytest.mark.parametrize("schedule", ["round_robin", "lazy"])
def test_stores_leave_out_what_is_outside(at, schedule):
    tensor, values = sample((32, 64), "f4"), sample((16, 32), "f4") + 1
    wanted = tensor.copy()
    for row, column in np.ndindex(16, 32):
        y, x = at[1] + row, at[0] + column
        if 0 <= y < 32 and 0 <= x < 64:
            wanted[y, x] = values[row, column]

    store_box(STORE, tensor, "f32", values, (32, 16), at, schedule=schedule)

    np.testing.assert_array_equal(tensor, wanted)


@pytest.mark.parametrize(
    ("op", "ufunc"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)]
)
def test_reductions(op, ufunc):
    tensor, values = sample((32, 64), "i4"), sample((16, 32), "i4")
    values[::2] //= 7
    wanted = tensor.copy()
    wanted[4:20, 8:40] = ufunc(wanted[4:20, 8:40], values)

    store_box(REDUCE.replace("OP", op), tensor, "s32", values, (32, 16), (8, 4))

    np.testing.assert_array_equal(tensor, wanted)


def test_a_load_and_a_swizzled_store_give_the_tensor_back():
    source, target = sample((64, 64), "u2"), aligned((64, 64), np.uint16)
    body = (
        SETUP
        + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")
        + WAIT
        + """
        mov.u64 %d22, map1;
        @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d22, {0, 0}], [%r1];
        @%p1 cp.async.bulk.commit_group;
        @%p1 cp.async.bulk.wait_group.read 0;
        """
    )

    run(
        body.replace("BYTES", "8192"),
        target,
        source,
        maps=((1, "bf16", (64, 64), 3), (0, "bf16", (64, 64), 3)),
        shared=20480,
        schedule="lazy",
    )

    np.testing.assert_array_equal(target, source)


def test_scattered_rows():
    tensor, values = sample((40, 64), "f4"), sample((4, 32), "f4") + 1
    wanted = tensor.copy()
    for row, value in zip((5, 39, 0), (values[0], values[1], values[3]), strict=True):
        wanted[row, :32] = value
    form = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    body = FILL.replace("STORE", form).replace("BYTES", "512").replace("CORNER", "0, 5, 39, 41, 0")

    run(body, values, tensor, maps=((1, "f32", (32, 1), 0),), shared=20480)

    np.testing.assert_array_equal(tensor, wanted)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("[%r1], [%d20", "[%r1+64], [%d20", MisalignedAccess, "a multiple of 128"),
        ("[%r1], [%d20", "[%r1+20096], [%d20", MemoryFault, "shared memory access by TMA"),
        (".2d.", ".3d.", TensorMapError, "tensor map of another rank"),
        ("{0, 0}", "{0, 0, 0}", TensorMapError, "rank 2 with 3 coordinates"),
        (
            "%d20, map0;",
            "%d20, map0;\nadd.s64 %d20, %d20, 32;",
            MisalignedAccess,
            "misaligned tensor map",
        ),
    ],
)
def test_faults_of_loads(old, new, error, said):
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0") + WAIT

    with pytest.raises(error) as caught:
        run(
            body.replace(old, new).replace("BYTES", "512"),
            aligned((512,)),
            sample((4, 32), "f4"),
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )

    assert said in str(caught.value)


def test_a_tensor_map_beyond_its_allocation():
    tensor = sample((4, 32), "f4")
    claimed = TensorMap(tensor.ctypes.data, "f32", (32, 8), (4, 128), (32, 8), 0)

    with pytest.raises(MemoryFault, match="access by TMA out of bounds"):
        run(
            (SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")).replace("BYTES", "1024"),
            aligned((1024,)),
            tensor,
            maps=(encode(claimed),),
            shared=20480,
        )


def test_tensors_that_nobody_wrote():
    with pytest.raises(UninitialisedRead, match="load by TMA of global memory that nobody wrote"):
        load_box(sample((16, 64), "f4"), "f32", (32, 4), (0, 0), unwritten=(1,))
    with pytest.raises(UninitialisedRead, match="store by TMA of shared memory that nobody wrote"):
        store_box(
            STORE + " [%d20, {0, 0}], [%r1+2048];\n//",
            sample((64, 64), "f4"),
            "f32",
            sample((16, 32), "f4"),
            (32, 16),
            (0, 0),
        )


def test_reading_without_the_wait_is_a_race():
    tensor = sample((16, 64), "f4")
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0") + DUMP

    with pytest.raises(RaceError, match="race: read of a write, shared memory at 0x400"):
        run(
            body.replace("BYTES", "512"),
            aligned((512,)),
            tensor,
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )
    with pytest.raises(UninitialisedRead):
        run(body.replace("BYTES", "512"), aligned((512,)), tensor, maps=((1, "f32", (32, 4), 0),),
            shared=20480, races=False, schedule="lazy")  # fmt: skip


MULTICAST = """
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p4, %r2, 0;
    and.pred %p5, %p1, %p4;
    mov.u32 %r3, 1;
    @%p1 mbarrier.init.shared.b64 [%r1+16384], %r3;
    @%p1 fence.mbarrier_init.release.cluster;
    mov.u32 %r4, 512;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+16384], %r4;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mov.u64 %d20, map0;
    mov.b16 %h1, 3;
    @%p5 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1], [%d20, {0, 1}], [%r1+16384], %h1;
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+16384], 0;
    @!%p2 bra W;
    mad.lo.u32 %r8, %r0, 16, %r1;
    ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r8];
    mul.wide.u32 %d21, %r2, 512;
    mad.wide.u32 %d21, %r0, 16, %d21;
    add.s64 %d21, %d21, %d0;
    st.global.v4.b32 [%d21], {%r20, %r21, %r22, %r23};
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("schedule", ["round_robin", "lazy", "random"])
def test_multicast_reaches_every_cta_of_the_mask(schedule):
    tensor, out = sample((16, 32), "f4"), aligned((2, 4, 32), np.float32)

    run(
        MULTICAST,
        out,
        tensor,
        maps=((1, "f32", (32, 4), 0),),
        shared=20480,
        grid=2,
        cluster=2,
        schedule=schedule,
    )

    np.testing.assert_array_equal(out, np.stack([tensor[1:5]] * 2))


def test_global_stores_need_a_fence_before_tma_reads_them():
    body = (
        "mad.wide.u32 %d9, %r0, 4, %d1;\nst.global.b32 [%d9], %r0;\nFENCE\n"
        + SETUP
        + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")
        + WAIT
    ).replace("BYTES", "512")
    options = {"maps": ((1, "f32", (32, 4), 0),), "shared": 20480}

    run(
        body.replace("FENCE", "fence.proxy.async.global;"),
        aligned((512,)),
        sample((4, 32), "f4"),
        **options,
    )
    with pytest.raises(MissingFence, match=r"missing fence.proxy.async, byte 0 of 'a1'"):
        run(body.replace("FENCE", ""), aligned((512,)), sample((4, 32), "f4"), **options)


def test_a_box_over_a_barrier():
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")

    with pytest.raises(BarrierError, match="store over an mbarrier"):
        run(
            body.replace("[%r1], [%d20", "[%r1+16128], [%d20").replace("BYTES", "512"),
            aligned((512,)),
            sample((4, 32), "f4"),
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )
