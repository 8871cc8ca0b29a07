"""`from_block_mask` on a device, and what stands on its plans."""

import pytest
import torch

import maskplan as mp
from tests.device.planning import generator, on_the_cpu, same_plan


def both(place, mask, sq, sk, **options):
    """(device plan, plan of the CPU)."""
    made = mp.from_block_mask(mask.to(place), sq, sk, **options)
    with on_the_cpu():
        return made, mp.from_block_mask(mask, sq, sk, **options)


@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (5, 32)])
def test_masks(place, shape):
    rows, cols = shape
    mask = torch.rand(2, 1, rows, cols, generator=generator(1)) < 0.4
    mask[0, :, 0], mask[1, :, -1] = False, True

    same_plan(*both(place, mask, rows * 8 - 3, cols * 4 - 1, block_size=(8, 4)), turned=True)


def test_expanded_and_strided_masks(place):
    mask = torch.rand(1, 1, 9, 12, generator=generator(2)) < 0.5
    made = mp.from_block_mask(mask.to(place)[..., ::2, 1::3].expand(2, 3, 5, 4), 5, 4,
                              block_size=(1, 1))  # fmt: skip
    with on_the_cpu():
        wanted = mp.from_block_mask(mask[..., ::2, 1::3].expand(2, 3, 5, 4), 5, 4,
                                    block_size=(1, 1))  # fmt: skip

    assert made.num_patterns == 1
    same_plan(made, wanted)


@pytest.mark.parametrize(("rows", "cols"), [(0, 3), (3, 0), (0, 0)])
def test_no_blocks(place, rows, cols):
    made, wanted = both(place, torch.ones(2, rows, cols, dtype=torch.bool), rows, cols,
                        block_size=(1, 1))  # fmt: skip

    assert made.cpu() == wanted
    assert made.transpose().cpu() == wanted.transpose()


def test_more_blocks_than_the_capacity(place):
    made = mp.from_block_mask(torch.ones(2, 3, dtype=torch.bool, device=place), 2, 3,
                              block_size=(1, 1), capacity=4)  # fmt: skip

    assert made.row_ptr.tolist() == [0, 3, 4]
    assert made.col.tolist() == [0, 1, 2, 0]
    assert int(made.status) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(40, 591, 591, 0.1), (1, 900, 900, 0.3), (1, 8192, 4096, 0.01)])
def test_large_masks(place, shape):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    heads, rows, cols, density = shape
    mask = torch.rand(heads, rows, cols, generator=generator(3)) < density

    same_plan(*both(place, mask, rows * 16, cols * 16 - 5, block_size=(16, 16)))
