"""What `attach` and the attached models refuse, and the sentences they say it in."""

import pytest
import torch

import maskplan as mp
from maskplan.diffusers import attach
from maskplan.video import Grid, TokenOrder, sliding_tile
from tests.diffusers import models

pytest.importorskip("diffusers", reason="the extra `diffusers` is not installed")

ORDER = TokenOrder.raster(Grid(*models.WAN_GRID))
JOINT = TokenOrder.raster(Grid(*models.HUNYUAN_GRID, models.TEXT))
FULL = mp.full(72, 72, block_size=(16, 16))
BOOK = mp.PlanBook.from_layers({(step, layer): FULL for step in range(2) for layer in range(2)})


def test_other_models_are_refused_by_name():
    with pytest.raises(mp.PlanTypeError) as caught:
        attach(torch.nn.Linear(2, 2), FULL, order=ORDER)

    assert str(caught.value) == (
        "no such model here in attach: got Linear, wanted diffusers' WanTransformer3DModel or "
        "diffusers' HunyuanVideoTransformer3DModel; pass pipe.transformer, before it is wrapped by "
        "torch.compile."
    )


@pytest.mark.parametrize(
    ("transformers", "error", "message"),
    [
        (None, mp.PlanTypeError, "argument is no model in transformers: got NoneType"),
        (3, mp.PlanTypeError, "argument is no model in transformers: got int"),
        ([], mp.PlanError, "got 0, of which 0 are different, wanted each transformer once"),
        ([3], mp.PlanTypeError, "no such model here in attach: got int"),
    ],
)
def test_no_models_at_all(transformers, error, message):
    with pytest.raises(error, match=message):
        attach(transformers, FULL, order=ORDER)


def test_one_model_twice_is_refused_and_left_alone():
    """The second time it would take our processor for the model's own."""
    wan = models.wan()
    with pytest.raises(mp.PlanError, match="got 2, of which 1 are different"):
        attach([wan, wan], FULL, order=ORDER)

    assert [type(block.attn1.processor).__name__ for block in wan.blocks] == 3 * [
        "WanAttnProcessor"
    ]
    assert not wan._forward_pre_hooks


def test_a_backend_that_there_is_not_is_refused_at_once():
    for backend in ("fa5", None, ["cpu"]):
        with pytest.raises(mp.PlanError, match="unknown backend in attention: got "):
            attach(models.wan(), FULL, order=ORDER, backend=backend)


@pytest.mark.parametrize(
    ("plans", "options", "message"),
    [
        (
            FULL,
            {},
            "plans do not say where their tokens lie in plans: got no grid in their provenance",
        ),
        (
            FULL.with_heads(3),
            {"order": ORDER},
            "plans have another number of heads in plans: got 3, wanted 1 or 2, as the model",
        ),
        (
            mp.full(64, 72, block_size=(16, 16)),
            {"order": ORDER},
            "plans do not fit the token order in plans: got 64 x 72 tokens, wanted 72 x 72",
        ),
        (
            BOOK,
            {"order": ORDER},
            "book has no plans for some layers in plans: got layers 0 to 1, wanted layers 2 to 2",
        ),
        (
            FULL,
            {"order": ORDER, "dense_layers": 3},
            "no layer is left for the plans in dense_layers: got 3, wanted fewer than the model's",
        ),
        (
            FULL,
            {"order": ORDER, "steps": "guessed"},
            "unknown way to know the step in steps: got 'guessed', wanted 'timestep' or 'told'",
        ),
        (FULL, {"order": ORDER, "dense_steps": -1}, "dense_steps"),
        (
            sliding_tile(ORDER.grid, tile=(2, 2, 4), window=(1, 1, 1), block_size=(16, 16)),
            {"order": ORDER},
            "plans lie in another order in order: got tiles of (1, 4, 6) on (3, 4, 6), wanted tile",
        ),
        (
            mp.full(67, 67, block_size=(16, 16)),
            {"order": JOINT},
            "plans have text where the model has none in order: got 7 text tokens after the video",
        ),
    ],
)
def test_plans_that_do_not_fit_are_refused(plans, options, message):
    with pytest.raises(mp.PlanError) as caught:
        attach(models.wan(), plans, **options)

    assert message in str(caught.value)


