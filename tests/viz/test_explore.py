"""The page in a real browser: pointer, wheel, sliders and keys, and what it then says and shows."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import maskplan as mp
from tests.handmade import causal_mask, plan_of
from tests.viz.browser import Browser, missing
from tests.viz.hostile import TEXT, UNFIT, hostile_provenance
from tests.viz.test_page import long_book

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

GRID = mp.video.Grid(3, 4, 6, text=5)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def video() -> mp.Plan:
    return mp.video.neighborhood(GRID, kernel=(1, 3, 3), block_size=(8, 8))


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(source) -> Browser:
        browser.open(source.explore(tmp_path / "page.html"))
        return browser

    yield open_page
    assert browser.log() == []  # no error, no warning, and nothing refused by the page's policy


def place_of(browser: Browser, row: int, col: int) -> tuple[float, float]:
    """Where a block's middle is, from the corner of the canvas."""
    return browser.run(
        "const m = explorer.matrix, l = explorer.lists;"
        "return [[m.x, l.colBlock, m.left], [m.y, l.rowBlock, m.top]].map(([from, block, edge], i) "
        "=> ((arguments[i] + 0.5) * block - from) * m.scale / m.ratio + edge / m.ratio)",
        col,
        row,
    )


def token_place(browser: Browser, token: int) -> tuple[float, float]:
    top, left = browser.run("return explorer.frames.corner(arguments[0])", token)
    half = browser.run("return explorer.frames.size") / 2
    return left + half, top + half


def lit(browser: Browser) -> list[float]:
    """Share of every raster token that is lit."""
    return browser.run("return Array.from(explorer.frames.lit)")


def test_hovering_names_the_block_its_tokens_and_their_place(opened, video):
    browser = opened(video)
    browser.move("matrix", *place_of(browser, 2, 9))

    assert browser.text("cell") == (
        "Q block 2: queries 16-23 (t 0, h 2-3, w 0-5) · KV block 9: keys 72-76 (5 text) · full"
    )
    browser.move("matrix", *place_of(browser, 0, 1))
    dense = video.to_dense()[0, 0]
    share = float(dense[:8, 8:16].double().mean())
    assert browser.text("cell").endswith(f"partial, {100 * share:.1f}% of its pairs")
    browser.move("matrix", *place_of(browser, 0, 5))
    assert browser.text("cell").endswith("· empty")


@pytest.mark.parametrize("row", [0, 4, 9])
def test_a_click_lights_exactly_the_keys_that_are_seen(opened, video, row):
    browser = opened(video)
    browser.move("matrix", *place_of(browser, row, 1), click=True)
    seen = video.to_dense()[0, 0][8 * row : 8 * row + 8].double().mean(dim=0)

    assert lit(browser) == pytest.approx(seen.tolist(), abs=1e-6)
    assert f"sees {int((seen > 0).sum())} of 77 keys" in browser.text("selection")
    assert browser.text("live") == browser.text("selection")


def test_tile_order_and_padding_are_lit_in_the_frames(opened):
    grid = mp.video.Grid(2, 3, 5, text=2, text_first=True)
    order = mp.video.TokenOrder.tiles(grid, (2, 2, 2), pad=True)
    plan = mp.video.sliding_tile(
        grid, tile=(2, 2, 2), window=(1, 2, 1), block_size=(4, 4), pad=True
    )
    browser = opened(plan)
    browser.move("matrix", *place_of(browser, 3, 0), click=True)
    seen = plan.to_dense()[0, 0][12:16].double().mean(dim=0)
    by_token = order.undo(seen, dim=0)

    assert lit(browser) == pytest.approx(by_token.tolist(), abs=1e-6)


def test_a_transposed_plan_lights_the_queries_that_see_a_key(opened):
    plan = mp.video.sliding_tile(
        GRID, tile=(1, 4, 6), window=(2, 1, 1), block_size=(8, 8), queries="video"
    ).transpose()
    browser = opened(plan)
    browser.move("matrix", *place_of(browser, 1, 1), click=True)
    seen = plan.to_dense()[0, 0][8:16].double().mean(dim=0)

    assert lit(browser)[: GRID.video_tokens] == pytest.approx(seen.tolist(), abs=1e-6)
    assert "KV block 1: keys 8-15 (t 0, h 1-2, w 0-5) is seen by" in browser.text("selection")


