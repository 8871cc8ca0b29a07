"""How O leaves a CTA: as a box, as bulk copies of rows, or from registers: the same bits."""

import pytest
import torch

from kernels_sm100.config import ForwardConfig
from kernels_sm100.modes import OuterStoreMode
from tests.kernels.forward import masks
from tests.kernels.forward.run import Outcome, judge, problem

PLAIN = {"head_dim": 128}
PACKED = {"head_dim": 64, "head_dim_v": 64, "group": 4, "pack_gqa": True}
ROWS = (OuterStoreMode.STG, OuterStoreMode.TMA_1D)
STRICT = {"strict_tmem_loads": True, "strict_registers": True, "strict_fences": True}


def config(mode, shape):
    return ForwardConfig(outer_store=mode, **shape)


def given_for(made):
    """Two batches, so that a row too many would land in the next one; the first tile is empty."""
    tokens = 300 // made.rows_per_token
    mask = masks.causal(tokens, 300).copy()
    mask[..., : 128 // made.rows_per_token, :] = False
    return problem(made, mask, batch=2, spread=3.0)


@pytest.mark.parametrize("shape", [PLAIN, PACKED], ids=["plain", "packed"])
@pytest.mark.parametrize("mode", ROWS)
def test_rows_are_those_of_the_box(forward_kernel, mode, shape):
    made = config(mode, shape)
    given = given_for(made)
    wanted = forward_kernel(config(OuterStoreMode.TMA, shape)).run(given, races=False)
    kernel = forward_kernel(made)

    for schedule in ("lazy", "random"):
        found = kernel.run(given, schedule=schedule, **STRICT)
        judge(given, found)
        assert torch.equal(found.o, wanted.o)
        assert not found.report.warnings
    counts = found.report.counts
    assert counts["tma_store"] == 0
    rows = 2 * given.q.shape[1] * made.rows_per_token
    assert counts["bulk_store"] == (rows if mode is OuterStoreMode.TMA_1D else 0)


def test_strided_rows(forward_kernel):
    """O inside of a larger tensor: what lies between its rows stays as it was."""
    for mode in ROWS:
        made = config(mode, PLAIN)
        given = given_for(made)
        room = torch.full((2, 300, 1, 144), 7.0, dtype=given.q.dtype)
        out = room[..., 8:136], torch.empty(2, 1, 300)

        found = forward_kernel(made).run(given, out=out)

        judge(given, found)
        assert (room[..., :8] == 7).all()
        assert (room[..., 136:] == 7).all()


def test_no_memory_for_o_is_room_for_stages():
    wide = {mode: ForwardConfig(outer_store=mode).kv_stages for mode in OuterStoreMode}

    assert wide == {OuterStoreMode.TMA: 3, OuterStoreMode.TMA_1D: 3, OuterStoreMode.STG: 5}


def test_what_synchronises_copies_of_rows_is_needed(forward_kernel):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from kernels_sm100.emulator.mutation import try_mutant
    from tests.kernels.mutation.subjects import SCHEDULES, Subject, table

    made = config(OuterStoreMode.TMA_1D, PLAIN)
    kernel, given = forward_kernel(made), given_for(made)
    wrote = []

    def call(on_launch):
        wrote[:] = kernel.launch(given, on_launch)

    def right():
        try:
            judge(given, Outcome(*wrote, None))
        except AssertionError:
            return False
        return True

    subject = Subject(call, right)
    tried = [m for m in subject.mutants() if m.source.startswith("forward_store.py")]
    found = [try_mutant(mutant, subject.run, SCHEDULES) for mutant in tried]

    assert {v.mutant.kind for v in found} >= {"wait", "group commit", "group wait"}
    assert all(v.killed for v in found), table(found)
