"""Products of two small matrices: operands laid out by the manual, and the kernel that multiplies."""

import numpy as np

from tests.kernels.emulator.snippet import run

B_AT = 16384


SWIZZLE = {0: 0, 6: 1, 4: 2, 2: 3}  # layout code to the bits that are exclusive-ored


def arrange(
    tile: np.ndarray, layout: int, leading: int, stride: int, *, mn_major: bool
) -> np.ndarray:
    """Shared-memory image of a [rows, 16] tile, element by element, as the manual's layouts say."""
    bits = SWIZZLE[layout]
    pitch = 16 << bits
    image = np.zeros(16384, "u1")
    raw = tile.view("u1").reshape(*tile.shape, 2)
    for r, k in np.ndindex(*tile.shape):
        if mn_major and bits:
            wide = 8 << bits
            at = r % wide * 2 + r // wide * leading + k % 8 * pitch + k // 8 * stride
        elif mn_major:
            at = r % 8 * 2 + r // 8 * stride + k % 8 * 16 + k // 8 * leading
        elif bits:
            at = r % 8 * pitch + r // 8 * stride + k * 2
        else:
            at = r % 8 * 16 + r // 8 * stride + k % 8 * 2 + k // 8 * leading
        at ^= (at >> 7 & ((1 << bits) - 1)) << 4
        image[at : at + 2] = raw[r, k]
    return image


def strides(layout: int, rows: int, *, mn_major: bool) -> tuple[int, int]:
    """Byte offsets (leading, stride) of a packed tile."""
    pitch = 16 << SWIZZLE[layout]
    if mn_major:
        return (16 * pitch, 8 * pitch) if layout else (rows * 16, 128)
    return (0, 8 * pitch) if layout else (rows * 16, 128)


def descriptor(start: int, layout: int, leading: int, stride: int) -> int:
    return (start // 16) | (leading // 16) << 16 | (stride // 16) << 32 | 1 << 46 | layout << 61


def instruction(m: int, n: int, *, kind: int = 1, negate=(0, 0), major=(0, 0)) -> int:
    return (
        1 << 4 | kind << 7 | kind << 10 | negate[0] << 13 | negate[1] << 14
        | major[0] << 15 | major[1] << 16 | (n >> 3) << 17 | (m >> 4) << 24
    )  # fmt: skip


FILL = """
    shr.u32 %r5, %r0, 5;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra READY;
    mov.u32 %r2, 256;
    add.u32 %r6, %r1, 40976;
    tcgen05.alloc.cta_group::GROUP.sync.aligned.shared::cta.b32 [%r6], %r2;
    elect.sync _|%p4, -1;
    mov.u32 %r7, 1;
    @%p4 mbarrier.init.shared.b64 [%r1+40960], %r7;
    @%p4 fence.mbarrier_init.release.cluster;
READY:
    mad.lo.u32 %r8, %r0, 16, %r1;
    mov.u32 %r9, %cluster_ctarank;
    mul.wide.u32 %d20, %r9, 32768;
    mad.wide.u32 %d20, %r0, 16, %d20;
    add.s64 %d20, %d20, %d1;
    mov.u32 %r10, 0;
COPY:
    ld.global.v4.b32 {%r20, %r21, %r22, %r23}, [%d20];
    st.shared.v4.b32 [%r8], {%r20, %r21, %r22, %r23};
    add.u32 %r8, %r8, 2048;
    add.s64 %d20, %d20, 2048;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 16;
    @%p3 bra COPY;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    CLUSTER
    ld.shared.b32 %r3, [%r1+40976];
    shl.b32 %r4, %r5, 21;
    add.u32 %r4, %r4, %r3;
"""


ISSUE = """
    @%p1 bra WAIT;
    setp.eq.u32 %p5, %r9, 0;
    elect.sync _|%p4, -1;
    and.pred %p4, %p4, %p5;
    @!%p4 bra WAIT;
    mov.b64 %d30, ADESC;
    mov.b64 %d31, BDESC;
    mov.b32 %r11, IDESC;
    MMA
    COMMIT
WAIT:
"""


FINISH = """
W:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r1+40960], 0;
    @!%p6 bra W;
    mul.wide.u32 %d21, %r9, 131072;
    mad.wide.u32 %d21, %r0, 1024, %d21;
    add.s64 %d21, %d21, %d0;
    mov.u32 %r12, 0;
OUT:
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, [%r4];
    tcgen05.wait::ld.sync.aligned;
    st.global.v4.b32 [%d21], {%r30, %r31, %r32, %r33};
    st.global.v4.b32 [%d21+16], {%r34, %r35, %r36, %r37};
    add.u32 %r4, %r4, 8;
    add.s64 %d21, %d21, 32;
    add.u32 %r12, %r12, 8;
    setp.lt.u32 %p7, %r12, NCOLUMNS;
    @%p7 bra OUT;
    bar.sync 0;
    CLUSTER
    @%p1 bra DONE;
    mov.u32 %r2, 256;
    tcgen05.dealloc.cta_group::GROUP.sync.aligned.b32 %r3, %r2;
DONE:
"""


MMA = "tcgen05.mma.cta_group::GROUP.kind::f16 [%r3], %d30, %d31, %r11, 0;"


COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+40960];"


