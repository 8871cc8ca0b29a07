"""FastVideo's mask strategies and search logs: read, written, and refused in which words."""

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import maskplan as mp
from maskplan.interop import fastvideo
from maskplan.interop.fastvideo_search import SearchLog, best_windows

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "data" / "mask_strategy_small.json"
HUNYUAN = ROOT.parent / "shared" / "data" / "mask_strategy_hunyuan.json.gz"
MODEL = {"canvas": (4, 4, 4), "tile": (2, 2, 2), "steps": 2, "layers": 2, "heads": 3}


def window_mask(canvas, tile, window) -> torch.Tensor:
    """bool [SQ, SK] in tile order, from the definition: a loop over pairs of tiles."""
    sizes = [length // side for length, side in zip(canvas, tile, strict=True)]
    tokens = tile[0] * tile[1] * tile[2]
    tiles = list(itertools.product(*map(range, sizes)))
    mask = torch.zeros(len(tiles), len(tiles), dtype=torch.bool)
    for i, query in enumerate(tiles):
        for j, key in enumerate(tiles):
            sees = True
            for x, y, n, k in zip(query, key, sizes, window, strict=True):
                centre = min(max(x, k // 2), n - 1 - (k // 2 + k % 2 - 1))
                sees &= centre - k // 2 <= y <= centre + k // 2 + k % 2 - 1
            mask[i, j] = sees
    return mask.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)


def test_each_head_sees_its_window():
    book = fastvideo.read_mask_strategy(SMALL, **MODEL, block_size=(16, 8))
    strategy = json.loads(SMALL.read_text())

    assert book.shape == (2, 2, 3)
    for step, layer, head in book:
        expected = window_mask((4, 4, 4), (2, 2, 2), strategy[f"{step}_{layer}_{head}"])
        assert torch.equal(book[step, layer, head].to_dense()[0, 0], expected)
    assert book.num_patterns == 3
    made = book[1, 0, 1].provenance
    assert made.parameters["window"] == strategy["1_0_1"]
    assert book.plan(1, 0).provenance.grid["t"] == 4


def test_a_strategy_comes_back_as_it_was(tmp_path):
    book = fastvideo.read_mask_strategy(SMALL, **MODEL)
    assert fastvideo.mask_strategy_of(book) == json.loads(SMALL.read_text())

    fastvideo.write_mask_strategy(book, tmp_path / "out.json")
    assert fastvideo.read_mask_strategy(tmp_path / "out.json", **MODEL) == book
    book.save(tmp_path / "book")
    assert fastvideo.mask_strategy_of(mp.PlanBook.load(tmp_path / "book")) == json.loads(
        SMALL.read_text()
    )


def test_a_gzipped_file_is_read(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(SMALL.read_bytes()))

    assert fastvideo.read_mask_strategy(path, **MODEL) == fastvideo.read_mask_strategy(
        SMALL, **MODEL
    )


def test_text_and_a_ragged_canvas():
    book = fastvideo.book_of_mask_strategy(
        {"0_0_0": [2, 1, 1]}, canvas=(3, 4, 2), tile=(2, 2, 2), steps=1, layers=1, heads=1, text=5
    )
    assert book.geometry.seqlen_q == 3 * 4 * 2 + 5
    assert bool(book[0, 0, 0].to_dense()[..., -5:, :].all())


def test_missing_keys_can_be_named():
    book = fastvideo.book_of_mask_strategy(
        {"0_0_0": [1, 1, 1]},
        canvas=(4, 4, 4),
        tile=(2, 2, 2),
        steps=2,
        layers=1,
        heads=1,
        missing=(2, 2, 2),
    )
    assert book[1, 0, 0].density == 1.0


def test_a_window_for_missing_keys_has_three_sides():
    with pytest.raises(mp.PlanTypeError, match=r"size is not a triple in missing: got 3"):
        fastvideo.book_of_mask_strategy({}, **MODEL, missing=3)


def change(**keys):
    return json.loads(SMALL.read_text()) | keys


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        (change(**{"2_0_0": [1, 1, 1]}), ["key is outside the model", "'2_0_0'", "steps below 2"]),
        (change(**{"0_2_0": [1, 1, 1]}), ["layers below 2"]),
        (change(**{"0_0_3": [1, 1, 1]}), ["heads below 3", "pass the model's number of heads"]),
        (change(**{"0_0": [1, 1, 1]}), ["unknown key", "'0_0'", '"step_layer_head"']),
        (change(**{"00_0_0": [1, 1, 1]}), ["unknown key", "'00_0_0'"]),
        (change(**{"-1_0_0": [1, 1, 1]}), ["unknown key", "'-1_0_0'"]),
        (change(**{"0_0_0": [1, 1]}), ["window is not three integers", "'0_0_0'", "[1, 1]"]),
        (change(**{"0_0_0": [1, 1, True]}), ["window is not three integers"]),
        (change(**{"0_0_0": [1, 1, 1.0]}), ["window is not three integers"]),
        (change(**{"0_0_0": "111"}), ["window is not three integers"]),
        (
            change(**{"0_0_0": [1, 3, 1]}),
            ["window does not fit the canvas", "1 to 2 tiles along h"],
        ),
        (change(**{"0_0_0": [0, 1, 1]}), ["window does not fit the canvas", "along t"]),
        ({"0_0_0": [1, 1, 1]}, ["keys are missing", "11 of 12", "first '0_0_1'", "missing="]),
        ([1], ["not a mask strategy", "got list"]),
    ],
)
def test_strategies_that_are_refused(strategy, parts):
    with pytest.raises(mp.PlanFileError) as caught:
        fastvideo.book_of_mask_strategy(strategy, **MODEL)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b'{"0_0_0": [1, 1, 1], "0_0_0": [2, 2, 2]}', ["not JSON", "'0_0_0' stands twice"]),
        (b'{"0_0_0": [1, 1, NaN]}', ["not JSON", "NaN is not a number"]),
        (b"\xff\xfe", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"\x1f\x8b broken", ["damaged gzip"]),
        (gzip.compress(b"{}", mtime=0)[:-4], ["damaged gzip"]),
    ],
)
def test_files_that_are_refused(tmp_path, content, parts):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(mp.PlanFileError) as caught:
        fastvideo.read_mask_strategy(path, **MODEL)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("name", ["canvas", "tile"])
