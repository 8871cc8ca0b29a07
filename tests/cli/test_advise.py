"""`maskplan advise`: the pattern of a plan file on sizes near its own."""

from dataclasses import replace

import pytest

import maskplan as mp
from tests.cli.program import refuse, succeed

GRID = "3,10,18"
PATTERNS = {
    "sliding-tile --window 1,1,1 --pad --text 5": lambda grid: mp.video.sliding_tile(
        grid, window=(1, 1, 1), pad=True
    ),
    "svg --head temporal --model wan --frames 1 --text 5 --queries video": lambda grid: (
        mp.video.svg(grid, head="temporal", model="wan", frames=1.0, queries="video")
    ),
    "radial --decay 0.2 --text 5": lambda grid: mp.video.radial(grid, decay=0.2),
    "radial-shrunk --decay 0.2 --block 64 --text 5": lambda grid: mp.video.radial_shrunk(
        grid, decay=0.2, block=64
    ),
    "neighborhood --kernel 3,5,5 --tile 1,8,8 --text 5": lambda grid: mp.video.neighborhood(
        grid, kernel=(3, 5, 5), tile=(1, 8, 8)
    ),
    "nested-neighborhood --text 5": mp.video.nested_neighborhood,
    "block-causal --chunk 2 --text 5": lambda grid: mp.video.block_causal(grid, chunk=2),
    "magi --reach 1,2 --chunk 2 --text 5": lambda grid: mp.video.magi(grid, reach=[1, 2], chunk=2),
}


@pytest.mark.parametrize("line", PATTERNS, ids=lambda line: line.split()[0])
def test_advice_on_the_pattern_of_a_file(capsys, tmp_path, line):
    path, (name, *options) = tmp_path / "a.plan", line.split()
    succeed(capsys, "plan", name, GRID, *options, "-o", path)
    out = succeed(capsys, "advise", path, "--spread", "0,1,1", "--most", 2)
    grid = mp.video.Grid(3, 10, 18, text=5)

    assert str(mp.video.advise(grid, PATTERNS[line], spread=(0, 1, 1), most=2)) in out


def test_advice_in_the_blocks_of_a_kernel(capsys, tmp_path):
    path = tmp_path / "a.plan"
    succeed(capsys, "plan", "radial", GRID, "--decay", 0.2, "-o", path)

    out = succeed(capsys, "advise", path, "--spread", "0,0,1", "--arch", "sm100")
    assert "in blocks of 256 x 128 tokens" in out


def lying(change) -> mp.Plan:
    plan = mp.video.radial(mp.video.Grid(3, 10, 18), decay=0.2)
    origin = plan.provenance
    return replace(plan, provenance=replace(origin, **change(origin)))


@pytest.mark.parametrize(
    "plan",
    [
        lambda: mp.causal(8, 8, block_size=(4, 4)),
        lambda: replace(mp.full(8, 8), provenance=None),
        lambda: lying(lambda o: {"parameters": {**o.parameters, "sink": False}}),
        lambda: lying(lambda o: {"parameters": {**o.parameters, "decay": "x"}}),
        lambda: lying(lambda o: {"parameters": {**o.parameters, "evil": 1}}),
        lambda: lying(lambda _: {"parameters": {}}),
        lambda: lying(lambda _: {"grid": {"t": 1000, "h": 1000, "w": 1000}}),
        lambda: lying(lambda _: {"grid": {"t": 3, "h": 10, "w": 18, "x": 1}}),
        lambda: lying(lambda _: {"grid": {"t": "3", "h": 10, "w": 18}}),
        lambda: lying(lambda _: {"builder": "sliding_tile"}),
    ],
)
def test_a_plan_that_cannot_be_made_again(capsys, tmp_path, plan):
    path = tmp_path / "a.plan"
    plan().save(path)

    assert "plan cannot be made for another size" in refuse(capsys, "advise", path)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--spread", "1"], "--spread"),
        (["--spread", "-1,0,0"], "spread"),
        (["--most", -1], "most"),
        (["--arch", "sm1"], "sm1"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, options, part):
    path = tmp_path / "a.plan"
    succeed(capsys, "plan", "radial", GRID, "--decay", 0.2, "-o", path)

    assert part in refuse(capsys, "advise", path, *options)
