"""tcgen05.mma from shared and tensor memory, one CTA and two, every major; TMEM access."""

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from kernels_sm100.emulator import GlobalMemory, emulate
from kernels_sm100.launch import compile_kernel
from tests.kernels.emulated import SCHEDULE_IDS, SCHEDULES, run
from tests.kernels.tutorial import gemm, gemm_pair, gemm_tmem, tmem_shapes

schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=SCHEDULE_IDS)


def operand(rows, k, dtype, major="k", seed=0):
    """Small integers, whose sums of products are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-8, 9, (rows, k), generator=generator).to(getattr(torch, dtype))
    return values if major == "k" else values.T.contiguous().T


def product(a, b):
    return a.double() @ b.double().T


def check(compiled, a, b, **options):
    c = torch.full((a.shape[0], b.shape[0]), torch.nan)
    (report,) = run(compiled, a, b, c, unwritten=["c"], **options)
    assert torch.equal(c.double(), product(a, b))
    return report


PRODUCTS = [
    gemm.GemmConfig(),
    gemm.GemmConfig(a_major="mn"),
    gemm.GemmConfig(b_major="mn"),
    gemm.GemmConfig(a_major="mn", b_major="mn", dtype="float16"),
    gemm.GemmConfig(n=256, stages=3),
    gemm.GemmConfig(k=32),  # 64-byte swizzle
    gemm.GemmConfig(k=16),  # 32-byte swizzle
    gemm.GemmConfig(m=64),
    gemm.GemmConfig(n=32, b_major="mn"),
]


def name_of(config):
    return "-".join(str(value) for value in vars(config).values())


@pytest.mark.parametrize("config", PRODUCTS, ids=name_of)
def test_products_from_shared_memory(compile_cache, config):
    compiled = compile_kernel(gemm.build, config, cache=compile_cache)
    steps = 2 * config.stages + 1  # the ring wraps twice
    a = operand(2 * config.m, steps * config.k, config.dtype, config.a_major)
    b = operand(2 * config.n, steps * config.k, config.dtype, config.b_major, seed=1)
    report = check(compiled, a, b)

    assert report.counts["mma"] == 4 * steps * config.k // 16


@schedules
def test_products_under_every_schedule(compile_cache, schedule):
    config = gemm.GemmConfig()
    compiled = compile_kernel(gemm.build, config, cache=compile_cache)
    check(compiled, operand(128, 320, "bfloat16"), operand(64, 320, "bfloat16", seed=1),
          schedule=schedule)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("b_major", "k", "n"), [("k", 64, 64), ("mn", 128, 128), ("mn", 32, 32)])
def test_products_with_an_operand_in_tensor_memory(compile_cache, dtype, b_major, k, n):
    config = gemm_tmem.GemmTmemConfig(dtype=dtype, b_major=b_major, k=k, n=n)
    compiled = compile_kernel(gemm_tmem.build, config, cache=compile_cache)
    check(compiled, operand(128, k, dtype), operand(n, k, dtype, b_major, seed=1))


@schedules
def test_tensor_memory_under_every_schedule(compile_cache, schedule):
    compiled = compile_kernel(gemm_tmem.build, gemm_tmem.GemmTmemConfig(), cache=compile_cache)
    check(compiled, operand(128, 64, "bfloat16"), operand(64, 64, "bfloat16", seed=1),
          schedule=schedule)  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        gemm_pair.GemmPairConfig(),
        gemm_pair.GemmPairConfig(n=256),
        gemm_pair.GemmPairConfig(m=128),
        gemm_pair.GemmPairConfig(dtype="float16", k=32, stages=3),
    ],
    ids=name_of,
)
def test_products_by_a_pair_of_ctas(compile_cache, config):
    compiled = compile_kernel(gemm_pair.build, config, cache=compile_cache)
    steps = 2 * config.stages + 1
    a = operand(2 * config.m, steps * config.k, config.dtype)
    b = operand(config.n, steps * config.k, config.dtype, seed=1)
    report = check(compiled, a, b)

    assert report.ctas == 4


@schedules
def test_a_pair_under_every_schedule(compile_cache, schedule):
    compiled = compile_kernel(gemm_pair.build, gemm_pair.GemmPairConfig(), cache=compile_cache)
    check(compiled, operand(256, 320, "bfloat16"), operand(64, 320, "bfloat16", seed=1),
          schedule=schedule)  # fmt: skip


NUMBERS = {"32x32b": (1, 4, 32, 128), "16x64b": (1, 2, 16), "16x128b": (1, 8), "16x256b": (1, 4)}
SHAPES = [
    (shape, number, row)
    for shape, numbers in NUMBERS.items()
    for number in numbers
    for row in ((0,) if shape == "32x32b" else (0, 16))
]


@pytest.mark.parametrize(("shape", "number", "row"), SHAPES)
def test_shapes_of_stores_to_tensor_memory(shape, number, row):
    columns = tmem_shapes.columns_of(shape, number)
    out = np.zeros((128, columns), np.uint32)
    memory = GlobalMemory()
    address = memory.add("out", out, written=False).address
    emulate(
        tmem_shapes.launch(tmem_shapes.ptx(shape, number, store=True, row=row), address), memory
    )

    expected = 1 + 1000 * np.arange(128)[:, None] + np.arange(columns)[None, :]
    for thread in range(128):
        for register in range(tmem_shapes.SHAPES[shape][1] * number):
            r, column = tmem_shapes.element(shape, thread % 32, register)
            expected[32 * (thread // 32) + row + r, column] = 4096 * thread + register
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("shape", "number", "row"), SHAPES)
def test_shapes_of_loads_from_tensor_memory(shape, number, row):
    registers = tmem_shapes.SHAPES[shape][1] * number
    out = np.zeros((128, registers), np.uint32)
    memory = GlobalMemory()
    address = memory.add("out", out, written=False).address
    text = tmem_shapes.ptx(shape, number, store=False, row=row)
    emulate(tmem_shapes.launch(text, address), memory)

    for thread in range(128):
        for register in range(registers):
            r, column = tmem_shapes.element(shape, thread % 32, register)
            lane = 32 * (thread // 32) + row + r
            assert out[thread, register] == 1 + 1000 * lane + column


def test_the_other_architecture_runs_the_same_kernel(compile_cache):
    config = gemm.GemmConfig()
    compiled = compile_kernel(gemm.build, config, arch="sm_103a", cache=compile_cache)

    assert ".target sm_103a" in compiled.ptx
    check(compiled, operand(128, 128, "bfloat16"), operand(64, 128, "bfloat16", seed=1))
