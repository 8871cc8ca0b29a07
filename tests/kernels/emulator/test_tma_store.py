"""TMA stores and reductions against NumPy slices."""

import numpy as np
import pytest

from tests.kernels.emulator.boxes import (
    FILL,
    LOAD,
    REDUCE,
    SETUP,
    STORE,
    WAIT,
    sample,
    store_box,
)
from tests.kernels.emulator.snippet import aligned, run


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
