"""Kernels on the GPU at hand leave the bits that the emulator leaves."""

import math

import pytest
import torch

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from tests.kernels.device.compare import (
    ARCHITECTURES,
    backward_ends,
    cases,
    emulated,
    on_device,
    same_bits,
)

CASES = dict(cases())
ENDS = dict(backward_ends())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of SM90 or SM100")
@pytest.mark.parametrize("name", CASES)
def test_the_gpu_gives_the_same_bits(compile_cache, name):
    arch = ARCHITECTURES.get(torch.cuda.get_device_capability())
    if arch is None:
        pytest.skip("needs a GPU of SM90 or SM100")
    case = CASES[name]

    assert same_bits(emulated(case, arch, compile_cache), on_device(case, arch, compile_cache))


@pytest.mark.parametrize("name", [name for name in CASES if "swizzle" not in name])
def test_built_for_sm90_the_emulator_gives_the_bits_of_sm100(compile_cache, name):
    """So that what a GPU of SM90 says holds for the other."""
    case = CASES[name]

    assert same_bits(*(emulated(case, arch, compile_cache) for arch in ("sm_90a", "sm_100a")))


def by_torch(name, case):
    """What a preprocess or a postprocess should leave, in float64: tensors by their place."""
    _, config, given = case
    pack = config.rows_per_token

    def packed(rows):  # [B, H, S] as [B, H / G, M * 128]
        batch, heads, seqlen = rows.shape
        rows = rows.view(batch, heads // pack, pack, seqlen).transpose(2, 3).flatten(2)
        return torch.nn.functional.pad(rows, (0, -rows.shape[2] % 128))

    if name.startswith("preprocess"):
        o, do, lse, dlse, _, _, *clear = given
        seen = ~lse.isneginf()
        sums = torch.einsum("bshd,bshd->bhs", o.double(), do.double()) - dlse
        log2 = -lse.double() * math.log2(math.e)
        wanted = packed(log2.where(seen, 0)), packed(sums.where(seen, 0))
        none = packed(seen.double()) == 0
        return {4: wanted[0].masked_fill(none, -torch.inf), 5: wanted[1]} | {
            6 + i: torch.zeros_like(x) for i, x in enumerate(clear)
        }
    sums, out, scale = given
    rows = sums.double().permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)  # [B, H / G, rows, D]
    rows = rows[:, :, : out.shape[1] * pack].unflatten(2, (-1, pack))
    return {1: scale * rows.permute(0, 2, 1, 3, 4).flatten(2, 3)}


def agree(name, found):
    for place, wanted in by_torch(name, ENDS[name]).items():
        got = found[place]
        tight = {"atol": 1e-4, "rtol": 1e-5} if got.dtype == torch.float32 else {}
        torch.testing.assert_close(got, wanted.to(got.dtype), **tight)


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_the_backward_are_what_torch_makes(compile_cache, name):
    agree(name, emulated(ENDS[name], "sm_90a", compile_cache))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of SM90 or SM100")
@pytest.mark.parametrize("name", ENDS)
def test_ends_of_the_backward_on_the_gpu(compile_cache, name):
    arch = ARCHITECTURES.get(torch.cuda.get_device_capability())
    if arch is None:
        pytest.skip("needs a GPU of SM90 or SM100")
    agree(name, on_device(ENDS[name], arch, compile_cache))


def test_bits_that_differ_are_seen():
    zero = [torch.zeros(3)]

    assert same_bits(zero, [torch.zeros(3)])
    assert not same_bits(zero, [-torch.zeros(3)])
