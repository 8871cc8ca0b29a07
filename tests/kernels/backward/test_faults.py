"""Wrong tables and wrong inputs, planted, are seen by the judge."""

import numpy as np
import pytest

from tests.kernels.backward.configs import UP
from tests.kernels.backward.run import judge, padded_rows, problem
from tests.kernels.forward import masks


def full_for_bits(kernel, given):
    walk = kernel.tables(given)
    walk.tile_id[walk.tile_id >= 0] = -1
    return {"walk": walk}


def forward_bits(kernel, given):
    """Bits of S where those of S^T belong."""
    walk = kernel.tables(given)
    for tile in walk.tiles:
        bits = np.unpackbits(tile.view(np.uint8), axis=1, bitorder="little")
        tile[:] = (
            np.packbits(np.ascontiguousarray(bits.T), axis=1, bitorder="little")
            .copy("C")
            .view(np.int32)
        )
    return {"walk": walk}


def no_delta(_kernel, given):
    return {"delta": padded_rows(np.zeros_like(given.delta), 0.0)}


@pytest.mark.parametrize("plant", [full_for_bits, forward_bits, no_delta])
def test_planted_faults_are_found(backward_kernel, plant):
    kernel = backward_kernel(UP)
    given = problem(UP, masks.causal(256, 256))
    judge(given, kernel.run(given, races=False))

    with pytest.raises(AssertionError):
        judge(given, kernel.run(given, races=False, **plant(kernel, given)))
