"""What plans refuse to be made into, and in which words; and the sources of results."""

import operator
from dataclasses import replace

import pytest
import torch

import maskplan as mp
from tests.oracle import plan_of_dense


def lower_triangle(n: int, block_size: tuple[int, int] = (4, 4), heads: int = 1) -> mp.Plan:
    ids = torch.zeros(1, heads, dtype=torch.int32)
    return plan_of_dense(torch.ones(1, n, n).tril().bool(), ids, block_size).canonical()


@pytest.mark.parametrize(
    ("act", "parts"),
    [
        (lambda p: p & lower_triangle(9), ["lengths", "(8, 8)", "(9, 9)", "crop"]),
        (lambda p: p | lower_triangle(8, (4, 2)), ["block sizes", "(4, 4)", "(4, 2)", "reblock"]),
        (lambda p: p.with_heads(2) - p.with_heads(3), ["heads", "2 and 3", "with_heads"]),
        (lambda p: p.with_heads(3).with_heads(8), ["heads=8", "multiple of the plan's 3"]),
        (lambda p: p.crop(q=(3, 9)), ["crop(q=...)", "[3, 9)", "<= 8"]),
        (lambda p: p.crop(k=(5, 4)), ["crop(k=...)", "[5, 4)"]),
        (lambda p: p.crop(k=(-1, 4)), ["crop(k=...)", "[-1, 4)"]),
        (lambda p: p.shard("rows", 0, 2), ["'rows'", '"q" or "heads"']),
        (lambda p: p.shard("q", 2, 2), ["index", "got 2", "<= 1"]),
        (lambda p: p.with_heads(4).shard("heads", 0, 3), ["4 heads in 3 shares"]),
        (lambda p: p.reblock((0, 4)), ["block_size[0]", "got 0"]),
        (lambda p: p.reblock((2**15, 2**15)), ["block too large", "1073741824 pairs", "smaller"]),
    ],
)
def test_bad_values_are_named(act, parts):
    with pytest.raises(mp.PlanError) as caught:
        act(lower_triangle(8))

    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("act", "parts"),
    [
        (lambda p: p & p.transpose(), ["TransposedPlan", "transpose"]),
        (lambda p: p.reblock(128), ["block_size", "128", "(128, 128)"]),
        (lambda p: p.reblock((4.0, 4)), ["block_size[0]", "4.0"]),
        (
            lambda p: p.reblock((4, 4), superset="no"),
            ["superset", "'no' of type str", "True or False"],
        ),
        (lambda p: p.with_heads(True), ["heads", "True"]),
    ],
)
def test_wrong_types_are_named(act, parts):
    with pytest.raises(mp.PlanTypeError) as caught:
        act(lower_triangle(8))

    for part in parts:
        assert part in str(caught.value)


def test_plans_of_two_directions_are_never_equal():
    plan = lower_triangle(8)

    assert plan != plan.transpose()
    assert plan.digest != plan.transpose().digest


def test_reblock_reports_its_amplification():
    """Density d, groups of s rows without overlap: s rows visit s times what each wants."""
    eye = plan_of_dense(torch.eye(8).bool()[None], torch.zeros(1, 1, dtype=torch.int32), (1, 1))
    coarse = eye.reblock((4, 4))

    assert coarse.provenance.builder == "reblock"
    assert coarse.provenance.parameters["amplification"] == 4.0
    whole = eye.reblock((4, 4), superset=True)
    assert whole.provenance.parameters["amplification"] == 4.0
    assert mp.amplification(whole) == 1.0, "a superset wants all it visits"


def test_removing_a_redundant_operand_changes_nothing():
    """modded-nanogpt 157: causal & document & (causal | document) is causal & document."""
    n = 24
    document = torch.arange(n) // 7
    ids = torch.zeros(1, 1, dtype=torch.int32)
    same = (document[:, None] == document[None, :])[None]
    docs, causal = plan_of_dense(same, ids, (4, 4)).canonical(), lower_triangle(n)

    assert causal & docs & (causal | docs) == causal & docs
    assert causal - (causal - docs) == causal & docs


