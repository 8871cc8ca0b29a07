"""What a notebook shows: plain HTML with pictures, whatever text a file brings."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import maskplan as mp
from maskplan.viz.palette import FULL, MASK
from maskplan.viz.png import encoded
from tests.handmade import causal_mask, plan_of, transposed_of
from tests.viz.hostile import TEXT, UNFIT, hostile_provenance

VOID = {"img", "br"}
ATTRIBUTES = {"src", "width", "height", "alt", "align", "valign", "scope", "role"}


class Reader(HTMLParser):
    """Tags, attributes and text of a card; complains where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def pictures(html: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found
    ]


def test_a_card_has_a_picture_a_legend_and_figures():
    plan = plan_of(causal_mask(6, 6), (2, 2), [[0, 0, 0]])
    html = plan._repr_html_()
    reader = read(html)
    picture = pictures(html)[0]

    assert tuple(picture[-1, 0]) == FULL
    assert tuple(picture[0, 0]) == MASK
    assert "Plan: 6 x 6 tokens in blocks of 2 x 2" in reader.text
    for words in ("full", "partial", "empty", "padding", "density (tokens)58.33%", "heads 0-2"):
        assert words in reader.text, words
    assert "1, 3 (1 distinct)" in reader.text


def test_a_card_needs_no_script_style_or_network():
    """GitHub and nbviewer drop what is not on this list."""
    reader = read(mp.causal(1000, 1000).with_heads(3)._repr_html_())

    assert set(reader.tags) <= {"div", "b", "table", "tr", "td", "th", "img", "br", "small", "p"}
    assert {name for name, _ in reader.attributes} <= ATTRIBUTES
    for name, value in reader.attributes:
        assert name != "src" or value.startswith("data:image/png;base64,")


def test_every_picture_has_words_for_who_sees_none():
    reader = read(mp.causal(1000, 1000)._repr_html_())
    described = [value for name, value in reader.attributes if name == "alt" and value]

    assert described == ["Mask of head 0: 50.0% of the pairs kept"]


def test_more_patterns_than_are_drawn_are_counted():
    masks = torch.stack([torch.eye(8).bool().roll(n, 0) for n in range(6)])
    html = plan_of(masks, (2, 2), [list(range(6))])._repr_html_()

    assert "2 more distinct patterns" in read(html).text
    assert len(pictures(html)) == 4 + 4  # and the legend


def test_a_transposed_plan_says_what_is_down():
    assert "keys down, queries across" in transposed_of(causal_mask(4, 6), (2, 2))._repr_html_()


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0), (0, 0)])
def test_a_plan_without_blocks_has_a_card(lengths):
    read(plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2))._repr_html_())


def test_long_and_narrow_plans_have_a_picture_to_see():
    height, width, _ = pictures(mp.full(10, 100_000)._repr_html_())[0].shape

    assert min(height, width) >= 40


def test_the_card_of_a_book_maps_its_density():
    dense, causal = mp.full(64, 64), mp.causal(64, 64)
    plans = {(s, a): dense if s < 1 else causal for s in range(3) for a in range(2)}
    book = mp.PlanBook.from_layers(plans)
    html = book._repr_html_()
    picture = pictures(html)[0]
    height, width, _ = picture.shape

    assert width * 2 == height * 3  # steps across
    assert picture[0, 0].sum() < picture[0, -1].sum()  # dense is darker
    assert "3 (0 to 2)" in read(html).text
    assert f"{book.density:.2%}" in read(html).text


def test_text_of_files_is_text():
    plan = replace(plan_of(causal_mask(24, 24), (4, 4)), provenance=hostile_provenance())
    book = replace(mp.PlanBook.from_layers({(0, 0): plan}), provenance=hostile_provenance())

    for value in (plan, plan.transpose(), book):
        reader = read(value._repr_html_())
        assert "script" not in reader.tags
        assert TEXT in reader.text


@pytest.mark.parametrize("name", UNFIT)
def test_a_grid_that_does_not_fit_is_said(name):
    grid, order = UNFIT[name]
    provenance = hostile_provenance(grid=grid, token_order=order)
    reader = read(plan_of(causal_mask(24, 24), (4, 4), provenance=provenance)._repr_html_())

    assert "noteno latent grid" in reader.text
    assert "script" not in reader.tags


def test_png_files_hold_their_pixels():
    many = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)

    for image in (many, many // 128, many[:1, :1]):
        shown = Image.open(io.BytesIO(encoded(image))).convert("RGB")
        assert np.array_equal(np.asarray(shown), image)


def test_a_picture_of_scattered_blocks_is_small():
    mask = torch.rand(1, 500, 500, generator=torch.Generator().manual_seed(0)) < 0.15

    assert len(plan_of(mask, (1, 1))._repr_html_()) < 40_000
