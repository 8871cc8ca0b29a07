"""Data movement: plain, cp.async, TMA in every swizzle, gathered, reduced, ordered, in a ring."""

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from kernels_sm100.launch import compile_kernel
from tests.kernels.emulated import SCHEDULE_IDS, SCHEDULES, run
from tests.kernels.tutorial import (
    async_copy,
    bulk_rows,
    elementwise,
    gather_copy,
    gather_rows,
    ordered_sum,
    ring,
    tma_tiles,
)  # fmt: skip

schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=SCHEDULE_IDS)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("length", [1, 31, 128, 1000])
def test_elementwise(compile_cache, rng, length):
    config = elementwise.ScaleConfig(factor=-1.5)
    compiled = compile_kernel(elementwise.build, config, cache=compile_cache)
    x, y = rng.normal(size=length).astype(np.float32), np.full(length, np.nan, np.float32)
    (report,) = run(compiled, x, y, unwritten=["y"])

    np.testing.assert_array_equal(y, x * np.float32(-1.5))
    assert report.ctas == -(-length // config.threads)


@schedules
def test_async_copy(compile_cache, rng, schedule):
    config = async_copy.AsyncCopyConfig()
    compiled = compile_kernel(async_copy.build, config, cache=compile_cache)
    chunk = config.threads * async_copy.VECTOR
    x = rng.normal(size=(2 * config.chunks, chunk)).astype(np.float32)
    out = np.full_like(x, np.nan)
    run(compiled, x.reshape(-1), out.reshape(-1), schedule=schedule, unwritten=["out"])

    np.testing.assert_array_equal(out, x[:, ::-1])


@schedules
@pytest.mark.parametrize("columns", [64, 128])
def test_gather_by_copies(compile_cache, rng, schedule, columns):
    config = gather_copy.GatherCopyConfig(columns)
    compiled = compile_kernel(
        gather_copy.build, config, cache=compile_cache, sources=gather_copy.SOURCES
    )
    x = torch.from_numpy(rng.normal(size=(300, columns))).bfloat16()
    tokens = torch.from_numpy(rng.integers(0, 300, size=(5, 128))).int()
    tokens[1, 77:], tokens[2, ::5], tokens[3] = -1, -1, -1
    out = torch.full((640, columns), torch.nan, dtype=torch.bfloat16)
    run(compiled, x, tokens, out, schedule=schedule, unwritten=["out"])

    listed = tokens.flatten().long()
    wanted = torch.where((listed >= 0)[:, None], x[listed.clamp(min=0)], 0)
    assert torch.equal(out, wanted.to(out.dtype))


TILES = [
    tma_tiles.TileConfig(swizzle=0, columns=32),
    tma_tiles.TileConfig(swizzle=0, columns=4, rows=8),
    tma_tiles.TileConfig(swizzle=1, columns=8),
    tma_tiles.TileConfig(swizzle=2, columns=16),
    tma_tiles.TileConfig(swizzle=3, columns=32),
    tma_tiles.TileConfig(swizzle=3, columns=16),  # half of the swizzle's width
    tma_tiles.TileConfig(swizzle=3, columns=64, dtype="bfloat16"),
    tma_tiles.TileConfig(swizzle=2, columns=32, dtype="float16"),
    tma_tiles.TileConfig(swizzle=1, columns=8, dtype="int32"),
]


@pytest.mark.parametrize("config", TILES, ids=lambda c: f"{c.dtype}-{c.swizzle}-{c.columns}")
@pytest.mark.parametrize("shape", [(64, 64), (50, 48), (7, 16)])
def test_tma_loads_and_stores_every_swizzle(compile_cache, config, shape):
    compiled = compile_kernel(tma_tiles.build, config, cache=compile_cache)
    dtype = getattr(torch, config.dtype)
    source = torch.randint(-90, 90, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    seen, target = torch.full(shape, 99).to(dtype), torch.full(shape, 99).to(dtype)
    run(compiled, source, target, seen, unwritten=["target", "seen"])

    assert torch.equal(seen, source)
    assert torch.equal(target, source + 1)


@schedules
def test_tma_adds(compile_cache, rng, schedule):
    config = tma_tiles.TileConfig(add=True, swizzle=0)
    compiled = compile_kernel(tma_tiles.build, config, cache=compile_cache)
    source = rng.integers(-9, 9, (50, 48)).astype(np.float32)
    target = rng.integers(-9, 9, (50, 48)).astype(np.float32)
    before, seen = target.copy(), np.zeros_like(source)
    run(compiled, source, target, seen, schedule=schedule)

    np.testing.assert_array_equal(target, before + source + 1)


@schedules
def test_rows_are_gathered_four_at_a_time(compile_cache, rng, schedule):
    config = gather_rows.GatherConfig()
    compiled = compile_kernel(gather_rows.build, config, cache=compile_cache)
    x = torch.from_numpy(rng.integers(-99, 99, (40, config.columns))).to(torch.bfloat16)
    index = torch.from_numpy(rng.integers(-3, 44, 2 * config.rows).astype(np.int32))
    out = torch.full((len(index), config.columns), torch.nan, dtype=torch.bfloat16)
    run(compiled, x, index, out, schedule=schedule, unwritten=["out"])

    for row, at in zip(out, index.tolist(), strict=True):
        assert torch.equal(row, x[at] if 0 <= at < 40 else torch.zeros_like(row))


@schedules
@pytest.mark.parametrize("descending", [False, True])
def test_a_semaphore_orders_the_sum(compile_cache, rng, schedule, descending):
    config = ordered_sum.OrderedSumConfig(descending=descending)
    compiled = compile_kernel(ordered_sum.build, config, cache=compile_cache)
    x = (rng.normal(size=(6, 256)) * 10.0 ** rng.integers(-6, 6, (6, 1))).astype(np.float32)
    total, semaphore = np.zeros(256, np.float32), np.zeros(1, np.int32)
    run(compiled, x, total, semaphore, schedule=schedule)

    expected = np.zeros(256, np.float32)
    for row in x[::-1] if descending else x:
        expected += row
    np.testing.assert_array_equal(total, expected)
    other = np.zeros(256, np.float32)
    for row in x if descending else x[::-1]:
        other += row
    assert not np.array_equal(total, other)  # the order shows
    assert semaphore[0] == 6


def test_an_unordered_sum_needs_no_semaphore(compile_cache, rng):
    config = ordered_sum.OrderedSumConfig(ordered=False)
    compiled = compile_kernel(ordered_sum.build, config, cache=compile_cache)
    x = rng.integers(-9, 9, (6, 256)).astype(np.float32)
    total, semaphore = np.ones(256, np.float32), np.zeros(1, np.int32)
    run(compiled, x, total, semaphore, schedule=("random", 5))

    np.testing.assert_array_equal(total, 1 + x.sum(0))
    assert semaphore[0] == 0


@schedules
@pytest.mark.parametrize("rows", [1, 8, 50])
def test_a_ring_wraps(compile_cache, rng, schedule, rows):
    config = ring.RingConfig()
    compiled = compile_kernel(ring.build, config, cache=compile_cache)
    x = rng.integers(-9, 9, (rows, 128)).astype(np.float32)
    out = np.full(128, np.nan, np.float32)
    (report,) = run(compiled, x, out, schedule=schedule, unwritten=["out"])

    np.testing.assert_array_equal(out, x.sum(0))
    assert report.counts["tma_load"] == 2 * -(-rows // config.rows)


@schedules
@pytest.mark.parametrize("rows", [1, 32, 50])
def test_rows_by_bulk_copies(compile_cache, rng, schedule, rows):
    config = bulk_rows.BulkRowsConfig()
    compiled = compile_kernel(bulk_rows.build, config, cache=compile_cache)
    x = rng.normal(size=(rows, config.columns)).astype(np.float32)
    index = rng.permutation(rows + 9)[:rows].astype(np.int32)
    out = np.full((rows + 9, config.columns), np.nan, np.float32)
    run(compiled, x, index, out, schedule=schedule, unwritten=["out"])

    expected = np.full_like(out, np.nan)
    expected[index] = x + np.float32(1)
    np.testing.assert_array_equal(out, expected)
