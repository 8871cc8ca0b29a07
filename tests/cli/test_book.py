"""`maskplan book`: made from strategies and logs, looked into, one layer taken out."""

import json
from pathlib import Path

import pytest

import maskplan as mp
from tests.cli.program import refuse, succeed

ROOT = Path(mp.__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "mask_strategy_hunyuan.json.gz"
CANVAS = ["--canvas", "2,8,8", "--tile", "2,4,4", "--block-size", "32,32"]
SIZES = ["--steps", "2", "--layers", "2", "--heads", "2"]
STRATEGY = {
    f"{step}_{layer}_{head}": [1, 1 + step, 1 + head]
    for step in range(2)
    for layer in range(2)
    for head in range(2)
}


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text(json.dumps(STRATEGY))


def made(capsys) -> mp.PlanBook:
    succeed(capsys, "book", "make", "s.json", *CANVAS, *SIZES, "-o", "run.book")
    return mp.PlanBook.load("run.book")


def test_make(capsys):
    book = made(capsys)
    grid = mp.video.Grid(2, 8, 8)
    windows = {key: tuple(window) for key, window in STRATEGY.items()}

    for (step, layer, head), plan in book.items():
        assert plan == mp.video.sliding_tile(
            grid,
            tile=(2, 4, 4),
            window=windows[f"{step}_{layer}_{head}"],
            block_size=(32, 32),
        )


def test_keys_that_are_missing_need_a_window(capsys):
    Path("s.json").write_text(json.dumps({"0_0_0": [1, 1, 1]}))
    line = ["book", "make", "s.json", *CANVAS, *SIZES, "-o", "run.book"]

    assert "keys are missing" in refuse(capsys, *line)
    succeed(capsys, *line, "--missing", "1,2,2")
    assert mp.PlanBook.load("run.book").num_patterns == 2


def test_logs_are_averaged(capsys):
    for name, loss in (("a", 4.0), ("b", 1.0)):
        losses = {"[1, 1, 1]": [[[loss]]], "[1, 2, 2]": [[[2.0]]]}
        Path(f"{name}.json").write_text(json.dumps({"L2_loss": losses}))
    logs = ["--search-logs", "--dense-steps", "0", "--dense-window", "1,2,2", *CANVAS]
    for files, window in ((["a.json"], [1, 2, 2]), (["b.json"], [1, 1, 1])):
        succeed(capsys, "book", "make", *files, *logs, "-o", "log.book", "--force")
        assert window_of(mp.PlanBook.load("log.book")) == window
    succeed(capsys, "book", "make", "a.json", "b.json", *logs, "-o", "log.book", "--force")
    assert window_of(mp.PlanBook.load("log.book")) == [1, 2, 2]


def window_of(book: mp.PlanBook) -> list[int]:
    return list(book.pattern_provenance[0].parameters["window"])


def test_info(capsys):
    book = made(capsys)
    out = succeed(capsys, "book", "info", "run.book")

    assert str(book) in out
    assert f"layer    1  {book.select(layers=range(1, 2)).density:>9.4%}" in out
    assert out.count("entries  density") == 4
    assert "window=[1, 2, 1]" in out


def test_info_of_a_part(capsys):
    book = made(capsys)
    out = succeed(capsys, "book", "info", "run.book", "--step", 1, "--layer", 0, "--patterns", 1)

    assert str(book.select(steps=range(1, 2), layers=range(1))) in out
    assert "... 1 more" in out


def test_extract(capsys):
    book = made(capsys)
    succeed(capsys, "book", "extract", "run.book", "--step", 1, "--layer", 0, "-o", "l.plan")
    line = ["book", "extract", "run.book", "--step", 0, "--layer", 1, "--head", 1, "-o", "h.plan"]
    out = succeed(capsys, *line)

    assert mp.load("l.plan") == book.plan(1, 0)
    assert mp.load("h.plan") == book[0, 1, 1]
    assert book[0, 1, 1].digest in out


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("info s.json", "not a plan"),
        ("info small.plan", "book"),
        ("info run.book --step 7", "7"),
        ("info run.book --step -1", "-1"),
        ("extract run.book --step 1 -o x", "book holds many plans in --layer: got nothing"),
        ("extract run.book --step 1 --layer 2 -o x", "2"),
        ("extract run.book --step 1 --layer 1 --head 2 -o x", "2"),
        ("extract run.book --step 1 --layer 1 -o run.book", "output exists"),
        ("make s.json --canvas 2,8,8 --tile 2,4,4 -o x", "no --steps, no --layers, no --heads"),
        ("make s.json t.json --canvas 2,8,8 --tile 2,4,4 --steps 2 --layers 2 --heads 2 -o x",
         "a book has one strategy in SOURCES: got 2 files"),
        (("make s.json --canvas 2,8,8 --tile 2,4,4 --search-logs --dense-steps 0 "
         "--dense-window 1,2,2 -o x"), "not losses by window"),
        (("make s.json --canvas 2,8,8 --tile 2,4,4 --search-logs --steps 2 --dense-steps 0 "
         "--dense-window 1,2,2 -o x"), "option has no meaning here in search-log: got --steps"),
        ("make s.json --canvas 2,8,8 --tile 0,4,4 --steps 2 --layers 2 --heads 2 -o x",
         "size is below 1 in --tile"),
        ("make s.json --canvas 2,8,8 --tile 2,4,4 --steps 0 --layers 2 --heads 2 -o x", "steps"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(capsys, line, part):
    made(capsys)
    mp.causal(8, 8, block_size=(4, 4)).save("small.plan")

    assert part in refuse(capsys, "book", *line.split())
    assert not Path("x").exists()


@pytest.mark.skipif(not REAL.is_file(), reason="the file of FastVideo is not here")
def test_the_file_for_hunyuanvideo(capsys):
    model = ["--steps", "50", "--layers", "60", "--heads", "24"]
    line = ["book", "make", REAL, "--canvas", "30,48,80", "--tile", "6,8,8", *model]
    out = succeed(capsys, *line, "-o", "run.book")

    assert "density 41.6" in out
    assert Path("run.book").stat().st_size < 2**20
    succeed(capsys, "convert", "run.book", "back.json", "--to", "mask-strategy")
    assert len(json.loads(Path("back.json").read_text())) == 72_000