@pytest.mark.parametrize(
    ("value", "kind", "parts"),
    [
        ((0, 2, 2), mp.PlanError, ["[t]", "got 0"]),
        ((2, -2, 2), mp.PlanError, ["[h]", "got -2"]),
        ((2, 2), mp.PlanTypeError, ["size is not a triple", "got (2, 2)"]),
        (2, mp.PlanTypeError, ["size is not a triple", "got 2"]),
        ((2, 2, 2.0), mp.PlanTypeError, ["[w]", "got 2.0"]),
    ],
)
def test_sizes_that_are_no_triple_are_refused(name, value, kind, parts):
    with pytest.raises(kind) as caught:
        fastvideo.book_of_mask_strategy({}, **(MODEL | {name: value}))

    assert all(part in str(caught.value) for part in [name, *parts]), str(caught.value)


def test_any_byte_of_a_gzipped_file_may_be_damaged(tmp_path):
    """The file is read as it was or refused, whatever part of gzip finds the damage."""
    path = tmp_path / "a.json.gz"
    whole = gzip.compress(SMALL.read_bytes(), mtime=0)
    wanted = fastvideo.read_mask_strategy(SMALL, **MODEL)
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            assert fastvideo.read_mask_strategy(path, **MODEL) == wanted
        except mp.PlanFileError:
            refused += 1
    assert refused > len(whole) // 2


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**22))
    with pytest.raises(mp.PlanFileError, match=r"too large.*at most 1048576 bytes, unpacked"):
        fastvideo.read_mask_strategy(path, **MODEL, max_bytes=2**20)
    with pytest.raises(mp.PlanTypeError, match="argument is not an integer in max_bytes"):
        fastvideo.read_mask_strategy(path, **MODEL, max_bytes="1 MiB")


def test_what_cannot_be_written_is_refused():
    whole = mp.full(8, 8)
    with pytest.raises(mp.PlanError, match=r"not a sliding tile in book\.pattern\(0\)"):
        fastvideo.mask_strategy_of(mp.PlanBook.from_plans({(0, 0, 0): whole}))
    book = fastvideo.read_mask_strategy(SMALL, **MODEL)
    with pytest.raises(mp.PlanError, match="count from 0"):
        fastvideo.mask_strategy_of(book.select(steps=range(1, 2)))


def test_a_provenance_that_lies_is_refused():
    plan = mp.video.sliding_tile(mp.video.Grid(4, 4, 4), tile=(2, 2, 2), window=(1, 1, 1))
    liar = mp.PlanBook.from_plans({(0, 0, 0): plan | mp.full(64, 64)})
    object.__setattr__(liar, "pattern_provenance", (plan.provenance,))

    with pytest.raises(mp.PlanError, match="not a sliding tile"):
        fastvideo.mask_strategy_of(liar)


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"tile": 5, "window": [1], "pad": False},
        {"tile": "x", "window": [1, 1, 1], "pad": False},
        {"tile": [2, 2, 2], "window": [9, 9, 9], "pad": False},
        {"tile": [10**6] * 3, "window": [1, 1, 1], "pad": True},
    ],
)
@pytest.mark.parametrize("grid", [None, {}, {"t": "x"}, {"evil": 1}])
def test_a_provenance_that_claims_nonsense_is_refused(claim, grid):
    plan = mp.video.sliding_tile(mp.video.Grid(4, 4, 4), tile=(2, 2, 2), window=(1, 1, 1))
    origin = replace(plan.provenance, parameters=claim)
    origin = origin if grid is None else replace(origin, grid=grid)
    book = mp.PlanBook.from_choices(
        [replace(plan, provenance=origin)], torch.zeros(1, 1, 1, dtype=torch.int64)
    )
    with pytest.raises(mp.PlanError, match="plan is not a sliding tile"):
        fastvideo.mask_strategy_of(book)


