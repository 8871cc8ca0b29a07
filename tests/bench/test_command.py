"""`maskplan bench` as a user runs it, on its quickest row."""

import json

import pytest

from maskplan.bench import runner
from tests.cli.program import run, succeed

ROW = ("--rows", "planning/window", "--device", "cpu", "--runs", "3")


def test_a_second_start_measures_nothing_again(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    first = succeed(capsys, "bench", *ROW, "-o", path)
    written = path.read_text()
    second = succeed(capsys, "bench", *ROW, "-o", path)

    assert first.startswith("planning/window/cpu: time ")
    assert json.loads(written)["name"] == "planning/window/cpu"
    assert path.read_text() == written
    assert second.strip() == first.partition("\n\n")[2].strip()
    assert "| work " in second


def test_the_list_says_what_is_done(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    succeed(capsys, "bench", *ROW, "-o", path)
    lines = succeed(capsys, "bench", "--list", "--device", "cpu", "-o", path).splitlines()

    assert [line.split()[1] for line in lines if line.startswith("done")] == ["planning/window/cpu"]
    assert len(lines) > 15


def test_the_list_is_of_the_rows_asked_for(capsys, tmp_path):
    rest = ("--list", "--device", "cpu", "-o", tmp_path / "rows.jsonl")
    out = succeed(capsys, "bench", "--rows", "planning/window", *rest)
    assert [line.split()[0] for line in out.splitlines()] == ["planning/window/cpu"]

    code, out, err = run(capsys, "bench", "--rows", "nope", *rest)
    assert (code, out) == (1, "")
    assert "no such row in rows: got 'nope'" in err


def test_no_time_leaves_rows_for_the_next_start(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    out = succeed(capsys, "bench", *ROW, "--seconds", "0", "-o", path)

    assert "rows not measured: 1; the same command goes on with them" in out
    assert not path.exists()


def test_a_device_that_is_not_there_is_one_sentence(capsys, tmp_path):
    code, _, err = run(capsys, "bench", "--device", "tpu", "-o", tmp_path / "rows")

    assert code != 0
    assert "no such device here in device: got 'tpu'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("listing", [(), ("--list",)])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys, tmp_path, monkeypatch, listing
):
    def measure(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr(runner, "measured", measure)
    path = tmp_path / "absent" / "rows.jsonl"
    code, out, err = run(capsys, "bench", *ROW, *listing, "-o", path)
    folder = run(capsys, "bench", *ROW, *listing, "-o", tmp_path)

    assert (code, out) == (1, "")
    assert " ".join(err.split()) == (
        f"maskplan: no file can be written in {path}: got no folder {path.parent}, wanted a file "
        "in a folder that exists; correct it."
    )
    assert folder[0] == 1
    assert "got a folder, wanted a file in a folder that exists" in " ".join(folder[2].split())
    assert not path.parent.exists()
