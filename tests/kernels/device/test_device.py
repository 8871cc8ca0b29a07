"""Kernels on the GPU at hand leave the bits that the emulator leaves."""

import pytest
import torch

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from tests.kernels.device.compare import ARCHITECTURES, cases, emulated, on_device, same_bits

CASES = dict(cases())


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


def test_bits_that_differ_are_seen():
    zero = [torch.zeros(3)]

    assert same_bits(zero, [torch.zeros(3)])
    assert not same_bits(zero, [-torch.zeros(3)])