COMMIT_PAIR = """
    mov.b16 %h1, 3;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1+40960], %h1;
"""


CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"


def floats(shape: tuple[int, ...], seed: int, kind: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Raw 16-bit values and what they mean in f64: small multiples of 1/8, exact in f32 sums."""
    values = np.random.default_rng(seed).integers(-32, 32, shape).astype("f4") / 8
    raw = (values.view("u4") >> 16).astype("u2") if kind else values.astype("f2").view("u2")
    return raw, values.astype("f8")


def multiply(
    m: int,
    n: int,
    *,
    layouts=(2, 2),
    major=(False, False),
    kind: int = 1,
    group: int = 1,
    mma: str = MMA,
    edit=lambda text: text,
    columns: int | None = None,
    **options,
):
    """Run one MMA; returns A and B as f64 and D, [CTAs, 128 lanes, 256 columns]."""
    a_raw, a = floats((m, 16), 1, kind)
    b_raw, b = floats((n, 16), 2, kind)
    places = []
    for rows, layout, transposed in zip((m // group, n // group), layouts, major, strict=True):
        places.append((layout, *strides(layout, rows, mn_major=transposed)))
    images = np.zeros((group, 2, 16384), "u1")
    for cta in range(group):
        for which, (raw, place, transposed) in enumerate(
            zip((a_raw, b_raw), places, major, strict=True)
        ):
            rows = len(raw) // group
            part = np.ascontiguousarray(raw[cta * rows : (cta + 1) * rows])
            images[cta, which] = arrange(part, *place, mn_major=transposed)
    out = np.zeros((group, 128, 256), "f4")
    text = (
        (FILL + ISSUE + FINISH)
        .replace("MMA", mma, 1)
        .replace("COMMIT", COMMIT_PAIR if group == 2 else COMMIT)
    )
    values = {
        "ADESC": descriptor(1024, *places[0]),
        "BDESC": descriptor(1024 + B_AT, *places[1]),
        "IDESC": instruction(m, n, kind=kind, major=(int(major[0]), int(major[1]))),
        "NCOLUMNS": columns or n,
        "GROUP": group,
        "CLUSTER": CLUSTER if group == 2 else "",
    }
    for name, value in values.items():
        text = text.replace(name, str(value))
    run(edit(text), out, images, threads=128, shared=41984, grid=group, cluster=group, **options)
    return a, b, out


FROM_TMEM = """
    and.b32 %r40, %r0, 127;
    mad.wide.u32 %d22, %r40, 32, %d2;
    ld.global.v4.b32 {%r41, %r42, %r43, %r44}, [%d22];
    ld.global.v4.b32 {%r45, %r46, %r47, %r48}, [%d22+16];
    tcgen05.st.sync.aligned.32x32b.x8.b32 [%r4+128], {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48};
    tcgen05.wait::st.sync.aligned;
    bar.sync 0;
"""


def from_tmem(*, wait: str = "after", schedule: str = "round_robin"):
    """One MMA with A in tensor memory; its stores are waited for after, before, or not at all."""
    a_raw, a = floats((128, 16), 5)
    b_raw, b = floats((32, 16), 2)
    images = np.zeros((2, 16384), "u1")
    images[1] = arrange(b_raw, 2, 0, 1024, mn_major=False)
    out = np.zeros((128, 256), "f4")
    mma = "add.u32 %r15, %r3, 128;\n" + MMA.replace("%d30", "[%r15]")
    statement = "tcgen05.wait::st.sync.aligned;"
    prologue = FROM_TMEM if wait == "after" else FROM_TMEM.replace(statement, "")
    if wait == "before":
        prologue = f"{statement}\n{prologue}"
    text = (FILL + prologue + ISSUE + FINISH).replace("MMA", mma, 1).replace("COMMIT", COMMIT)
    for name, value in {
        "ADESC": 0, "BDESC": descriptor(1024 + B_AT, 2, 0, 1024), "IDESC": instruction(128, 32),
        "NCOLUMNS": 32, "GROUP": 1, "CLUSTER": "",
    }.items():  # fmt: skip
        text = text.replace(name, str(value))
    run(text, out, images, a_raw, threads=128, shared=41984, schedule=schedule)
    return out[:, :32], a @ b.T
