"""The same kernel, built for the GPU at hand, run there and in the emulator: the same bits.

What SM100 shares with SM90 (mbarriers, TMA with its swizzles, cp.async, bulk reductions, atomics)
can be checked on either. `python -m tests.kernels.device.compare` prints a line a kernel.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import BACKWARD_SOURCES, build_postprocess, build_preprocess
from kernels_sm100.backward_shapes import dq_sums_shape, rows_shape
from kernels_sm100.emulator import emulate
from kernels_sm100.launch import CompileCache, Compiled, compile_kernel
from tests.kernels.tutorial import (
    async_copy,
    bulk_rows,
    elementwise,
    gather_copy,
    ordered_sum,
    ring,
    tma_tiles,
)

Case = tuple[Callable[[Any], Any], Any, list[Any]]  # arguments: tensors and numbers
ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cases() -> Iterator[tuple[str, Case]]:
    """name -> (build, configuration, arguments); arguments are outputs as well."""
    yield (
        "elementwise",
        (
            elementwise.build,
            elementwise.ScaleConfig(factor=1.1),
            [normal(1000), torch.zeros(1000)],
        ),
    )
    copy = async_copy.AsyncCopyConfig()
    length = 2 * copy.chunks * copy.threads * async_copy.VECTOR
    yield "cp.async", (async_copy.build, copy, [normal(length), torch.zeros(length)])
    for dtype, columns in (("float32", 4), ("bfloat16", 8), ("float16", 8), ("int32", 4)):
        for swizzle in range(4):
            # A row of the tile is as wide as the swizzle's span: 16 bytes to 128.
            config = tma_tiles.TileConfig(dtype=dtype, columns=columns << swizzle, swizzle=swizzle)
            source = (100 * normal(50, 48)).to(getattr(torch, dtype))
            outputs = [torch.zeros_like(source) for _ in range(2)]
            yield f"TMA {dtype} swizzle {swizzle}", (tma_tiles.build, config, [source, *outputs])
    adding = tma_tiles.TileConfig(add=True, swizzle=0)
    yield "TMA add", (
        tma_tiles.build, adding, [normal(50, 48), normal(50, 48, seed=1), torch.zeros(50, 48)],
    )  # fmt: skip
    for rows in (1, 50, 333):
        yield f"ring of {rows} rows", (
            ring.build, ring.RingConfig(), [normal(rows, 128), torch.zeros(128)],
        )  # fmt: skip
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))[:50].int()
    yield "bulk copies of rows", (
        bulk_rows.build, bulk_rows.BulkRowsConfig(), [normal(50, 48), order, torch.zeros(60, 48)],
    )  # fmt: skip
    for descending in (False, True):
        config = ordered_sum.OrderedSumConfig(descending=descending)
        scales = 10.0 ** torch.randint(-6, 6, (12, 1), generator=torch.Generator().manual_seed(1))
        arguments = [normal(12, 256) * scales, torch.zeros(256), torch.zeros(1, dtype=torch.int32)]
        yield f"ordered sum, descending={descending}", (ordered_sum.build, config, arguments)

    for columns in (64, 128):
        yield f"gather of {columns} columns by cp.async", gathering(columns)
    yield from backward_ends()


def gathering(columns: int) -> Case:
    """Tokens of x in five chunks, with -1 among and behind them; x has rows wider than these."""
    tokens = torch.randint(0, 700, (5, 128), generator=torch.Generator().manual_seed(columns))
    tokens[1, 100:], tokens[2, ::7], tokens[3] = -1, -1, -1
    x = normal(700, columns + 16).bfloat16()[:, 8 : columns + 8]
    out = torch.full((5 * 128, columns), torch.nan, dtype=torch.bfloat16)
    return gather_copy.build, gather_copy.GatherCopyConfig(columns), [x, tokens.int(), out]


def backward_ends() -> Iterator[tuple[str, Case]]:
    """What comes before and after the backward of SM100: neither needs anything of an SM100."""
    for head_dim, dtype, group in ((64, "float16", 1), (128, "bfloat16", 1), (128, "bfloat16", 8)):
        config = BackwardConfig(
            dtype=dtype, head_dim=head_dim, group=group, pack_gqa=group > 1, direction="loop_q"
        )
        batch, seqlen, heads = 2, 200, 8
        o, do, out = (
            normal(batch, seqlen + 1, heads, head_dim, seed=seed).to(getattr(torch, dtype))[:, 1:]
            for seed in range(3)
        )
        lse, dlse = normal(batch, heads, seqlen, seed=3), normal(batch, heads, seqlen, seed=4)
        lse[0, 1, 7:90] = -torch.inf
        bias, delta = (
            torch.full(rows_shape(config, batch, heads, seqlen), torch.nan) for _ in range(2)
        )
        clear = [torch.full((size,), torch.nan) for size in (10_000, 4)]
        name = f"{dtype} D {head_dim}, {config.rows_per_token} rows a token"
        yield f"preprocess {name}", (
            build_preprocess, config, [o, do, lse, dlse, bias, delta, *clear],
        )  # fmt: skip
        sums = normal(*dq_sums_shape(config, batch, heads, seqlen), seed=5)
        yield f"postprocess {name}", (build_postprocess, config, [sums, out, 0.3])


def compiled(case: Case, arch: str, cache: CompileCache) -> Compiled:
    """The kernel of a case for an architecture."""
    build, config, _ = case
    sources = BACKWARD_SOURCES if isinstance(config, BackwardConfig) else ()
    sources = gather_copy.SOURCES if build is gather_copy.build else sources
    return compile_kernel(build, config, arch=arch, cache=cache, sources=sources)


def copied(arguments: list[Any], device: str) -> list[Any]:
    """The arguments, tensors anew and laid out as they were."""
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
        if isinstance(x, torch.Tensor)
        else x
        for x in arguments
    ]


def tensors(arguments: list[Any]) -> list[torch.Tensor]:
    """The tensors among them, on the CPU."""
    return [x.cpu() for x in arguments if isinstance(x, torch.Tensor)]


def emulated(case: Case, arch: str, cache: CompileCache) -> list[torch.Tensor]:
    """The tensors as the emulator leaves them."""
    arguments = copied(case[2], "cpu")
    compiled(case, arch, cache).host_program(
        *arguments, on_launch=lambda launch, memory: emulate(launch, memory, schedule="lazy")
    )
    return tensors(arguments)


def on_device(case: Case, arch: str, cache: CompileCache) -> list[torch.Tensor]:
    """The tensors as the GPU leaves them."""
    arguments = copied(case[2], "cuda")
    compiled(case, arch, cache).on_device(*arguments)
    torch.cuda.synchronize()
    return tensors(arguments)


def same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether all arrays agree bit for bit."""
    pairs = zip(one, other, strict=True)
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in pairs
    )


def main() -> int:
    arch = ARCHITECTURES[torch.cuda.get_device_capability()]
    cache = CompileCache()
    failures = 0
    for name, case in cases():
        same = same_bits(emulated(case, arch, cache), on_device(case, arch, cache))
        failures += not same
        print(f"{name}: {'the same bits' if same else 'DIFFERENT'}", flush=True)
    print(f"{torch.cuda.get_device_name()}, {arch}: {failures} differ")
    return failures


if __name__ == "__main__":
    sys.exit(main())
