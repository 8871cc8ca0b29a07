"""matplotlib's pictures: what they say and where, by properties rather than by pixels."""

import subprocess
import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.viz import compare, density_map, gallery, plot
from maskplan.viz.palette import BOTH, DROPPED, EMPTY, FULL, MASK, ONLY_A, ONLY_B, PADDING
from tests.handmade import causal_mask, plan_of, transposed_of
from tests.viz.hostile import UNFIT, hostile_provenance

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def pixel(axes, row: float, col: float) -> tuple[int, ...]:
    """Colour at a token."""
    image = axes.images[0]
    left, right, bottom, top = image.get_extent()
    array = np.asarray(image.get_array())
    y = int((row - top) / (bottom - top) * array.shape[0])
    x = int((col - left) / (right - left) * array.shape[1])
    return tuple(array[y, x])


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_every_kind_has_its_colour_and_a_name():
    axes = plan_of(causal_mask(6, 6), (4, 4)).plot()
    axes.figure.canvas.draw()

    assert pixel(axes, 5.5, 0.5) == FULL
    assert pixel(axes, 3.5, 0.5) == MASK
    assert pixel(axes, 0.5, 3.5) == DROPPED
    assert pixel(axes, 0.5, 5.5) == EMPTY
    assert pixel(axes, 7.5, 0.5) == pixel(axes, 0.5, 7.5) == PADDING
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["full", "partial", "empty", "padding", "not kept in a partial block"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query (token)", "key (token)")
    assert axes.get_title().splitlines() == [
        "6 x 6 tokens in blocks of 4 x 4",
        "head 0 of 1: 58.33% of the pairs kept",
    ]


def test_a_transposed_plan_has_keys_down():
    axes = transposed_of(causal_mask(4, 8), (2, 2)).plot()

    assert (axes.get_ylabel(), axes.get_xlabel()) == ("key (token)", "query (token)")
    assert axes.get_ylim() == (8, 0)
    assert axes.get_xlim() == (0, 4)


def test_a_window_is_drawn_pair_by_pair():
    dense = causal_mask(64, 64)
    axes = plan_of(dense, (16, 16)).plot(q=(10, 30), k=(5, 35))

    assert axes.get_xlim() == (5, 35)
    assert axes.get_ylim() == (30, 10)
    for row in range(10, 30):
        for col in range(5, 35):
            kept = pixel(axes, row + 0.5, col + 0.5) in {FULL, MASK}
            assert kept == bool(dense[0, row, col]), (row, col)


def test_a_head_is_drawn_by_its_pattern():
    masks = torch.stack([torch.zeros(4, 4), torch.ones(4, 4)]).bool()
    plan = plan_of(masks, (2, 2), [[0, 1], [1, 1]])

    assert pixel(plan.plot(head=0), 1, 1) == EMPTY
    assert pixel(plan.plot(head=1), 1, 1) == FULL
    assert "batch 1, head 0 of 2: 100.00%" in plan.plot(batch=1).get_title()


def test_frames_and_text_are_on_the_far_sides():
    grid = mp.video.Grid(3, 4, 5, text=7)
    plan = mp.video.neighborhood(grid, kernel=(1, 3, 3), block_size=(8, 8))
    axes = plan.plot()
    axes.figure.canvas.draw()
    right, top = axes.child_axes

    assert labels(right.yaxis) == labels(top.xaxis) == ["0", "1", "2", "text"]
    assert right.get_yticks().tolist() == [0, 20, 40, 60]
    assert right.get_ylabel() == "latent frame"


def test_positions_are_on_the_far_sides_where_frames_are_no_stretch():
    plan = mp.video.sliding_tile(
        mp.video.Grid(4, 4, 4), tile=(2, 2, 2), window=(1, 1, 1), block_size=(8, 8)
    )
    axes = plan.plot()
    axes.figure.canvas.draw()

    assert labels(axes.child_axes[0].yaxis)[:2] == ["(0, 0, 0)", "(1, 2, 0)"]  # slots 0 and 20
    assert axes.child_axes[0].get_ylabel() == "latent (t, h, w)"


def test_axes_of_the_caller_are_drawn_into():
    import matplotlib.pyplot as plt

    _, axes = plt.subplots()

    assert plan_of(causal_mask(4, 4), (2, 2)).plot(ax=axes) is axes
    assert axes.get_legend() is not None


@pytest.mark.parametrize("name", UNFIT)
def test_a_grid_that_does_not_fit_is_said_in_the_title(name, tmp_path):
    grid, order = UNFIT[name]
    plan = replace(
        plan_of(causal_mask(24, 24), (4, 4)),
        provenance=hostile_provenance(grid=grid, token_order=order),
    )
    axes = plan.plot()
    axes.figure.savefig(tmp_path / "plan.png")

    assert "no latent grid" in axes.get_title()
    assert not axes.child_axes


@pytest.mark.parametrize("lengths", [(0, 4), (4, 0), (0, 0)])
def test_a_plan_without_blocks_is_drawn(lengths, tmp_path):
    axes = plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2)).plot()
    axes.figure.savefig(tmp_path / "plan.png")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"head": 1}, "head: got 1, wanted 0 <= head <= 0"),
        ({"batch": -1}, "batch: got -1"),
        ({"q": (3, 3)}, r"range is empty in q: got \(3, 3\), wanted first < stop; pass q=\(0, 4\)"),
        ({"k": (0, 5)}, r"k\[1\]: got 5, wanted 0 <= k\[1\] <= 4"),
        ({"k": 3}, "range is not a pair in k: got 3, wanted"),
    ],
)
def test_arguments_are_checked(arguments, text):
    with pytest.raises(mp.MaskplanError, match=text):
        plan_of(causal_mask(4, 4), (2, 2)).plot(**arguments)


