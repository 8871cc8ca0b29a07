"""Every mutant of tutorial kernels is killed, but for those that are argued away here."""

import pytest

pytest.importorskip("cutlass", reason="kernels are written in CuTe DSL (extra sm100)")

from kernels_sm100.emulator.mutation import kill_rates
from tests.kernels.mutation.subjects import gemm_subject, ring_subject, table, tile_subject

# Not modelled: lanes of a warp are one actor, so that what they do to each other is not seen.
NOT_MODELLED = {"warp sync"}


def survivors(found):
    return [
        (v.mutant.kind, v.mutant.source.split(":")[0])
        for v in found
        if not v.killed and v.mutant.kind not in NOT_MODELLED
    ]


def test_a_ring(compile_cache):
    found = ring_subject(compile_cache).verdicts()
    rates = kill_rates(found)

    # CuTe unrolls the loop by four: two of the producer's five waits are executed once, on stages
    # that nobody has filled yet.
    assert survivors(found) == [("wait", "ring.py")] * 2, table(found)
    assert rates["wait"][:2] == (8, 10)
    assert rates["arrive"][:2] == rates["expect_tx"][:2] == (5, 5)
    assert rates["init"][:2] == (4, 4)
    assert rates["init fence"][:2] == rates["barrier sync"][:2] == (1, 1)


def test_a_product(compile_cache):
    found = gemm_subject(compile_cache).verdicts()
    rates = kill_rates(found)

    # As above; and the commit that would free the last stage, which nobody waits for.
    assert survivors(found) == [("wait", "gemm.py")] * 2 + [("commit", "gemm.py")], table(found)
    assert rates["wait"][:2] == (7, 9)
    assert rates["commit"][:2] == (3, 4)
    assert rates["expect_tx"][:2] == (5, 5)
    assert rates["tmem wait"][:2] == rates["dealloc"][:2] == (1, 1)
    assert rates["barrier sync"][:2] == (2, 2)


def test_tiles(compile_cache):
    found = tile_subject(compile_cache).verdicts()

    assert survivors(found) == [], table(found)
    assert {v.mutant.kind for v in found} >= {"group commit", "group wait", "proxy fence"}
