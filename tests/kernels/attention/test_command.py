"""`maskplan verify --backend sm100-emulated`: the kernels for SM100 on a machine without one."""

import maskplan as mp
from maskplan.attention import sm100_kernels
from tests.cli.program import refuse, run, succeed

OPTIONS = ("--backend", "sm100-emulated", "--heads", 4, "--kv-heads", 1)


def test_verify_of_a_plan(capsys, tmp_path):
    plan = tmp_path / "window.plan"
    mp.sliding_window(150, 200, left=40, right=8, align="bottom_right", block_size=(64, 64)).save(
        plan
    )

    out = succeed(capsys, "verify", plan, *OPTIONS)

    assert "sm100-emulated" in out
    assert "bfloat16" in out  # what it computes in, unless told otherwise
    assert "4 heads over 1" in out


def test_a_kernel_that_is_wrong_is_told(capsys, tmp_path, monkeypatch):
    """Its walk is that of another plan."""
    plan = tmp_path / "causal.plan"
    mp.causal(130, 130).save(plan)
    real, other = sm100_kernels.forward_walk, mp.full(130, 130).lower("sm100")
    monkeypatch.setattr(sm100_kernels, "forward_walk", lambda _: real(other))

    code, _, err = run(capsys, "verify", plan, *OPTIONS[:2])

    assert code == 1
    assert "of backend sm100-emulated is wrong" in err


def test_a_plan_that_would_take_minutes(capsys, tmp_path):
    plan = tmp_path / "long.plan"
    mp.full(1 << 15, 1 << 15).save(plan)

    assert "sm100-emulated" in refuse(capsys, "verify", plan, *OPTIONS)
