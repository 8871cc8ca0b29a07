"""SentryWard's verdict on tutorial kernels, and on mutants of them."""

import importlib.util

import pytest
import torch

from kernels_sm100.errors import UnavailableError
from kernels_sm100.verify import Captured, verify, vote_branches

if importlib.util.find_spec("sentryward") is None:
    pytest.skip("sentryward gives the verdicts (extra verify)", allow_module_level=True)
pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from kernels_sm100.emulator.mutation import mutants
from kernels_sm100.launch import compile_kernel
from tests.kernels.tutorial import gemm, ring


def captured(compile_cache, module, config, *arguments) -> Captured:
    heard = []
    program = compile_kernel(module.build, config, cache=compile_cache).host_program
    program(*arguments, on_launch=lambda *launch: heard.append(Captured.of(*launch)))
    return heard[0]


@pytest.fixture(scope="module")
def wrapping_ring(compile_cache):
    return captured(compile_cache, ring, ring.RingConfig(), torch.zeros(40, 64), torch.zeros(64))


def test_a_ring_that_wraps_is_race_free(wrapping_ring):
    verdict = verify(wrapping_ring)

    assert verdict.race_free, verdict.diagnostics[:2]
    assert verdict.warnings == 0
    assert verdict.seconds > 0


def test_a_product_is_race_free(compile_cache):
    config = gemm.GemmConfig()
    operands = [torch.zeros(n, 3 * config.k).bfloat16() for n in (128, config.n)]
    launch = captured(compile_cache, gemm, config, *operands, torch.zeros(128, config.n))

    assert verify(launch).race_free


# It sees the lanes of a warp, which the emulator takes for one actor; and it does not see fences.
@pytest.mark.parametrize(
    ("kind", "number", "results"),
    [
        ("wait", 0, {"not_wellsynced"}),
        ("arrive", 0, {"not_wellsynced"}),
        ("expect_tx", 0, {"not_wellsynced"}),
        ("barrier sync", 0, {"not_wellsynced"}),
        ("init", 0, {"tool_failure"}),
        ("warp sync", 0, {"potential_race"}),
        ("init fence", 0, {"race_free"}),
    ],
)
def test_mutants(wrapping_ring, kind, number, results):
    launch = wrapping_ring.launch
    mutant = mutants(launch.ptx, launch.kernel, kinds=[kind])[number]

    assert verify(wrapping_ring, ptx=mutant.ptx).result in results


def test_no_time_is_no_proof(wrapping_ring):
    assert not verify(wrapping_ring, timeout=0.01).race_free


def test_branches_of_votes():
    ptx = "a\nvote.sync.any.pred %p4, %p1, -1;\nadd;\n@%p4 bra $L1;\n@%p5 bra $L2;\n"

    assert vote_branches(ptx) == [4]


def test_without_it_the_remedy_is_said(wrapping_ring, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError) as raised:
        verify(wrapping_ring)
    assert str(raised.value) == (
        "SentryWard not installed in kernels_sm100.verify: got no such package, wanted sentryward, "
        "which proves launches race free; pip install 'maskplan[verify]'."
    )
