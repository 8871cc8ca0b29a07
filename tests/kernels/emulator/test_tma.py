"""TMA loads: boxes against NumPy slices, swizzles by their definition."""

import numpy as np
import pytest

from tests.kernels.emulator.boxes import (
    DUMP,
    KINDS,
    SETUP,
    WAIT,
    box_of,
    load_box,
    sample,
)
from tests.kernels.emulator.snippet import aligned, run


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
