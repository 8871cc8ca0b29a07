"""`maskplan book make --plans`: a book of plan files, where nothing is guessed."""

import json
from pathlib import Path

import pytest
import torch

import maskplan as mp
from tests.cli.program import refuse, succeed

NAMES = {(0, 0, 0): "a", (0, 0, 1): "b", (0, 1, 0): "b", (0, 1, 1): "a"}


@pytest.fixture(autouse=True)
def plans(tmp_path, monkeypatch) -> dict[str, mp.Plan]:
    """Plans a and b of one head, two of two heads, and others that do not fit."""
    monkeypatch.chdir(tmp_path)
    pairs = torch.arange(64)[:, None] >= torch.arange(64)
    made = {
        "a": mp.causal(64, 64, block_size=(16, 16)),
        "b": mp.full(64, 64, block_size=(16, 16)),
        "two": mp.from_token_mask(torch.stack([pairs, pairs.T])[None], block_size=(16, 16)),
        "long": mp.full(80, 80, block_size=(16, 16)),
    }
    for name, plan in made.items():
        plan.save(f"{name}.plan")
    Path("runs").mkdir()
    made["a"].save("runs/inner.plan")
    mp.PlanBook.from_plans({(0, 0, 0): made["a"]}).save("a.book")
    return made


def book_of(plans) -> mp.PlanBook:
    return mp.PlanBook.from_plans({key: plans[name] for key, name in NAMES.items()})


def written(key: tuple[int, ...]) -> str:
    return ",".join(map(str, key))


def test_from_arguments(capsys, plans):
    sources = [f"{written(key)}={name}.plan" for key, name in NAMES.items()]
    out = succeed(capsys, "book", "make", "--plans", *sources, "-o", "run.book")
    book = mp.PlanBook.load("run.book")

    assert book == book_of(plans)
    assert book.num_patterns == 2
    assert book.digest in out


@pytest.mark.parametrize("kind", ["json", "tsv"])
def test_from_a_listing(capsys, plans, kind):
    listed = {written(key): f"{name}.plan" for key, name in NAMES.items()}
    lines = "".join(f"{key}\t{name}\n" for key, name in listed.items())
    Path(f"l.{kind}").write_text(json.dumps(listed) if kind == "json" else lines)
    succeed(capsys, "book", "make", "--plans", f"l.{kind}", "-o", "run.book")

    assert mp.PlanBook.load("run.book") == book_of(plans)


def test_paths_of_a_listing_start_from_its_folder(capsys, plans):
    Path("runs/l.tsv").write_text("0,0,0\tinner.plan\r\n0,0,1\t../b.plan\r\n")
    succeed(capsys, "book", "make", "--plans", "runs/l.tsv", "0,0,2=a.plan", "-o", "run.book")
    book = mp.PlanBook.load("run.book")

    assert [book[0, 0, head] for head in range(3)] == [plans["a"], plans["b"], plans["a"]]


def test_places_keep_their_numbers(capsys):
    succeed(capsys, "book", "make", "--plans", "7,3,2=a.plan", "-o", "run.book")

    book = mp.PlanBook.load("run.book")
    assert (book.steps, book.layers, book.heads) == (range(7, 8), range(3, 4), range(2, 3))


def test_whole_layers(capsys, plans):
    sources = ["0,0=two.plan", "0,1=a.plan"]
    succeed(capsys, "book", "make", "--plans", *sources, "-o", "run.book")
    book = mp.PlanBook.load("run.book")

    assert book == mp.PlanBook.from_layers({(0, 0): plans["two"], (0, 1): plans["a"]})
    assert book.plan(0, 0) == plans["two"]


def test_what_extract_saves_can_be_put_together_again(capsys, plans):
    book_of(plans).save("run.book")
    for layer in range(2):
        cut = ["--layer", layer, "-o", f"{layer}.plan"]
        succeed(capsys, "book", "extract", "run.book", *cut)
    succeed(capsys, "book", "make", "--plans", "0,0=0.plan", "0,1=1.plan", "-o", "again.book")

    assert mp.PlanBook.load("again.book") == book_of(plans)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("0,0,0=a.plan 0,0,0=a.plan", "place is named twice in '0,0,0=a.plan'"),
        ("0,0,0=a.plan 0,0=two.plan", "places are of two kinds"),
        ("0,0,0=a.plan 0,0,2=a.plan", "first (steps, layers, heads) = (0, 0, 1)"),
        ("0,0,0=a.plan --heads 2", "no plan for 1 of 2"),
        ("0,0,2=a.plan --heads 2", "heads in [0, 2)"),
        ("0,0,0=a.plan --steps 0", "steps"),
        ("0,0,0=a.plan --steps -1", "steps"),
        ("0,0,0=a.plan --steps 99999999999", "99999999999"),
        ("999999999,0,0=a.plan 0,0,0=a.plan", "range cannot number a book in steps"),
        ("0,0,0=a.plan 0,0,1=long.plan", "80"),
        ("0,0,0=two.plan", "plan has the wrong number of heads"),
        ("0,0=two.plan --heads 3", "plan has the wrong number of heads"),
        ("0,0,0=a.book", "book"),
        ("0,0,0=absent.plan", "absent.plan"),
        ("a.plan", "source has no place in the run in SOURCES: got 'a.plan'"),
        ("00,0,0=a.plan", "source has no place"),
        ("0,0,-1=a.plan", "source has no place"),
        ("0=a.plan", "source has no place"),
        ("0,0,0,0=a.plan", "source has no place"),
        ("0,0,0=", "not a path"),
        ("0,0,0=a.plan --canvas 2,8,8", "option has no meaning here in --plans: got --canvas"),
        ("0,0,0=a.plan --block-size 16,16", "got --block-size"),
        ("0,0,0=a.plan --pad --search-logs", "sources are said to be two things"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(capsys, line, part):
    assert part in refuse(capsys, "book", "make", "--plans", *line.split(), "-o", "x")
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("l.json", "[]", "not a listing of plans"),
        ("l.json", "{}", "not a listing of plans"),
        ("l.json", '{"0,0,0": "a.plan", "0,0,0": "b.plan"}', "0,0,0"),
        ("l.json", '{"0,0,0": 3}', "not a path in l.json, key '0,0,0': got 3"),
        ("l.json", '{"0, 0, 0": "a.plan"}', "not a place in a run in l.json"),
        ("l.json", '{"0_0_0": "a.plan"}', "not a place in a run in l.json"),
        ("l.json", '{"0,0,0": " a.plan"}', "not a path"),
        ("l.json", '{"0,0,0": "a\\u0000"}', "not a path"),
        ("l.tsv", "", "not a listing of plans"),
        ("l.tsv", "0,0,0 a.plan\n", "not a place and a path in l.tsv, line 1"),
        ("l.tsv", "0\t0\t0\ta.plan\n", "not a place and a path in l.tsv, line 1"),
        ("l.tsv", "place\tfile\n0,0,0\ta.plan\n", "not a place in a run in l.tsv, line 1"),
        ("l.tsv", "0,0,0\ta.plan\n\n", "not a place and a path in l.tsv, line 2"),
        ("l.tsv", "0,0,0\ta.plan\n0,0,0\tb.plan\n", "got 0,0,0 also in l.tsv, line 1"),
        ("l.tsv", b"0,0,0\t\xff.plan\n", "file is not text"),
    ],
)
def test_listings_that_are_refused(capsys, name, content, part):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    assert part in refuse(capsys, "book", "make", "--plans", name, "-o", "x")
    assert not Path("x").exists()
