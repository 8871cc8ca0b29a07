"""`maskplan bench` as a user runs it, on its quickest row."""

import json

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