@pytest.mark.parametrize("transposed", [False, True])
def test_text_that_comes_first_and_is_no_query_is_counted(opened, transposed):
    grid = mp.video.Grid(3, 2, 4, text=5, text_first=True)
    plan = mp.video.neighborhood(grid, kernel=(1, 1, 3), block_size=(4, 4), queries="video")
    if transposed:
        plan = plan.transpose()
    browser = opened(plan)
    browser.move("matrix", *place_of(browser, 2, 2), click=True)
    seen = plan.to_dense()[0, 0][8:12].double().mean(dim=0).tolist()

    if transposed:  # keys 8 to 11 are video tokens 3 to 6; queries are the video's alone
        assert lit(browser)[5:] == pytest.approx(seen, abs=1e-6)
        names = (
            "KV block 2: keys 8-11 (t 0, h 0-1, w 0-3) · Q block 2: queries 8-11 (t 1, h 0, w 0-3)"
        )
    else:
        assert lit(browser) == pytest.approx(seen, abs=1e-6)
        names = (
            "Q block 2: queries 8-11 (t 1, h 0, w 0-3) · KV block 2: keys 8-11 (t 0, h 0-1, w 0-3)"
        )
    assert browser.text("cell").startswith(names)
    own = browser.run(
        "return [...explorer.frames.own.keys()].filter((i) => explorer.frames.own[i])"
    )
    assert own == ([8, 9, 10, 11] if transposed else [13, 14, 15, 16])
    browser.move("frames", *token_place(browser, 5 + 8 + 6), click=True)
    assert browser.text("selection").startswith(f"{'KV' if transposed else 'Q'} block ")
    assert browser.text("token").startswith("(t 1, h 1, w 2)")


def test_shares_of_a_ragged_block_count_the_rows_it_has(opened):
    browser = opened(plan_of(causal_mask(11, 11), (4, 4)))
    browser.move("matrix", *place_of(browser, 2, 0), click=True)

    assert lit(browser)[:11] == pytest.approx([1.0] * 9 + [2 / 3, 1 / 3], abs=1e-6)


def test_frames_and_their_captions_do_not_overlap(opened):
    grid = mp.video.Grid(40, 5, 7, text=300)
    browser = opened(
        mp.video.sliding_tile(grid, tile=(4, 5, 7), window=(1, 1, 1), block_size=(64, 64))
    )
    corners = browser.run(
        "const f = explorer.frames, p = f.places;"
        "return [...Array(40).keys()].map((t) => f.corner(p.videoStart + t * p.frame))"
    )
    size = browser.run("return explorer.frames.size")
    canvas = browser.run("const c = explorer.frames.canvas; return [c.clientHeight, c.clientWidth]")
    rows = sorted({top for top, _ in corners})

    assert len({tuple(corner) for corner in corners}) == 40
    assert rows[0] >= 14  # room for a caption
    assert all(b - a >= 5 * size + 14 for a, b in pairwise(rows))
    assert all(top + 5 * size <= canvas[0] for top, _ in corners)
    assert all(left + 7 * size <= canvas[1] for _, left in corners)
    last = browser.run("return explorer.frames.corner(explorer.frames.places.textStart + 299)")
    assert rows[-1] + 5 * size < last[0] < canvas[0]


def test_the_frames_show_the_colours_of_what_is_seen(opened, video):
    browser = opened(video)
    browser.move("matrix", *place_of(browser, 0, 0), click=True)

    text, own, other, some = browser.run(
        "const c = document.getElementById('frames'), r = devicePixelRatio;"
        "const all = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
        "return arguments[0].map(([x, y]) => {"
        "  const at = 4 * (Math.floor(y * r) * c.width + Math.floor(x * r));"
        "  return Array.from(all.data.slice(at, at + 3)); })",
        [token_place(browser, token) for token in (GRID.video_tokens, 0, 60, 13)],
    )

    assert text == [0, 84, 147]  # seen by all
    assert own == [179, 0, 110]
    assert other == [226, 226, 224]  # another frame
    assert some not in ([226, 226, 224], [0, 84, 147])


def test_a_click_in_a_frame_lights_its_block(opened, video):
    browser = opened(video)
    token = (1 * 4 + 2) * 6 + 3
    browser.move("frames", *token_place(browser, token))
    assert browser.text("token").startswith("(t 1, h 2, w 3), key 39")
    browser.move("frames", *token_place(browser, token), click=True)

    assert browser.text("selection").startswith("Q block 4: queries 32-39")