def test_without_matplotlib_the_extra_is_named(tmp_path):
    work = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'matplotlib':
            raise ImportError('matplotlib is blocked')
sys.meta_path.insert(0, Block())
import maskplan as mp
plan = mp.causal(300, 300)
assert plan._repr_html_()
plan.explore(sys.argv[1])
book = mp.PlanBook.from_layers({(0, 0): plan})
assert book._repr_html_()
from maskplan.viz import compare, gallery
for draw in (plan.plot, book.plot, lambda: gallery(plan), lambda: compare(plan, plan)):
    try:
        draw()
    except mp.UnsupportedError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", work, tmp_path / "plan.html"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    wanted = (
        "pictures need matplotlib in the plot: got no matplotlib (matplotlib is blocked), wanted "
        "the extra 'viz'; pip install 'maskplan[viz]', or use print(plan) or plan.explore(path)."
    )
    assert done.stdout.splitlines() == [wanted] * 4


# The gallery, the density map and the difference


def test_the_gallery_shows_every_head_with_its_figures():
    masks = torch.stack([torch.zeros(4, 4), torch.ones(4, 4)]).bool()
    plan = plan_of(masks, (2, 2), [[0, 1, 1]])
    quality = mp.PlanQuality(
        recall=torch.tensor([[0.0, 1.0, 0.5]]), output_error=torch.zeros(1, 3), queries=4
    )
    figure = gallery(plan, quality=quality, columns=2)
    titles = [axes.get_title() for axes in figure.axes if axes.images]

    assert titles[0] == "head 0: 0.0%\nrecall 0.000\nerror 0.000"
    assert titles[2] == "head 2: 100.0%\nrecall 0.500\nerror 0.000"
    assert len(titles) == 3


def test_the_gallery_says_what_it_leaves_out():
    figure = gallery(mp.causal(64, 64).with_heads(9), limit=4)

    assert figure.get_suptitle().endswith("4 of 9 heads")


def test_the_gallery_refuses_quality_of_other_heads():
    quality = mp.PlanQuality(recall=torch.zeros(1, 2), output_error=torch.zeros(1, 2), queries=4)
    with pytest.raises(mp.PlanError, match=r"another plan in quality: .* plan\.with_heads"):
        gallery(mp.causal(64, 64), quality=quality)


def test_the_density_map_has_steps_across_and_layers_down():
    dense, causal = mp.full(64, 64), mp.causal(64, 64)
    plans = {(s, a): dense if s < 12 else causal for s in range(10, 14) for a in range(2, 5)}
    book = mp.PlanBook.from_layers(plans)
    axes = book.plot()
    values = np.asarray(axes.images[0].get_array())

    assert values.shape == (3, 4)
    assert np.allclose(values[:, :2], 1)
    assert np.allclose(values[:, 2:], causal.density)
    assert axes.images[0].get_extent() == [9.5, 13.5, 4.5, 1.5]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "layer")
    assert density_map(book).get_title().endswith(f"{book.density:.2%} of the pairs of the run")


def test_the_difference_colours_both_and_each():
    left, right = torch.zeros(1, 6, 6).bool(), torch.zeros(1, 6, 6).bool()
    left[0, :4, :2] = True
    right[0, 2:, :2] = True
    axes = compare(plan_of(left, (2, 2)), plan_of(right, (2, 2)), names=("old", "$new"))
    axes.figure.canvas.draw()

    assert pixel(axes, 1, 1) == ONLY_A
    assert pixel(axes, 3, 1) == BOTH
    assert pixel(axes, 5, 1) == ONLY_B
    assert pixel(axes, 1, 5) == EMPTY
    assert "of 12 pairs kept by either: both 33.3%, only old 33.3%" in axes.get_title()


def test_a_difference_of_one_pair_is_seen():
    mask = torch.ones(1, 64, 64).bool()
    other = mask.clone()
    other[0, 40, 8] = False
    axes = compare(plan_of(mask, (16, 16)), plan_of(other, (16, 16)))
    colours = {tuple(line) for line in np.asarray(axes.images[0].get_array()).reshape(-1, 3)}

    assert ONLY_A in colours


def test_equal_empty_plans_have_no_difference():
    nothing = plan_of(torch.zeros(1, 4, 4).bool(), (2, 2))

    assert "both 0, only a 0, only b 0" in compare(nothing, nothing).get_title()


def test_plans_of_other_lengths_have_no_difference():
    with pytest.raises(mp.PlanError, match="lengths"):
        compare(mp.causal(64, 64), mp.causal(65, 65))
    with pytest.raises(mp.PlanTypeError, match="argument is not a Plan in b: got TransposedPlan"):
        compare(mp.causal(64, 64), mp.causal(64, 64).transpose())


def test_plot_is_the_method():
    assert plot(mp.causal(64, 64)).get_title() == mp.causal(64, 64).plot().get_title()
