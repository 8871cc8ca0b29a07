"""Boxes of tensors: kernels that load or store one by TMA, and what NumPy says of it."""

import numpy as np

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