def test_other_types_are_refused():
    with pytest.raises(mp.PlanTypeError, match=r"wrong type in plans: got Tensor, wanted a Plan"):
        attach(models.wan(), torch.ones(72, 72))
    with pytest.raises(mp.PlanTypeError, match=r"wrong type in order: got list, wanted a TokenOrd"):
        attach(models.wan(), FULL, order=[1, 2])


def test_text_before_the_video_is_refused():
    order = TokenOrder.raster(Grid(*models.HUNYUAN_GRID, models.TEXT, text_first=True))
    with pytest.raises(
        mp.PlanError, match=r"got 7 text tokens before the video, wanted text after"
    ):
        attach(models.hunyuan(), mp.full(67, 67), order=order)


def test_a_refused_attachment_changes_nothing():
    model = models.wan()
    before = dict(model.attn_processors)
    with pytest.raises(mp.PlanError):
        attach(model, BOOK, order=ORDER)

    assert model.attn_processors == before
    assert not model._forward_pre_hooks


def test_a_second_attachment_is_refused():
    model = models.wan()
    with (
        attach(model, FULL, order=ORDER),
        pytest.raises(
            mp.UnsupportedError, match=r"another attention processor in layer 0: got Wan"
        ),
    ):
        attach(model, FULL, order=ORDER)


@pytest.mark.parametrize("grid", [(4, 3, 6), (3, 4, 7)])
def test_videos_of_another_size_are_refused(grid):
    model = models.wan()
    with (
        attach(model, FULL, order=ORDER),
        pytest.raises(
            mp.PlanError, match=r"got a grid of . x . x . and 0 text tokens, wanted 3 x "
        ),
    ):
        models.sample(model, models.wan_inputs(grid=grid))


def test_texts_of_another_size_are_refused():
    model, order = models.hunyuan(), TokenOrder.raster(Grid(*models.HUNYUAN_GRID, 9))
    with (
        attach(model, mp.full(69, 69), order=order),
        pytest.raises(mp.PlanError, match=r"and 7 text tokens, wanted 3 x 4 x 5 and 9; plan for"),
    ):
        models.sample(model, models.hunyuan_inputs())


def test_a_step_past_the_book_is_refused():
    model = models.wan()
    book = mp.PlanBook.from_layers({(0, layer): FULL for layer in range(3)})
    with attach(model, book, order=ORDER):
        models.sample(model, models.wan_inputs(timestep=900.0))
        with pytest.raises(mp.PlanKeyError, match=r"no such step in the book: got 1, wanted 0 <= "):
            models.sample(model, models.wan_inputs(timestep=500.0))


def test_a_batch_that_does_not_fit_is_refused():
    model = models.wan()
    other = torch.stack([torch.ones(72, 72), torch.eye(72)])[:, None].bool()
    two = mp.from_token_mask(other, block_size=(16, 16))
    with (
        attach(model, two, order=ORDER),
        pytest.raises(mp.PlanError, match=r"plan has another batch size in plan: got 2, wanted 1"),
    ):
        models.sample(model, models.wan_inputs(batch=3))


def test_told_steps_and_counted_steps_do_not_mix():
    with (
        attach(models.wan(), FULL, order=ORDER) as run,
        pytest.raises(mp.PlanError, match=r"step is told where it is counted in step: got 3, want"),
    ):
        run.step = 3


def test_context_parallelism_is_refused():
    model = models.wan()
    with (
        attach(model, FULL, order=ORDER),
        pytest.raises(mp.UnsupportedError, match=r"planned layers do not run in context parallel"),
    ):
        model.blocks[0].attn1.processor._parallel_config = object()


def test_the_engine_of_dense_calls_can_still_be_set():
    model = models.wan()
    with attach(model, FULL, order=ORDER):
        model.blocks[0].attn1.processor._attention_backend = "native"

    assert model.blocks[0].attn1.processor._attention_backend == "native"
