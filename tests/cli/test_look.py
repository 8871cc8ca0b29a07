"""`maskplan show`, `explore`, `stats` and `diff`: what they draw, write and count."""

import struct
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.cli import progress
from tests.cli.program import refuse, run, succeed


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """A video plan, a causal one, a book of both."""
    monkeypatch.chdir(tmp_path)
    grid = mp.video.Grid(4, 8, 8)
    tiles = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(1, 2, 1), block_size=(32, 32))
    radial = mp.video.radial(grid, decay=0.2, least=8, block_size=(32, 32))
    tiles.save("tiles.plan")
    radial.save("radial.plan")
    radial.transpose().save("back.plan")
    mp.causal(256, 256, block_size=(32, 32)).save("causal.plan")
    plans = {(0, 0): tiles, (0, 1): radial, (1, 0): radial, (1, 1): radial}
    mp.PlanBook.from_layers(plans, heads=2).save("run.book")


def is_picture(path: str) -> bool:
    image = matplotlib.image.imread(path)
    return min(image.shape[:2]) > 400 and bool((image != image[0, 0]).any())


@pytest.mark.parametrize("name", ["tiles.plan", "radial.plan", "back.plan", "run.book"])
def test_show_writes_a_picture(capsys, name):
    succeed(capsys, "show", name, "-o", "out.png")

    assert is_picture("out.png")
    width, height = struct.unpack(">II", Path("out.png").read_bytes()[16:24])
    assert width > 800
    assert height > 600


