"""Where tokens lie, from provenance that fits and provenance that does not."""

import pytest

import maskplan as mp
from maskplan.viz.places import places_of
from tests.viz.hostile import UNFIT

GEOMETRY = mp.Geometry(seqlen_q=24, seqlen_k=24, block_size=(4, 4))


def test_places_follow_the_token_order():
    grid = mp.video.Grid(2, 3, 5, text=2, text_first=True)
    order = mp.video.TokenOrder.tiles(grid, (2, 2, 2), pad=True)
    plan = mp.video.sliding_tile(
        grid, tile=(2, 2, 2), window=(1, 1, 1), block_size=(8, 8), pad=True
    )
    places, note = places_of(plan.provenance, plan.geometry)

    assert note == ""
    assert places.slots.tolist() == order.slots.tolist()
    assert not places.in_frames
    assert places.name(0) == "text 0"
    assert places.name(2) == "(0, 0, 0)"
    assert places.name(3) == "(0, 0, 1)"
    assert places.name(int(order.inverse[2 + 15 + 7])) == "(1, 1, 2)"
    assert "pad" in {places.name(slot) for slot in range(order.seqlen)}


def test_queries_without_text_start_after_it():
    grid = mp.video.Grid(2, 3, 4, text=5, text_first=True)
    plan = mp.video.sliding_tile(
        grid, tile=(1, 3, 4), window=(1, 1, 1), block_size=(4, 4), queries="video"
    )
    places, _ = places_of(plan.provenance, plan.geometry)

    assert (plan.seqlen_q, plan.seqlen_k) == (24, 29)
    assert places.query_start == 5
    assert places.name(places.query_start) == "(0, 0, 0)"
    assert places.in_frames


def test_no_grid_is_no_fault():
    assert places_of(None, GEOMETRY) == (None, "")
    assert places_of(mp.Provenance(builder="causal"), GEOMETRY) == (None, "")


@pytest.mark.parametrize("name", UNFIT)
def test_provenance_that_does_not_fit_is_said_and_not_used(name):
    grid, order = UNFIT[name]
    provenance = mp.Provenance(builder="file", grid=grid, token_order=order)
    places, note = places_of(provenance, GEOMETRY)

    assert places is None
    assert note.startswith("no latent grid: provenance ")
