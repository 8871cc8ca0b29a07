"""The command line, called as its users call it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskplan as mp
from kernels_sm100.errors import RaceError
from tests.cli.program import run

ROOT = Path(mp.__file__).parents[1]


@pytest.fixture
def plan_file(tmp_path) -> Path:
    path = tmp_path / "causal.plan"
    mp.causal(300, 300, block_size=(64, 64)).save(path)
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["causal", 100, "--block-size", "32,16"],
            lambda: mp.causal(100, 100, block_size=(32, 16)),
        ),
        (
            ["causal", 40, "--seqlen-k", 100, "--align", "bottom_right"],
            lambda: mp.causal(40, 100, align="bottom_right"),
        ),
        (
            ["sliding-window", 200, "--left", 9, "--right", 0],
            lambda: mp.sliding_window(200, 200, left=9, right=0),
        ),
        (
            ["documents", 30, 50, "--causal", "--block-size", "16x16"],
            lambda: mp.documents([30, 50], causal=True, block_size=(16, 16)),
        ),
        (
            ["sliding-tile", "4,8,8", "--tile", "2,4,4", "--window", "1,1,2"],
            lambda: mp.video.sliding_tile(
                mp.video.Grid(4, 8, 8), tile=(2, 4, 4), window=(1, 1, 2), block_size=(128, 128)
            ),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_plan_makes_what_the_builder_makes(capsys, tmp_path, arguments, expected):
    path = tmp_path / "made.plan"
    code, out, _ = run(capsys, "plan", *arguments, "-o", path)

    assert code == 0
    assert mp.load(path) == expected()
    assert mp.load(path).digest in out


def test_plan_takes_arrays(capsys, tmp_path):
    mask = np.eye(3, dtype=bool)
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "topk.npy", np.array([[[[0, 3, -1], [2, 2, -1]]]]))
    block = ["block-mask", tmp_path / "mask.npy", "--seqlen-q", 90, "--seqlen-k", 90]
    topk = ["topk", tmp_path / "topk.npy", "--seqlen-k", 4, "--block-size", "1,1"]

    assert run(capsys, "plan", *block, "--block-size", "32,32", "-o", tmp_path / "m")[0] == 0
    assert run(capsys, "plan", *topk, "-o", tmp_path / "t")[0] == 0
    assert mp.load(tmp_path / "m").stats().full_blocks == 3
    assert mp.load(tmp_path / "t").to_dense()[0, 0].tolist() == [
        [True, False, False, True],
        [False, False, True, False],
    ]


def test_show_draws_the_plan(capsys, plan_file):
    code, out, _ = run(capsys, "show", plan_file)

    assert code == 0
    assert out.startswith(str(mp.load(plan_file)))
    assert "made by causal(" in out


def test_stats_counts_the_plan(capsys, plan_file):
    code, out, _ = run(capsys, "stats", plan_file, "--head-dim", 64)

    assert code == 0
    assert out.strip() == str(mp.load(plan_file).stats(head_dim=64))


def test_verify_compares_a_backend(capsys, plan_file):
    code, out, _ = run(capsys, "verify", plan_file, "--backend", "cpu", "--head-dim", 16)

    assert code == 0
    assert "cpu" in out


def test_verify_takes_heads_dtype_and_device(capsys, plan_file):
    code, out, _ = run(
        capsys, "verify", plan_file, "--heads", 4, "--kv-heads", 2, "--dtype", "bfloat16",
        "--device", "cpu",
    )  # fmt: skip

    assert code == 0
    assert "bfloat16" in out
    assert "4 heads over 2" in out


@pytest.mark.parametrize("backward", ["loop_q", "loop_k"])
def test_verify_takes_a_backward_and_reports_derivatives(capsys, plan_file, backward):
    code, out, _ = run(
        capsys, "verify", plan_file, "--backend", "cpu", "--backward", backward, "--deterministic"
    )

    assert code == 0
    assert all(f"\nalong {name} " in out for name in "qkv")


@pytest.mark.parametrize(
    "option", [("--dtype", "int3"), ("--device", "abacus"), ("--backward", "loop_z")]
)
def test_verify_refuses_what_there_is_not(capsys, plan_file, option):
    code, _, err = run(capsys, "verify", plan_file, *option)

    assert code != 0
    assert repr(option[1]) in err


def test_doctor_names_packages_and_backends(capsys):
    code, out, _ = run(capsys, "doctor")

    assert code == 0
    for name in ("torch", "numba", "compiled code", "reference", "cpu"):
        assert name in out


def test_demo_goes_the_whole_way(capsys):
    code, out, _ = run(capsys, "demo", "--grid", "4,10,12", "--head-dim", 32)

    assert code == 0
    for part in ("480 tokens", "compiling", "plan:", "attention backward", "largest error", "┌"):
        assert part in out


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", [[], ["plan"], ["plan", "causal"], ["show"], ["demo"]])
def test_help_explains(capsys, command, option):
    code, out, _ = run(capsys, *command, option)

    assert code == 0
    assert "Usage" in out


# Mistakes are one line and exit code 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["show", "missing.plan"], "No such file"),
        (["show", "noise.plan"], "plan file is truncated or not a plan"),
        (["plan", "causal", "8", "-o", "x", "--block-size", "8"], "not a list of whole numbers"),
        (["plan", "causal", "8", "-o", "x", "--block-size", "0,8"], "1 <= block_size[0]"),
        (["plan", "sliding-tile", "4,8", "-o", "x"], "not a list of whole numbers in GRID"),
        (["plan", "topk", "noise.plan", "--seqlen-k", "4", "-o", "x"], "not an array"),
        (["plan", "topk", "floats.npy", "--seqlen-k", "4", "-o", "x"], "wanted integers of rank 4"),
        (["plan", "topk", "objects.npy", "--seqlen-k", "4", "-o", "x"], "not an array"),
        (["stats", "good.plan", "--head-dim", "0"], "head_dim"),
        (["verify", "good.plan", "--backend", "abacus"], "abacus"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.plan").write_bytes(b"noise")
    np.save("floats.npy", np.zeros((1, 1, 1, 1)))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    mp.causal(8, 8, block_size=(4, 4)).save("good.plan")
    code, _, err = run(capsys, *arguments)

    assert code == 1
    assert err.startswith("maskplan: ")
    assert part in err
    assert len(err.strip().splitlines()) == 1


def test_a_remedy_names_options(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    _, _, err = run(capsys, "plan", "sliding-tile", "5,5,5", "-o", "x.plan")
    assert "pass 1 to see the whole axis, or --clamp to cut windows so." in err


def test_the_package_runs_as_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "maskplan", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        check=True,
    )

    assert done.stdout == f"maskplan {mp.__version__}\n"


def test_the_program_prints_no_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from maskplan.cli import main; main()", "show", "missing.plan"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "maskplan: [Errno 2] No such file or directory: 'missing.plan'\n"


def test_a_fault_that_the_emulator_finds_is_one_line(capsys, tmp_path, monkeypatch):
    plan = tmp_path / "small.plan"
    mp.full(8, 8).save(plan)

    def race(*_: object, **__: object) -> None:
        raise RaceError("race in CTA (0, 0, 0) warp 3: got a load, wanted an order; wait for it.")

    monkeypatch.setattr(mp, "verify", race)

    assert run(capsys, "verify", plan) == (
        1,
        "",
        "maskplan: race in CTA (0, 0, 0) warp 3: got a load, wanted an order; wait for it.",
    )