@pytest.mark.parametrize(("ending", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_show_writes_what_the_ending_says(capsys, ending, start):
    succeed(capsys, "show", "tiles.plan", "-o", f"out{ending}")

    assert Path(f"out{ending}").read_bytes().startswith(start)


def test_a_picture_of_a_part(capsys):
    succeed(capsys, "show", "tiles.plan", "-o", "a.png", "--q", "0,64", "--k", "64,128")
    succeed(capsys, "show", "tiles.plan", "-o", "b.png")

    assert Path("a.png").read_bytes() != Path("b.png").read_bytes()


def test_a_gallery(capsys):
    line = ["show", "run.book", "--step", 0, "--layer", 0, "-o"]
    succeed(capsys, *line, "heads.png", "--gallery")
    succeed(capsys, *line, "one.png")

    assert is_picture("one.png")
    assert Path("heads.png").read_bytes() != Path("one.png").read_bytes()


@pytest.mark.parametrize("name", ["tiles.plan", "run.book"])
def test_show_writes_a_page_without_scripts(capsys, name):
    succeed(capsys, "show", name, "-o", "out.html")
    page = Path("out.html").read_text()

    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "data:image/png" in page
    HTMLParser().feed(page)


def test_show_a_book_in_the_terminal(capsys):
    out = succeed(capsys, "show", "run.book")
    book = mp.PlanBook.load("run.book")

    assert str(book) in out
    assert book.digest in out


def test_show_one_layer_of_a_book(capsys):
    out = succeed(capsys, "show", "run.book", "--step", 0, "--layer", 0)

    assert "heads 2, 1 distinct pattern" in out
    assert "made by PlanBook.plan(layer=0, step=0)" in out
    succeed(capsys, "show", "run.book", "--step", 0, "--layer", 0, "-o", "layer.png")
    assert is_picture("layer.png")


@pytest.mark.parametrize("name", ["tiles.plan", "back.plan", "run.book"])
def test_explore_writes_a_page(capsys, name):
    out = succeed(capsys, "explore", name, "-o", "page.html")

    assert out == f"page.html: {Path('page.html').stat().st_size:,} bytes\n"
    assert "<script" in Path("page.html").read_text()


def test_stats_of_a_book(capsys):
    out = succeed(capsys, "stats", "run.book", "--head-dim", 64)

    assert out.strip() == str(mp.PlanBook.load("run.book").stats(head_dim=64))


# diff


def numbers(out: str) -> dict[str, int]:
    found = {}
    for line in out.splitlines():
        for name in ("both", "only A", "only B"):
            if line.strip().startswith(name):
                found[name] = int(line.split()[-8].replace(",", ""))
    return found


def test_diff_counts_pairs(capsys):
    out = succeed(capsys, "diff", "radial.plan", "causal.plan")
    a, b = (mp.load(f"{name}.plan").to_dense()[0, 0].numpy() for name in ("radial", "causal"))

    assert numbers(out) == {
        "both": int((a & b).sum()),
        "only A": int((a & ~b).sum()),
        "only B": int((b & ~a).sum()),
    }
    assert "┌" in out


def test_diff_of_equal_plans_in_other_blocks(capsys):
    mp.causal(256, 256, block_size=(64, 16)).save("other.plan")
    out = succeed(capsys, "diff", "causal.plan", "other.plan")

    assert "compared in blocks of 32 x 32" in out
    assert out.strip().endswith("A and B keep the same pairs")


def test_diff_draws(capsys):
    out = succeed(capsys, "diff", "radial.plan", "causal.plan", "-o", "d.png")

    assert is_picture("d.png")
    assert "┌" not in out


def test_one_head_stands_for_all(capsys):
    mask = np.random.default_rng(0).random((1, 3, 8, 8)) < 0.5
    plan = mp.from_block_mask(torch.from_numpy(mask), 256, 256, block_size=(32, 32))
    plan.save("heads.plan")
    out = succeed(capsys, "diff", "heads.plan", "causal.plan")
    one = mp.load("causal.plan").to_dense().numpy()

    assert numbers(out)["both"] == int((plan.to_dense().numpy() & one).sum())


def test_diff_refuses_other_orders(capsys):
    err = refuse(capsys, "diff", "tiles.plan", "radial.plan")

    assert "tokens of the plans lie in different orders in diff" in err
    assert "--any-order" in err
    assert "both" in succeed(capsys, "diff", "tiles.plan", "radial.plan", "--any-order")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("show tiles.plan -o out.bmp", "unknown extension in out.bmp"),
        ("show tiles.plan -o nowhere/out.png", "no folder nowhere"),
        ("show tiles.plan -o tiles.plan", "output exists in tiles.plan"),
        ("show tiles.plan -o out.png --head 1", "head"),
        ("show tiles.plan -o out.png --q 5", "not a list of whole numbers in --q"),
        ("show tiles.plan -o out.png --q 9,5", "range is empty"),
        ("show tiles.plan --head 0", "option is for pictures of a plan in --head"),
        ("show tiles.plan -o out.html --q 0,8", "in --q"),
        ("show tiles.plan --gallery", "option is for pictures of a plan in --gallery"),
        ("show tiles.plan -o out.png --gallery --head 0", "a gallery shows all heads in --head"),
        ("show tiles.plan --step 0", "a plan has no steps"),
        ("show run.book --head 0", "in --head"),
        ("show run.book --step 0", "book holds many plans in --layer"),
        ("show run.book --step 9 --layer 0", "9"),
        ("explore tiles.plan -o tiles.plan", "output exists"),
        ("stats missing.book", "No such file"),
        ("diff tiles.plan run.book", "book of plans"),
        ("diff tiles.plan missing.plan", "No such file"),
        ("diff tiles.plan small.plan", "lengths (SQ, SK) differ"),
        ("diff radial.plan causal.plan -o out.txt", "unknown extension"),
        ("verify run.book", "book of plans"),
    ],
)
def test_mistakes_are_one_line(capsys, line, part):
    mp.causal(8, 8, block_size=(4, 4)).save("small.plan")

    assert part in refuse(capsys, *line.split())
    assert not [path for path in Path().iterdir() if path.stem == "out" or "partial" in path.name]


def test_work_is_shown_on_a_terminal_only(capsys, monkeypatch):
    with progress.working("quietly"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    code, out, err = run(capsys, "explore", "tiles.plan", "-o", "page.html")
    assert code == 0
    assert "page.html" in out
    assert "writing page.html" in err
