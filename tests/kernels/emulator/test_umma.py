"""tcgen05.mma against NumPy: layouts, swizzles, groups, flags."""

import numpy as np
import pytest

from tests.kernels.emulator.products import (
    MMA,
    from_tmem,
    instruction,
    multiply,
)


@pytest.mark.parametrize("layout", [0, 2, 4, 6])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_layouts(layout, which, transposed):
    layouts, major = [2, 2], [False, False]
    layouts[which], major[which] = layout, transposed

    a, b, out = multiply(128, 64, layouts=tuple(layouts), major=tuple(major))

    np.testing.assert_array_equal(out[0, :, :64], a @ b.T)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("n", [16, 48, 256])
@pytest.mark.parametrize("schedule", ["round_robin", "lazy", "random"])
def test_types_and_widths(kind, n, schedule):
    a, b, out = multiply(128, n, layouts=(2, 6), kind=kind, schedule=schedule)

    np.testing.assert_array_equal(out[0, :, :n], a @ b.T)


def test_64_rows_lie_in_every_other_half_quarter():
    load = "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, [%r4];"
    # Only 16 of 32 lanes hold a row: 16x256b.x1 reads lanes 0 to 15, 8 columns in 4 registers.
    narrow = "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r30, %r31, %r32, %r33}, [%r4];"

    def edit(text: str) -> str:
        return text.replace(load, narrow).replace(
            ", {%r34, %r35, %r36, %r37}", ", {%r30, %r31, %r32, %r33}"
        )

    a, b, out = multiply(64, 8, edit=edit)

    wanted = (a @ b.T).astype("f4")
    for warp in range(4):
        for lane in range(32):
            for register in range(4):
                row, column = lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2
                assert out[0, 32 * warp + lane, register] == wanted[16 * warp + row, column]


@pytest.mark.parametrize("schedule", ["round_robin", "lazy", "random"])
def test_pairs_of_256_rows(schedule):
    a, b, out = multiply(256, 64, group=2, schedule=schedule)

    np.testing.assert_array_equal(out[:, :, :64].reshape(256, 64), a @ b.T)


def test_pairs_of_128_rows_split_columns_over_lanes():
    a, b, out = multiply(128, 64, group=2, columns=32)

    wanted = a @ b.T
    for cta in range(2):
        rows = wanted[64 * cta : 64 * cta + 64]
        np.testing.assert_array_equal(out[cta, :64, :32], rows[:, :32])
        np.testing.assert_array_equal(out[cta, 64:, :32], rows[:, 32:])


@pytest.mark.parametrize("signs", [(0, 1), (1, 0), (1, 1)])
def test_negation(signs):
    m, n = 128, 16
    a, b, out = multiply(
        m, n, edit=lambda t: t.replace(str(instruction(m, n)), str(instruction(m, n, negate=signs)))
    )

    np.testing.assert_array_equal(out[0, :, :n], a @ b.T * (-1) ** sum(signs))


def test_accumulation_and_scaling():
    twice = f"{MMA}\n{MMA.replace(', 0;', ', 1;')}"
    scaled = f"{MMA}\n{MMA.replace(', 0;', ', 1, 3;')}"

    a, b, out = multiply(128, 16, mma=twice)
    np.testing.assert_array_equal(out[0, :, :16], 2 * (a @ b.T))
    a, b, out = multiply(128, 16, mma=scaled)
    np.testing.assert_array_equal(out[0, :, :16], (1 + 0.125) * (a @ b.T))


def test_disabled_lanes_are_kept():
    mask = "mov.b32 %r13, 0x0000ff00;\nmov.b32 %r14, 0;\n"
    second = mask + MMA.replace("%r11, 0;", "%r11, {%r14, %r13, %r14, %r14}, 1;")

    a, b, out = multiply(128, 16, mma=f"{MMA}\n{second}")

    wanted = 2 * (a @ b.T)
    wanted[40:48] /= 2
    np.testing.assert_array_equal(out[0, :, :16], wanted)


@pytest.mark.parametrize("schedule", ["round_robin", "lazy", "random"])
def test_a_from_tensor_memory(schedule):
    got, wanted = from_tmem(schedule=schedule)

    np.testing.assert_array_equal(got, wanted)
