"""Every mutant of two tutorial kernels is killed, but for those that are argued away here."""

import pytest
import torch

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from kernels_sm100.emulator.mutation import kill_rates
from kernels_sm100.launch import compile_kernel
from tests.kernels.mutation.tried import table, verdicts
from tests.kernels.tutorial import gemm, ring

# Not modelled: lanes of a warp are one actor, so that what they do to each other is not seen.
NOT_MODELLED = {"warp sync", "tmem wait"}


def survivors(found):
    return [
        (v.mutant.kind, v.mutant.source.split(":")[0])
        for v in found
        if not v.killed and v.mutant.kind not in NOT_MODELLED
    ]


def test_a_ring(compile_cache):
    program = compile_kernel(ring.build, ring.RingConfig(), cache=compile_cache).host_program
    generator = torch.Generator().manual_seed(0)
    x, out = torch.randint(-9, 9, (50, 128), generator=generator).float(), torch.zeros(128)

    def reset():
        out.fill_(torch.nan)
        return x, out

    found = verdicts(program, reset, lambda: torch.equal(out, x.sum(0)), unwritten=["out"])
    rates = kill_rates(found)

    # CuTe unrolls the loop by four: two of the producer's five waits are executed once, on stages
    # that nobody has filled yet.
    assert survivors(found) == [("wait", "ring.py")] * 2, table(found)
    assert rates["wait"][:2] == (8, 10)
    assert rates["arrive"][:2] == rates["expect_tx"][:2] == (5, 5)
    assert rates["init"][:2] == (4, 4)
    assert rates["init fence"][:2] == rates["barrier sync"][:2] == (1, 1)


def test_a_product(compile_cache):
    config = gemm.GemmConfig()
    program = compile_kernel(gemm.build, config, cache=compile_cache).host_program
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-8, 9, (128, 5 * config.k), generator=generator).bfloat16()
    b = torch.randint(-8, 9, (config.n, 5 * config.k), generator=generator).bfloat16()
    c = torch.zeros(128, config.n)

    def reset():
        c.fill_(torch.nan)
        return a, b, c

    def right():
        return torch.equal(c, a.float() @ b.float().T)

    found = verdicts(program, reset, right, unwritten=["c"])
    rates = kill_rates(found)

    # As above; and the commit that would free the last stage, which nobody waits for.
    assert survivors(found) == [("wait", "gemm.py")] * 2 + [("commit", "gemm.py")], table(found)
    assert rates["wait"][:2] == (7, 9)
    assert rates["commit"][:2] == (3, 4)
    assert rates["expect_tx"][:2] == (5, 5)
    assert rates["dealloc"][:2] == (1, 1)
    assert rates["barrier sync"][:2] == (2, 2)
