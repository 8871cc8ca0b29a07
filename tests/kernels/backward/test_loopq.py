"""What LoopQ alone has: shares of a group, packed rows, and an inner loop either way."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.kernels.backward.configs import DOWN, PACKED, SPLIT, UP
from tests.kernels.backward.run import judge, padded_rows, problem
from tests.kernels.forward import masks


def short_and_long(shape):
    """Columns of very different lengths: all Q tiles, the first alone, none, the last alone."""
    mask = np.random.default_rng(0).random(shape) < 0.8
    mask[..., 128:, 128:256] = False
    mask[..., 256:384] = False
    mask[..., : shape[2] // 128 * 128, 384:] = False
    return mask


@pytest.mark.parametrize(("config", "seqlen_q"), [(SPLIT, 300), (PACKED, 20)])
def test_short_and_long_columns(backward_kernel, config, seqlen_q):
    """Three Q tiles a head, two an entry of PACKED."""
    given = problem(config, short_and_long((1, 1, seqlen_q, 450)))

    judge(given, backward_kernel(config).run(given, ctas=3))


def test_lists_of_such_columns_differ(backward_kernel):
    kernel = backward_kernel(DOWN)
    walk = kernel.tables(problem(DOWN, short_and_long((1, 1, 300, 450))))

    assert np.diff(walk.row_ptr).tolist() == [3, 1, 0, 1]
    assert walk.col.tolist() == [0, 1, 2, 0, 2]


def test_descending_is_the_same_list_reversed(backward_kernel):
    """The two first tiles cancel in dV, exactly if the sum begins with them."""
    given = problem(DOWN, np.ones((1, 1, 500, 130), dtype=bool))
    given.q[:, 128:256] = given.q[:, :128]
    given.do[:, :128] *= 2.0**14
    given.do[:, 128:256] = -given.do[:, :128]
    options = {"bias": padded_rows(np.full((1, 1, 500), -8.0), -np.inf), "races": False}
    kernel = backward_kernel(UP)
    walk = kernel.tables(given)
    for begin, end in pairwise(walk.row_ptr):
        for name in ("col", "tile_id", "write_order"):
            array = getattr(walk, name)
            array[begin:end] = array[begin:end][::-1].copy()

    down = backward_kernel(DOWN).run(given, **options).raw[2]

    assert torch.equal(down, kernel.run(given, walk=walk, **options).raw[2])
    assert not torch.equal(down, kernel.run(given, **options).raw[2])


def test_shares_of_a_group_are_work_items(backward_kernel):
    """Two shares on two CTAs, each of which adds to the same dK and dV in any order."""
    given = problem(SPLIT, masks.blocks((1, 1, 200, 128), 1.0))

    found = backward_kernel(SPLIT).run(given, ctas=8)

    assert found.report.counts["unordered_bulk_adds"] > 0
    judge(given, found)