def test_sliders_choose_step_layer_and_head(opened):
    grid = mp.video.Grid(2, 4, 4)
    windows = ((1, 1, 1), (1, 2, 2))
    choices = [
        mp.video.sliding_tile(grid, tile=(2, 2, 2), window=window, block_size=(8, 8))
        for window in windows
    ]
    index = torch.zeros(4, 3, 5, dtype=torch.int64)
    index[2, 1, 3] = 1
    ranges = (range(10, 14), range(3), range(5))
    browser = opened(mp.PlanBook.from_choices(choices, index, ranges=ranges))
    assert browser.text("pattern").startswith("pattern 0 of 2, 25.00% of the pairs kept")
    for axis, times in (("step", 2), ("layer", 1), ("head", 3)):
        browser.run("document.getElementById(arguments[0]).focus()", axis)
        browser.press(*["Right"] * times)

    assert browser.text("pattern").startswith("pattern 1 of 2, 100.00% of the pairs kept")
    assert "window=[1, 2, 2]" in browser.text("pattern")
    assert browser.text("live") == browser.text("pattern")
    shown = "return [...document.querySelectorAll('#axes output')].map((o) => o.value)"
    assert browser.run(shown) == ["12", "1", "3"]
    assert set(lit(browser)) == {1.0}


def test_the_wheel_zooms_at_the_pointer_and_a_drag_pans(opened, video):
    browser = opened(video)
    x, y = place_of(browser, 5, 5)
    browser.wheel("matrix", x, y, -500)
    browser.move("matrix", x, y)
    assert browser.text("cell").startswith("Q block 5: ")
    assert "KV block 5: " in browser.text("cell")
    browser.move("matrix", 200, 200)
    before = browser.text("cell")
    browser.drag("matrix", (200, 200), (320, 260))
    browser.move("matrix", 320, 260)
    assert browser.text("cell") == before
    browser.run("document.getElementById('zoom-all').click()")
    assert browser.run("return [explorer.matrix.x, explorer.matrix.y]") == [0, 0]


def test_everything_works_by_keyboard(opened, video):
    browser = opened(video)
    browser.run("document.getElementById('matrix').focus()")
    browser.run("explorer.matrix.cursor = [0, 0]")
    browser.press("Down", "Down", "Right")
    assert browser.text("live").startswith("Q block 2: queries 16-23")
    assert "KV block 1: " in browser.text("live")
    browser.press("Enter")
    assert browser.text("live").startswith("Q block 2: queries 16-23 (t 0, h 2-3, w 0-5) sees")
    browser.press("+", "+")
    assert browser.run("return explorer.matrix.scale > 2 * explorer.matrix.fit")
    browser.press("0")
    assert browser.run("return explorer.matrix.scale === explorer.matrix.fit")
    browser.press("Tab")
    assert browser.run("return document.activeElement.id") in {"frame-box", "frames"}
    browser.run("document.getElementById('frames').focus()")
    browser.press("PageDown", "Down", "Right")
    assert browser.text("live").startswith("(t 1, h 1, w 1), key 31")
    browser.press("Enter")
    assert browser.text("selection").startswith("Q block 3: ")


def test_a_screen_reader_finds_names_for_everything(opened, video):
    browser = opened(replace(video.with_heads(3), provenance=video.provenance))
    nameless = browser.run(
        "return [...document.querySelectorAll('canvas, button, input')].filter((e) => "
        "!(e.getAttribute('aria-label') || e.textContent || e.labels?.[0]?.textContent))"
        ".map((e) => e.id)"
    )
    live = browser.run("return document.getElementById('live').getAttribute('aria-live')")

    assert nameless == []
    assert live == "polite"
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return document.querySelectorAll('h1').length") == 1


def test_text_of_files_does_nothing(opened):
    plan = replace(plan_of(causal_mask(24, 24), (4, 4)), provenance=hostile_provenance())
    browser = opened(plan)

    assert TEXT in browser.text("pattern")
    assert browser.run("return document.title") == "Plan: 24 x 24 tokens in blocks of 4 x 4"
    assert browser.run("return document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("name", ["another length", "text for a number", "slots beyond 64 bits"])
def test_a_grid_that_does_not_fit_is_said(opened, name):
    grid, order = UNFIT[name]
    provenance = hostile_provenance(grid=grid, token_order=order)
    browser = opened(plan_of(causal_mask(24, 24), (4, 4), provenance=provenance))

    assert "no latent grid" in browser.text("pattern")
    assert browser.text("frames-title") == "Keys in their order"
    browser.move("matrix", *place_of(browser, 2, 0), click=True)
    assert sum(share > 0 for share in lit(browser)) == 12


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0), (0, 0)])
def test_a_plan_without_blocks_opens(opened, lengths):
    browser = opened(plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2)))

    assert browser.text("selection") == "There are no blocks."


def test_the_book_of_a_long_run_opens_in_two_seconds_and_asks_for_nothing(browser, tmp_path):
    path = long_book().explore(tmp_path / "book.html")
    browser.requests()
    times = [browser.open(path) for _ in range(3)]
    asked = {url for url in browser.requests() if not url.startswith("chrome:")}

    assert min(times) < 2000
    assert asked == {path.as_uri()}
