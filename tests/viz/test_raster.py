"""The rasteriser against loops over tokens, and what it costs."""

import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.viz.palette import EMPTY, FULL, MASK, PADDING, coloured, strength
from maskplan.viz.raster import rasterise, whole_window
from tests.handmade import causal_mask, plan_of, transposed_of
from tests.strategies import geometries, plans


def class_of(dense: torch.Tensor, axes, i: int, j: int) -> str:
    block = dense[
        i * axes.row_block : (i + 1) * axes.row_block, j * axes.col_block : (j + 1) * axes.col_block
    ]
    return "full" if block.all() else "mask" if block.any() else "empty"


def expected(dense: torch.Tensor, axes, shape, window) -> dict[str, list[list[Fraction]]]:
    """Each pixel's fractions, token by token: a token counts for what of it lies in the pixel."""
    (top, bottom), (left, right) = window
    found = {
        name: [[Fraction(0)] * shape[1] for _ in range(shape[0])]
        for name in ("full", "mask", "empty", "padding")
    }

    def parts(token, start, size, pixels):
        for pixel in range(pixels):
            low = max(Fraction(token), start + Fraction(pixel * size, pixels))
            high = min(Fraction(token + 1), start + Fraction((pixel + 1) * size, pixels))
            if low < high:
                yield pixel, (high - low) * pixels / size

    for row in range(top, bottom):
        for col in range(left, right):
            inside = row < axes.row_len and col < axes.col_len
            kind = "padding"
            if inside:
                kind = class_of(dense, axes, row // axes.row_block, col // axes.col_block)
            for y, down in parts(row, top, bottom - top, shape[0]):
                for x, across in parts(col, left, right - left, shape[1]):
                    found[kind][y][x] += down * across
    return found


@settings(max_examples=60)
@given(st.data())
def test_pixels_agree_with_their_tokens(data):
    """Every fraction, of any number of pixels to any number of blocks, in any window."""
    geometry = data.draw(geometries(low=1, high=12).filter(lambda g: max(g.block_size) < 9))
    plan = data.draw(plans(geometry=geometry, heads=(1, 1)))
    if data.draw(st.booleans()):
        plan = plan.transpose()
    shape = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    window = whole_window(plan.axes)
    if data.draw(st.booleans()):
        window = tuple(
            tuple(sorted(data.draw(st.lists(st.integers(0, stop), min_size=2, max_size=2))))
            for _, stop in window
        )
        window = tuple((low, max(high, low + 1)) for low, high in window)
    pattern = int(plan.pattern_id[0, 0])
    raster = rasterise(plan, pattern, shape=shape, window=window)

    wanted = expected(plan.to_dense()[0, 0], plan.axes, shape, window)
    for name, pixels in wanted.items():
        exact = np.array([[float(value) for value in line] for line in pixels])
        np.testing.assert_allclose(getattr(raster, name), exact, rtol=1e-12, atol=0, err_msg=name)


def test_a_transposed_plan_is_drawn_from_its_keys():
    plan = plan_of(causal_mask(6, 4), (2, 2))
    upright = rasterise(plan, 0, shape=(6, 5))
    turned = rasterise(transposed_of(causal_mask(6, 4), (2, 2)), 0, shape=(5, 6))

    assert np.array_equal(upright.full, turned.full.T)
    assert np.array_equal(upright.mask, turned.mask.T)


def test_one_block_of_a_million_is_seen():
    blocks = 2**10
    mask = torch.zeros(1, blocks, blocks, dtype=torch.bool)
    mask[0, 700, 300] = True
    image = coloured(rasterise(plan_of(mask, (1, 1)), 0, shape=(8, 8)))

    assert (image != np.array(EMPTY)).any(axis=2).sum() == 1
    assert np.abs(image[5, 2].astype(int) - EMPTY).max() > 30


def test_whole_pixels_have_the_colours_of_the_legend():
    mask = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    image = coloured(rasterise(plan_of(mask, (4, 4)), 0, shape=(8, 8)))

    assert tuple(image[0, 0]) == MASK
    assert tuple(image[5, 0]) == FULL
    assert tuple(image[0, 5]) == EMPTY
    assert tuple(image[0, 7]) == tuple(image[7, 0]) == PADDING


def test_strength_grows_from_nothing_to_all():
    values = strength(np.array([0.0, 1e-9, 0.01, 0.5, 1.0]))

    assert values[0] == 0
    assert values[-1] == 1
    assert (np.diff(values) >= 0).all()
    assert strength(np.array([0.999]))[0] < 1
    assert values[1] >= 0.2


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0), (0, 0)])
def test_nothing_is_all_padding(lengths):
    raster = rasterise(plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2)), 0, shape=(3, 3))

    assert (raster.padding == 1).all()


def test_a_long_plan_is_drawn_without_its_matrix():
    blocks = 2**20
    plan = mp.Plan(
        geometry=mp.Geometry(seqlen_q=2 * blocks, seqlen_k=2 * blocks, block_size=(2, 2)),
        pattern_id=torch.zeros(1, 1, dtype=torch.int32),
        row_ptr=torch.arange(blocks + 1),
        col=torch.arange(blocks, dtype=torch.int32),
        tile_id=None,
        tiles=torch.empty(0, 2, 1, dtype=torch.int32),
    )
    rasterise(plan, 0, shape=(4, 4))
    tracemalloc.start()
    start = time.perf_counter()
    raster = rasterise(plan, 0, shape=(256, 256))
    spent = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert np.array_equal(raster.full > 0, np.eye(256, dtype=bool))
    assert raster.full.sum() == pytest.approx(256 * 256 / blocks)
    assert peak < 400 * blocks
    assert spent < 10


@pytest.mark.parametrize(("pattern", "shape"), [(1, (2, 2)), (0, (0, 2)), (0, (2, 10**6))])
def test_sizes_are_checked(pattern, shape):
    with pytest.raises(mp.PlanError, match="argument out of range"):
        rasterise(plan_of(causal_mask(2, 2), (2, 2)), pattern, shape=shape)