@pytest.mark.skipif(not HUNYUAN.exists(), reason="the HunyuanVideo strategy is not at hand")
def test_the_hunyuan_strategy(tmp_path):
    book = fastvideo.read_mask_strategy(
        HUNYUAN, canvas=(30, 48, 80), tile=(6, 8, 8), steps=50, layers=60, heads=24
    )
    book.save(tmp_path / "book")

    assert len(book) == 72_000
    assert book.num_patterns == 6
    assert (tmp_path / "book").stat().st_size < 2**20
    assert round(book.density, 3) == 0.416
    assert round(book.select(steps=range(15, 50)).density, 3) == 0.166
    counts = sorted(book.stats().pattern_uses.tolist(), reverse=True)
    assert counts == [21_600, 20_380, 15_916, 7_396, 5_244, 1_464]
    assert mp.PlanBook.load(tmp_path / "book") == book


# Search logs


def log_of(first, second) -> dict:
    """A log of two windows over 2 steps, 1 layer, 2 heads."""
    return {"L2_loss": {"[1, 2, 1]": [[first], [first]], "[2, 2, 2]": [[second], [second]]}}


def test_the_window_of_least_mean_loss_is_taken():
    logs = [
        SearchLog.from_json(log_of([1.0, 5.0], [2, 1])),
        SearchLog.from_json(log_of([3, 0], [4, 1])),
    ]
    strategy = best_windows(logs, dense_steps=1, dense_window=(2, 2, 2))

    assert strategy == {
        "0_0_0": [2, 2, 2],
        "0_0_1": [2, 2, 2],
        "1_0_0": [1, 2, 1],
        "1_0_1": [2, 2, 2],
    }
    book = fastvideo.book_of_mask_strategy(
        strategy, canvas=(4, 4, 4), tile=(2, 2, 2), steps=2, layers=1, heads=2
    )
    assert book[0, 0, 0].density == 1.0


def test_a_log_is_read_from_a_file(tmp_path):
    (tmp_path / "mask_search_0.json").write_text(json.dumps(log_of([1, 2], [3, 4])))
    log = SearchLog.read(tmp_path / "mask_search_0.json")

    assert log.windows == ((1, 2, 1), (2, 2, 2))
    assert log.losses["L2_loss"].shape == (2, 2, 1, 2)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([], ["not a search log"]),
        ({"L2_loss": {"1,2,1": [[[1]]]}}, ["key is not a window", "'1,2,1'"]),
        ({"L2_loss": {"[1, 2, 1]": [[[1], [1, 2]]]}}, ["lists are ragged"]),
        ({"L2_loss": {"[1, 2, 1]": [[["x"]]]}}, ["losses are not numbers"]),
        ({"L2_loss": {"[1, 2, 1]": [[1]]}}, ["losses are not numbers"]),
        ({"L2_loss": {"[1, 2, 1]": [[[-1.0]]]}}, ["negative or not finite"]),
        ({"L2_loss": {"[1, 2, 1]": [[[10**400]]]}}, ["search log"]),
        (
            {"L2_loss": {"[1, 2, 1]": [[[1]]]}, "L1_loss": {"[1, 1, 1]": [[[1]]]}},
            ["losses name different windows", "'L1_loss'"],
        ),
        (
            {"L2_loss": {"[1, 2, 1]": [[[1]]], "[1, 1, 1]": [[[1, 2]]]}},
            ["losses differ in steps, layers or heads", "[1, 1, 2], wanted [1, 1, 1]"],
        ),
        (
            {"L2_loss": {"[1, 2, 1]": [[[1]]]}, "L1_loss": {"[1, 2, 1]": [[[1], [2]]]}},
            ["losses differ in steps, layers or heads", "'L1_loss'"],
        ),
    ],
)
def test_logs_that_are_refused(value, parts):
    with pytest.raises(mp.PlanFileError) as caught:
        SearchLog.from_json(value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"logs": []}, "0 logs"),
        ({"loss": "L1_loss"}, "'L1_loss' of windows"),
        ({"windows": [(9, 9, 9)]}, "(9, 9, 9)"),
    ],
)
def test_logs_that_do_not_go_together(arguments, part):
    given = {"logs": [SearchLog.from_json(log_of([1, 2], [3, 4]))]} | arguments
    with pytest.raises(mp.PlanError) as caught:
        best_windows(**given, dense_steps=0, dense_window=(2, 2, 2))
    assert part in str(caught.value)
