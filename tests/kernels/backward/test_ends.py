"""Preprocess and postprocess against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels_sm100.backward_host import BACKWARD_SOURCES, build_postprocess, build_preprocess
from kernels_sm100.launch import compile_kernel
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode
from tests.kernels.backward.configs import Q_64
from tests.kernels.backward.run import LOG2_E, judge, problem, unpacked
from tests.kernels.emulated import run
from tests.kernels.forward import masks
from tests.kernels.forward.run import aligned

NAN = float("nan")


@pytest.fixture(scope="module")
def ends(compile_cache):
    """(preprocess, postprocess) of Q_64."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    return [
        compile_kernel(build, Q_64, sources=BACKWARD_SOURCES, cache=compile_cache)
        for build in (build_preprocess, build_postprocess)
    ]


def activation(shape, generator):
    """Normal numbers between NaN in rows, heads and columns around."""
    batch, seqlen, heads, width = shape
    around = aligned((batch, seqlen + 2, heads + 1, width + 16), torch.float16, NAN)
    view = around[:, 1 : seqlen + 1, :heads, 8 : width + 8]
    return view.copy_(torch.randn(shape, generator=generator))


def prepared(kernel, o, do, lse, dlse, *, cleared=(1000, 4)):
    batch, seqlen, heads, _ = o.shape
    padded = -(-seqlen // 128) * 128
    bias, delta = (aligned((batch, heads, padded), torch.float32, NAN) for _ in range(2))
    clear = [aligned((size,), torch.float32, NAN) for size in cleared]
    run(kernel, o, do, lse, dlse, bias, delta, *clear)
    return bias, delta, clear


@pytest.mark.parametrize("seqlen", [1, 128, 200])
def test_preprocess(ends, seqlen):
    generator = torch.Generator().manual_seed(seqlen)
    o, do = (activation((2, seqlen, 3, 64), generator) for _ in range(2))
    lse, dlse = (torch.randn((2, 3, seqlen), generator=generator) for _ in range(2))
    lse[1, 2, seqlen // 2] = -float("inf")

    bias, delta, clear = prepared(ends[0], o, do, lse, dlse)

    wanted = np.einsum("bshd,bshd->bhs", o.double().numpy(), do.double().numpy())
    wanted = np.where(np.isneginf(lse.numpy()), 0.0, wanted - dlse.double().numpy())
    np.testing.assert_allclose(delta[:, :, :seqlen].numpy(), wanted, rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        bias[:, :, :seqlen].numpy(),
        np.where(np.isneginf(lse.numpy()), -np.inf, -LOG2_E * lse.numpy()),
        rtol=1e-6,
    )
    assert (bias[:, :, seqlen:] == -float("inf")).all()
    assert (delta[:, :, seqlen:] == 0).all()
    assert all((part == 0).all() for part in clear)


@pytest.mark.parametrize("seqlen", [1, 200])
def test_postprocess(ends, seqlen):
    sums = aligned((2, 3, -(-seqlen // 128), 16, 128, 4), torch.float32)
    sums.normal_(generator=torch.Generator().manual_seed(seqlen))
    around = aligned((2, seqlen + 2, 4, 80), torch.float16, 7.0)
    out = around[:, 1 : seqlen + 1, :3, 8:72]

    run(ends[1], sums, out, 0.25)

    wanted = torch.from_numpy(unpacked(sums, seqlen) * 0.25).half()
    assert torch.equal(out, wanted)
    out.fill_(7.0)
    assert (around == 7.0).all()


def test_postprocess_of_gathered_rows(compile_cache):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    config = replace(
        Q_64,
        direction="loop_k",
        parts=1,
        inner_load=InnerLoadMode.CP_ASYNC,
        inner_store=InnerStoreMode.TMA_1D,
    )
    kernel = compile_kernel(
        build_postprocess, config, sources=BACKWARD_SOURCES, cache=compile_cache
    )
    sums = aligned((2, 3, 200, 64), torch.float32)
    sums.normal_(generator=torch.Generator().manual_seed(0))
    out = aligned((2, 200, 3, 64), torch.float16, NAN)

    run(kernel, sums, out, 0.25)

    assert torch.equal(out, (sums * 0.25).half().transpose(1, 2))


def test_the_three_kernels_in_turn(ends, backward_kernel):
    mask = masks.causal(300, 200) & (np.arange(300) % 7 > 0)[:, None]
    given = problem(Q_64, mask)
    lse = torch.from_numpy(given.wanted.lse).float()
    o = aligned(given.q.shape, torch.float16).copy_(torch.from_numpy(given.wanted.o))

    bias, delta, _ = prepared(ends[0], o, given.do, lse, given.dlse)
    outcome = backward_kernel(Q_64).run(given, bias=bias, delta=delta)
    dq = aligned(given.q.shape, torch.float16, NAN)
    run(ends[1], outcome.raw[0], dq, given.scale)

    judge(given, outcome)
    np.testing.assert_allclose(dq.double().numpy(), outcome.dq, rtol=2.0**-10, atol=1e-6)
