"""Faults that block-sparse kernels have had: each, planted, is found.

The faults are those of a pull request for the same hardware; its tests let several of them through.
"""

import numpy as np
import pytest

from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import EmulatorError
from tests.kernels.forward import masks
from tests.kernels.forward.run import judge, problem

ONE_TILE = ForwardConfig(head_dim=64, head_dim_v=64, q_tiles=1, parts=1)
PAIR = ForwardConfig(head_dim=64, head_dim_v=64)
PACKED = ForwardConfig(head_dim=64, head_dim_v=64, q_tiles=1, parts=1, group=4, pack_gqa=True)


def ragged():
    """Three blocks, the last of 44 keys."""
    return np.ones((1, 1, 128, 300), dtype=bool)


def bits_and_full():
    mask = masks.causal(256, 256).copy()
    mask[..., 128:, :128] = True
    return mask


def packed_tiles_that_differ():
    """Three tiles of 32 tokens, each with a block of its own."""
    mask = np.zeros((1, 1, 96, 384), dtype=bool)
    for tile in range(3):
        mask[:, :, 32 * tile : 32 * (tile + 1), 128 * tile : 128 * (tile + 1)] = True
    return mask


def halves_that_differ():
    mask = np.ones((1, 1, 256, 384), dtype=bool)
    mask[:, :, :128, 128:256] = False
    return mask


def with_an_empty_row():
    mask = np.ones((1, 1, 256, 128), dtype=bool)
    mask[:, :, :128] = False
    return mask


FAULTS = {
    "tail masked on the first step only": (
        ONE_TILE,
        ragged,
        [
            (
                "forward",
                "if tile >= 0 or left < TILE_K:",
                "if tile >= 0 or (e == 0 and left < TILE_K):",
            ),
        ],
    ),
    "labels of another order than the loads": (
        ONE_TILE,
        ragged,
        [
            (
                "forward",
                "left = keys_left(walk, item.begin + e, seqlen_k)",
                "left = keys_left(walk, item.begin + item.count - 1 - e, seqlen_k)",
            ),
        ],
    ),
    "packed tile divided by the group": (
        PACKED,
        packed_tiles_that_differ,
        [
            (
                "forward",
                "g_q[None, item.tile * self.q_tiles + h]",
                "g_q[None, item.tile // 4 * self.q_tiles + h]",
            )
        ],
    ),
    "sentinel of a full block read as a bit tile": (
        ONE_TILE,
        bits_and_full,
        [
            (
                "mask",
                "if tile >= 0:\n        _copy_words(\n",
                "if tile >= -1:\n        _copy_words(\n",
            )
        ],
    ),
    "both halves read the tile id of the first": (
        PAIR,
        halves_that_differ,
        [("walk", "q_tile if const_expr(parts > 1) else 0", "0")],
    ),
    "softmax alone reads the tile id of the first half": (
        PAIR,
        halves_that_differ,
        [
            (
                "forward",
                "tile = tile_of(walk, item.begin + e, tile_index, self.config.parts)",
                "tile = tile_of(walk, item.begin + e, 0, self.config.parts)",
            )
        ],
    ),
    "empty tile not written": (
        ONE_TILE,
        with_an_empty_row,
        [("output", "values.fill(0.0)", "values.fill(1.0)")],
    ),
    "a row without a key subtracts minus infinity": (
        ONE_TILE,
        lambda: np.tri(128, 256, -1, dtype=bool)[None, None],
        [("softmax", "safe = found if found != -Float32.inf else Float32(0.0)", "safe = found")],
    ),
    "bits of a packed row taken by row, not by token": (
        PACKED,
        lambda: np.tri(32, 128, 40, dtype=bool)[None, None],
        [("forward", "row = row // self.config.rows_per_bit_row", "row = row // 1 % 32")],
    ),
    "factor of the sum forgotten": (
        ONE_TILE,
        ragged,
        [("forward", "row_total(scores, row_sum * factor)", "row_total(scores, row_sum)")],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(forward_kernel, tmp_path, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.mutant import plant

    config, mask, changes = FAULTS[name]
    given = problem(config, mask(), spread=4.0)
    judge(given, forward_kernel(config).run(given, races=False))

    faulty = plant(tmp_path, config, *changes)

    with pytest.raises((AssertionError, EmulatorError)):
        judge(given, faulty.run(given, races=False))


def test_a_cta_of_one_tile_in_a_list_for_two_is_found(forward_kernel, tmp_path):
    """Softmax counts the CTAs before it in a list row by one Q tile each, where they have two."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.mutant import plant

    config = ForwardConfig(head_dim=64, head_dim_v=64, parts=1)
    given = problem(config, masks.causal(512, 512), spread=4.0)
    kernel = forward_kernel(config)
    walk = kernel.tables(given.masks, tokens=512)
    judge(given, kernel.run(given, walk=walk, races=False))

    faulty = plant(
        tmp_path, config, ("forward", "row_offset * self.config.cta_rows", "row_offset * TILE_Q")
    )

    with pytest.raises((AssertionError, EmulatorError)):
        judge(given, faulty.run(given, walk=walk, races=False))


def test_an_unchanged_copy_is_right(tmp_path):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.mutant import plant

    given = problem(ONE_TILE, ragged())

    judge(given, plant(tmp_path, ONE_TILE).run(given, races=False))