def test_a_causal_mask_minus_a_rectangle_is_composed_from_ranges():
    """attention-gym 54: 24,000 tokens, causal but for one rectangle, from lists alone."""
    n, (q0, q1), (k0, k1) = 24_000, (10_000, 15_000), (2_000, 7_500)
    causal = mp.causal(n, n)
    plan = causal - mp.from_ranges([[q0, q1]], [[k0, k1]], ["full"], n, n)
    kept = n * (n + 1) // 2 - (q1 - q0) * (k1 - k0)

    assert plan.stats().pairs == kept
    corner = plan.crop(q=(q0 - 3, q0 + 3), k=(k0 - 2, k0 + 2)).to_dense()[0, 0]
    want = torch.ones(6, 4, dtype=torch.bool)
    want[3:, 2:] = False
    assert torch.equal(corner, want)


def test_a_grid_stays_only_with_its_token_order():
    """One grid in two orders: a result that kept the grid alone would be read as raster."""
    grid = mp.video.Grid(2, 8, 8)
    tiles = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(1, 1, 1), block_size=(32, 32))
    raster = mp.video.neighborhood(grid, kernel=(1, 3, 3), block_size=(32, 32))

    assert (tiles & tiles).provenance.token_order == tiles.provenance.token_order
    assert (raster | raster).provenance.grid == raster.provenance.grid
    unknown = mp.causal(128, 128, block_size=(32, 32))
    mixed = (tiles | unknown).provenance
    assert (mixed.grid, mixed.token_order) == (None, None)
    book = mp.PlanBook.from_plans({(0, 0, 0): tiles, (0, 0, 1): raster})
    layer = book.plan(0, 0).provenance
    assert (layer.grid, layer.token_order) == (None, None)


@pytest.mark.parametrize("operation", [operator.and_, operator.or_, operator.sub])
def test_plans_of_different_token_orders_do_not_combine(operation):
    """Query 5 of one is another token than query 5 of the other: the result would mean nothing."""
    grid = mp.video.Grid(2, 8, 8)
    tiles = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(1, 1, 1), block_size=(32, 32))
    raster = mp.video.neighborhood(grid, kernel=(1, 3, 3), block_size=(32, 32))
    turned = mp.video.neighborhood(mp.video.Grid(2, 4, 16), kernel=(1, 3, 3), block_size=(32, 32))
    wanted = (
        r"tokens lie in different orders in plan . plan: got tiles \(2, 4, 4\) of .* and tiles "
        r"\(1, 8, 8\) of .*, wanted the same grid and token order on both sides; plan both in one "
        r"order; replace\(plan, provenance=None\) drops a wrong claim\."
    )
    with pytest.raises(mp.PlanError, match=wanted):
        operation(tiles, raster)
    with pytest.raises(mp.PlanError, match="tokens lie in different orders"):
        operation(raster, turned)
    assert operation(replace(tiles, provenance=None), raster).heads == 1
    # A tile of 16 x 16 is a whole frame of 8 x 8: raster order by another name.
    named = {"tile": [1, 16, 16], "multiple": 1}
    renamed = replace(raster, provenance=replace(raster.provenance, token_order=named))
    assert operation(raster, renamed).heads == 1
    hostile = replace(raster, provenance=replace(raster.provenance, token_order={"tile": "x"}))
    assert operation(tiles, hostile).heads == 1
    huge = mp.video.Grid(2, 2**14, 2**15).to_json()
    claimed = replace(raster, provenance=replace(raster.provenance, grid=huge))
    assert operation(tiles, claimed).heads == 1


@pytest.mark.parametrize("bounds", [5, (1, 2, 3), (0, 3.0), "12"])
def test_a_range_that_is_no_pair_of_integers_is_named(bounds):
    with pytest.raises(mp.PlanTypeError, match=r"crop\(q=\.\.\.\)"):
        lower_triangle(8).crop(q=bounds)
