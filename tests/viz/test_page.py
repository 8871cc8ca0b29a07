"""The page to explore: what is in it, and that text of files cannot do anything there."""

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.book.runs import Runs, expanded
from maskplan.viz.embedding import embedded, script_safe
from maskplan.viz.page import explore, page
from tests.handmade import causal_mask, plan_of
from tests.strategies import plans
from tests.viz.hostile import TEXT, UNFIT, hostile_provenance


def unpacked(array) -> np.ndarray:
    values = np.frombuffer(zlib.decompress(base64.b64decode(array["data"])), dtype="<i4")
    assert len(values) == array["length"]
    return values.cumsum(dtype=np.int32) if array["delta"] else values


@given(plans(), st.booleans())
def test_the_lists_in_a_page_are_the_plan(plan, transposed):
    plan = plan.transpose() if transposed else plan
    data = json.loads(script_safe(embedded(plan)))
    arrays = {name: unpacked(array) for name, array in data["arrays"].items()}
    runs = Runs(
        row_runs=arrays["row_runs"],
        start=arrays["run_start"],
        length=arrays["run_length"],
        tile=arrays.get("run_tile"),
    )
    row_ptr, col, tile_id = expanded(runs)
    again = replace(
        plan,
        row_ptr=torch.from_numpy(row_ptr),
        col=torch.from_numpy(col),
        tile_id=None if tile_id is None else torch.from_numpy(tile_id),
        tiles=torch.from_numpy(arrays["tiles"].copy()).view_as(plan.tiles),
        pattern_id=torch.from_numpy(arrays["index"].copy()).view_as(plan.pattern_id),
    )

    assert again == plan
    assert data["row"] == ("key" if transposed else "query")
    shares = [pattern["density"] for pattern in data["patterns"]]
    dense = plan.to_dense().double()
    if dense.numel():
        for b in range(plan.batch):
            for h in range(plan.heads):
                share = shares[int(plan.pattern_id[b, h])]
                assert share == pytest.approx(float(dense[b, h].mean()))


def test_a_book_is_embedded_with_its_axes_and_equal_orders_once():
    grid = mp.video.Grid(2, 4, 4)
    choices = [
        mp.video.sliding_tile(grid, tile=(2, 2, 2), window=window, block_size=(8, 8))
        for window in ((1, 1, 1), (1, 2, 2))
    ]
    index = torch.tensor([[[0, 1, 1]], [[1, 1, 1]]])
    ranges = (range(5, 7), range(3, 4), range(3))
    book = mp.PlanBook.from_choices(choices, index, ranges=ranges)
    data = embedded(book)

    assert data["axes"] == [
        {"name": "step", "start": 5, "count": 2},
        {"name": "layer", "start": 3, "count": 1},
        {"name": "head", "start": 0, "count": 3},
    ]
    assert unpacked(data["arrays"]["index"]).tolist() == [0, 1, 1, 1, 1, 1]
    assert [name for name in data["arrays"] if name.startswith("slots")] == ["slots0"]
    order = mp.video.TokenOrder.tiles(grid, (2, 2, 2))
    assert unpacked(data["arrays"]["slots0"]).tolist() == order.slots.tolist()
    assert data["patterns"][0]["madeBy"].startswith("sliding_tile(")


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


def test_text_of_files_cannot_leave_its_place():
    plan = replace(plan_of(causal_mask(24, 24), (4, 4)), provenance=hostile_provenance())
    text = page(plan)
    benign = page(plan_of(causal_mask(24, 24), (4, 4)))

    assert text.count("<script") == benign.count("<script") == 2
    assert TEXT not in text
    assert TEXT in data_of(text)["patterns"][0]["madeBy"]


@pytest.mark.parametrize("name", UNFIT)
def test_a_grid_that_does_not_fit_is_left_out_and_said(name):
    grid, order = UNFIT[name]
    provenance = hostile_provenance(grid=grid, token_order=order)
    data = data_of(page(plan_of(causal_mask(24, 24), (4, 4), provenance=provenance)))

    assert data["patterns"][0]["order"] is None
    assert data["patterns"][0]["note"].startswith("no latent grid")


def test_the_page_asks_for_nothing():
    text = re.sub(r'id="data">.*?</script>', "", page(mp.causal(300, 300)))

    assert "default-src 'none'" in text
    for sign in ("http:", "https:", "src=", "href=", "url(", "fetch(", "import", "{{"):
        assert sign not in text, sign


def test_a_page_that_is_too_large_is_refused_and_an_old_one_kept(tmp_path):
    path = tmp_path / "plan.html"
    path.write_text("old")

    with pytest.raises(mp.PlanError) as caught:
        mp.causal(300, 300).explore(path, max_bytes=1000)
    assert str(caught.value).startswith("page is too large in explore(")
    assert "wanted at most 1000; take fewer heads or larger blocks" in str(caught.value)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.html"]


def test_the_path_comes_back(tmp_path):
    path = explore(mp.causal(300, 300), tmp_path / "plan.html")

    assert path == tmp_path / "plan.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_book_of_a_long_run_makes_a_small_page():
    """50 steps x 60 layers x 24 heads of HunyuanVideo's length, in six patterns."""
    assert len(page(long_book()).encode()) < 2**18


def long_book() -> mp.PlanBook:
    grid = mp.video.Grid(30, 48, 80)
    windows = [(5, 6, 10), (1, 6, 10), (5, 6, 1), (5, 1, 10), (3, 3, 5), (3, 6, 3)]
    choices = [mp.video.sliding_tile(grid, window=window) for window in windows]
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(1, 6, (50, 60, 24), generator=draw)
    index[:15] = 0
    return mp.PlanBook.from_choices(choices, index)
