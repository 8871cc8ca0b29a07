"""Rows in a file: what is measured again, and what a file may hold."""

import json

import pytest

import maskplan as mp
from maskplan.bench import Case, Journal, run
from tests.bench.works import HERE, OTHER, case, steady


def test_rows_that_are_there_are_not_measured_again(tmp_path):
    path = tmp_path / "rows"
    run([case("one")], Journal(path, HERE), steady, say=lambda _: None)

    def never():
        raise AssertionError("measured again")

    again = Case(name="one", title="", prepare=never)
    journal, said = Journal(path, HERE), []
    run([again, case("two")], journal, steady, say=said.append)

    assert [row["name"] for row in journal.rows()] == ["one", "two"]
    assert len(said) == 1
    assert len(path.read_text().splitlines()) == 2


def test_rows_of_other_versions_are_measured_again_and_kept(tmp_path):
    path = tmp_path / "rows"
    run([case("one")], Journal(path, HERE), steady, say=lambda _: None)
    run([case("one")], Journal(path, OTHER), steady, say=lambda _: None)

    assert len(path.read_text().splitlines()) == 2
    assert [len(Journal(path, machine).rows()) for machine in (HERE, OTHER)] == [1, 1]


def test_only_named_rows_run_and_none_after_the_seconds(tmp_path):
    journal = Journal(tmp_path / "rows", HERE)
    cases = [case(name) for name in ("plan/a", "attend/a", "plan/b", "plan/c")]
    clock = iter([0.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0])

    left = run(
        cases,
        journal,
        steady,
        rows=["plan"],
        seconds=5.0,
        say=lambda _: None,
        runs=1,
        now=lambda: next(clock),
    )

    assert [row["name"] for row in journal.rows()] == ["plan/a"]
    assert left == ["plan/b", "plan/c"]


def test_an_interrupted_line_is_cut_off(tmp_path):
    path = tmp_path / "rows"
    run([case("one")], Journal(path, HERE), steady, say=lambda _: None)
    whole = path.read_text()
    path.write_text(whole + '{"name": "tw')

    run([case("two")], Journal(path, HERE), steady, say=lambda _: None)

    lines = path.read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["one", "two"]
    assert path.read_text().startswith(whole)


@pytest.mark.parametrize(
    "text",
    [
        b"no json\n",
        b"[]\n",
        b'{"name": "x"}\n',
        b'{"name": "x", "machine": {}}\n',
        b'{"name": [3], "machine": {}, "date": 1}\n',
        b"\xff\xfe\n",
        b"somebody's notes, without a last newline",
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "rows"
    path.write_bytes(text)

    with pytest.raises(mp.PlanFileError, match=r"line is no row of a benchmark in .*, line 1: got"):
        Journal(path, HERE)
    assert path.read_bytes() == text


def test_the_line_that_is_named_is_the_line(tmp_path):
    path = tmp_path / "rows"
    run([case("one"), case("two")], Journal(path, HERE), steady, say=lambda _: None)
    path.write_text(path.read_text() + "notes")

    with pytest.raises(mp.PlanFileError, match=r"rows, line 3: got 'notes', wanted a JSON object"):
        Journal(path, HERE)


def test_looking_at_an_interrupted_file_leaves_it_alone(tmp_path):
    path = tmp_path / "rows"
    path.write_text('{"name": "tw')

    assert Journal(path, HERE).rows() == []
    assert path.read_text() == '{"name": "tw'


def test_a_row_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(mp.PlanError) as caught:
        run([case("plan/a")], Journal(tmp_path / "rows", HERE), steady, rows=["plan", "plam"])

    assert str(caught.value) == (
        "no such row in rows: got 'plam', wanted a part of a name, as plan/a; see maskplan bench "
        "--list."
    )
