"""FA4's SM100 kernels in the emulator: right values, no race, under every schedule.

They are right on real hardware, so a failure here is the emulator's.
"""

import pytest
import torch

pytest.importorskip("flash_attn.cute", reason="flash-attn-4 is the peer (extra peers)")

from kernels_sm100.emulator import emulate
from tests.kernels.emulated import SCHEDULE_IDS, SCHEDULES
from tests.kernels.peers.attention import (
    call_backward,
    call_forward,
    half_precision,
    inputs,
    reference,
)
from tests.kernels.peers.fa4 import Case, programs

FLOOR = 1e-3  # where torch happens to be exact

FORWARD = [
    Case(direction="forward", seqlen=1024, head_dim=128, sparse=True, sms=1),  # rings wrap
    Case(direction="forward", seqlen=512, head_dim=64, sparse=True, heads=2),
    Case(direction="forward", seqlen=256, head_dim=64, sparse=False),
    Case(direction="forward", seqlen=512, head_dim=128, sparse=False),  # pairs of CTAs
    Case(direction="forward", seqlen=200, head_dim=64, sparse=False, causal=True),  # ragged
]
BACKWARD = [
    Case(direction="backward", seqlen=512, head_dim=64, sparse=True),
    Case(direction="backward", seqlen=512, head_dim=128, sparse=True),
    Case(direction="backward", seqlen=300, head_dim=64, sparse=False),  # rows past the end
    Case(direction="backward", seqlen=256, head_dim=128, sparse=False),  # pairs of CTAs
]


def under_schedules(cases, thorough):
    """Each case under the two schedules that find most; those with rings that wrap under all."""
    return [
        pytest.param(case, schedule, id=f"{case}-{name}")
        for case in cases
        for schedule, name in zip(SCHEDULES, SCHEDULE_IDS, strict=True)
        if case in thorough or name in ("lazy-0", "random-1")
    ]


def within_budget(got, torch_s, exact) -> bool:
    """No tile of 128 rows of a head is off by more than twice what torch's bfloat16 is."""
    for tile in range(0, exact.shape[1], 128):
        rows = slice(tile, tile + 128)
        error = (got[:, rows].double() - exact[:, rows]).abs().amax((0, 1, 3))
        allowed = (torch_s[:, rows].double() - exact[:, rows]).abs().amax((0, 1, 3))
        if not (error <= 2 * allowed + FLOOR).all():
            return False
    return True


def emulated(schedule, instructions):
    name, seed = schedule

    def on_launch(launch, memory):
        # FA4's backward leaves it to luck that its last bulk stores have read their source.
        report = emulate(launch, memory, schedule=name, seed=seed, strict_exit=False)
        instructions.append(report.instructions)

    return on_launch


@pytest.mark.parametrize(("case", "schedule"), under_schedules(FORWARD, FORWARD[:1]))
def test_forward(compile_cache, case, schedule):
    (program,) = programs(case, compile_cache)
    given = inputs(case)
    exact, exact_lse, *_ = reference(case, given)
    launched = []
    out, lse = call_forward(case, given, program, emulated(schedule, launched))

    assert len(launched) == 1
    assert within_budget(out, half_precision(case, given)[0], exact)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("case", "schedule"), under_schedules(BACKWARD, BACKWARD[:1]))
def test_backward(compile_cache, case, schedule):
    compiled = programs(case, compile_cache)
    given = inputs(case)
    out, lse, *exact = reference(case, given)
    launched = []
    found = call_backward(
        case, given, out.bfloat16(), lse.float(), compiled, emulated(schedule, launched)
    )

    assert len(launched) == 3
    for got, torch_s, wanted in zip(found, half_precision(case, given)[1:], exact, strict=True):
        assert within_budget(got, torch_s, wanted)


def test_the_budget_finds_one_wrong_row():
    case = Case(direction="forward", seqlen=256, head_dim=64, sparse=False)
    given = inputs(case)
    exact, torch_s = reference(case, given)[0], half_precision(case, given)[0]

    assert within_budget(torch_s, torch_s, exact)
    torch_s = torch_s.clone()
    torch_s[0, 200, 0] *= 1.05
    assert not within_budget(torch_s, half_precision(case, given)[0], exact)
