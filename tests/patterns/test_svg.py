"""Sparse VideoGen's heads against the mask functions of published code, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, TokenOrder, svg, svg_frames
from tests.oracle import assert_plan
from tests.patterns.on_grids import grids
from tests.strategies import block_sizes


def tokens_keep(grid, model, tokens, multiple, prompt, sink, q, k) -> bool:
    """Slots q and k, as the mask function of each model has it."""
    start = grid.text if grid.text_first else 0
    video = range(start, start + grid.t * grid.h * grid.w)
    first_text = 0 if grid.text_first else len(video)
    real_text = range(first_text, first_text + prompt)
    unused = range(first_text + prompt, first_text + grid.text)
    if q in unused or k in unused:
        return q in unused and k in unused
    if q in real_text or k in real_text:
        return True
    if sink and k < start + grid.h * grid.w:
        return True
    if model == "wan":
        return abs(q - k) <= -(-tokens // multiple) * multiple
    return abs(q - k) < tokens // multiple * multiple


@st.composite
def heads(draw):
    grid = draw(grids())
    model = draw(st.sampled_from(["wan", "hunyuan", "cogvideox"]))
    multiple = draw(st.integers(1, 8))
    least = 0 if model == "wan" else multiple
    tokens = draw(st.integers(least, max(least, grid.seqlen + 5)))
    prompt = draw(st.integers(0, grid.text))
    return grid, model, tokens, multiple, prompt, draw(st.sampled_from([None, True, False]))


@settings(max_examples=60)
@given(
    heads(),
    st.sampled_from(["spatial", "temporal"]),
    st.sampled_from(["all", "video"]),
    block_sizes(),
)
def test_svg_is_its_definition(case, head, queries, block_size):
    grid, model, tokens, multiple, prompt, sink = case
    plan = svg(
        grid,
        head=head,
        model=model,
        frames=(tokens + 1e-6) / (grid.h * grid.w)
        if model != "wan"
        else tokens / (grid.h * grid.w),
        multiple=multiple,
        prompt=prompt,
        first_frame=sink,
        block_size=block_size,
        queries=queries,
    )
    reach = plan.provenance.parameters["band"]
    wanted = (
        -(-tokens // multiple) * multiple if model == "wan" else tokens // multiple * multiple - 1
    )
    assert reach in (wanted, wanted + multiple), "frames are a float"
    tokens = reach if model == "wan" else reach + 1
    sink = model == "wan" if sink is None else sink
    start = grid.text if grid.text_first and queries == "video" else 0
    stop = start + grid.t * grid.h * grid.w if queries == "video" else grid.seqlen
    rows = [
        [tokens_keep(grid, model, tokens, multiple, prompt, sink, q, k) for k in range(grid.seqlen)]
        for q in range(start, stop)
    ]
    assert_plan(plan, torch.tensor(rows)[None, None])


@settings(max_examples=30)
@given(grids())
def test_temporal_heads_lie_place_by_place(grid):
    """Token of frame t at place p has slot p * T + t; text stays."""
    order = TokenOrder.token_major(grid)
    start, size = (grid.text if grid.text_first else 0), grid.h * grid.w
    for frame in range(grid.t):
        for place in range(size):
            token = start + frame * size + place
            assert int(order.inverse[token]) == start + place * grid.t + frame
    text = range(grid.text) if grid.text_first else range(grid.t * size, grid.seqlen)
    assert [int(order.inverse[token]) for token in text] == list(text)
    plan = svg(grid, head="temporal", model="wan", frames=1.0, block_size=(16, 16))
    assert TokenOrder.from_provenance(plan.provenance) == order


def test_golden_width_of_hunyuan():
    """Density 0.25, 256 text tokens, 33 frames of 3600: 15,655.3 tokens, 4.3487 frames."""
    grid = Grid(33, 45, 80, 256)
    frames = svg_frames(grid, 0.25)
    assert round(frames * 3600, 1) == 15_655.3
    assert round(frames, 4) == 4.3487
    plan = svg(grid, head="spatial", model="hunyuan", frames=frames)
    assert plan.provenance.parameters["band"] == 15_655 // 128 * 128 - 1
    assert abs(plan.density - 0.25) < 0.003, "rounded down, and some text lies in the band"


def test_each_model_rounds_its_own_way():
    grid = Grid(4, 16, 16)
    bands = {
        model: svg(grid, head="spatial", model=model, frames=1.5, multiple=256)
        for model in ("wan", "hunyuan", "cogvideox")
    }
    reach = {model: plan.provenance.parameters["band"] for model, plan in bands.items()}
    assert reach == {"wan": 512, "hunyuan": 255, "cogvideox": 255}


def test_h2_the_card_names_density_and_every_parameter():
    """What was called sparsity is the share kept, and the plan says what made it."""
    grid = Grid(8, 10, 16)
    plan = svg(grid, head="temporal", model="wan", frames=svg_frames(grid, 0.1))
    assert plan.density > 0.1, "the first frame is seen as well"
    assert str(plan.provenance).startswith("svg(band=128, first_frame=True, frames=0.4")


BAD = {
    "head": (
        lambda: svg(Grid(2, 4, 4), head="both", model="wan", frames=1),
        mp.PlanError,
        ("head", "'both'", "'spatial', 'temporal'"),
    ),
    "model": (
        lambda: svg(Grid(2, 4, 4), head="spatial", model="mochi", frames=1),
        mp.PlanError,
        ("model", "'mochi'", "'hunyuan'"),
    ),
    "no band": (
        lambda: svg(Grid(2, 4, 4), head="spatial", model="hunyuan", frames=1),
        mp.PlanError,
        ("frames", "16 tokens", "at least 128"),
    ),
    "prompt": (
        lambda: svg(Grid(2, 4, 4, 3), head="spatial", model="wan", frames=1, prompt=4),
        mp.PlanError,
        ("prompt", "got 4", "prompt <= 3"),
    ),
    **{
        f"{frames} frames, {model}": (
            lambda frames=frames, model=model: svg(
                Grid(2, 4, 4), head="spatial", model=model, frames=frames, multiple=4
            ),
            mp.PlanError,
            ("frames", f"got {frames}", "0 <= frames"),
        )
        for frames in (float("nan"), float("inf"), -1.0, 1e308)
        for model in ("wan", "hunyuan", "cogvideox")
    },
    "too dense": (
        lambda: svg_frames(Grid(2, 4, 4, 3), 90),
        mp.PlanError,
        ("density", "got 90", "to keep"),
    ),
    "text alone": (lambda: svg_frames(Grid(2, 4, 4, 32), 0.9), mp.PlanError, ("above 1.0000",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
