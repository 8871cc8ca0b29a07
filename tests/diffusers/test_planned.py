"""Planned transformers beside the model's own: full plans, sparse plans, steps, layers, text."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import maskplan as mp
from maskplan.diffusers import attach
from maskplan.video import Grid, TokenOrder, sliding_tile
from tests.diffusers import models

pytest.importorskip("diffusers", reason="the extra `diffusers` is not installed")

CLOSE = {"atol": 2e-5, "rtol": 2e-5}  # float32 sums in another order; outputs are about 1
BLOCK = (16, 16)
TILE = (2, 2, 4)


def orders(grid):
    return [
        TokenOrder.raster(grid),
        TokenOrder.tiles(grid, TILE),
        TokenOrder.tiles(grid, TILE, pad=True),
    ]


def full(order):
    return mp.full(order.seqlen, order.seqlen, block_size=BLOCK)


CASES = {
    "wan": (models.wan, models.wan_inputs, Grid(*models.WAN_GRID)),
    "wan, guidance in one batch": (
        models.wan,
        lambda: models.wan_inputs(batch=2),
        Grid(*models.WAN_GRID),
    ),
    "wan, from an image": (
        lambda: models.wan(image=True),
        lambda: models.wan_inputs(image=True),
        Grid(*models.WAN_GRID),
    ),
    "wan, timestep a token": (
        models.wan,
        lambda: models.wan_inputs() | {"timestep": torch.linspace(0, 900, 72)[None]},
        Grid(*models.WAN_GRID),
    ),
    "hunyuan": (models.hunyuan, models.hunyuan_inputs, Grid(*models.HUNYUAN_GRID, models.TEXT)),
    "hunyuan, first frame given": (
        lambda: models.hunyuan(condition="token_replace"),
        models.hunyuan_inputs,
        Grid(*models.HUNYUAN_GRID, models.TEXT),
    ),
    "hunyuan, texts of three lengths": (
        models.hunyuan,
        lambda: models.hunyuan_inputs(lengths=(3, 7, 3)),
        Grid(*models.HUNYUAN_GRID, models.TEXT),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_full_plans_are_the_models_own_attention(case):
    make, inputs, grid = CASES[case]
    model, values = make(), inputs()
    own, own_gradients = models.gradients(model, values)

    for order in orders(grid):
        with attach(model, full(order), order=order):
            out, found = models.gradients(model, values)

        torch.testing.assert_close(out, own, **CLOSE)
        assert found.keys() == own_gradients.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, own_gradients[name], atol=2e-4, rtol=2e-4)


# Sparse plans: the oracle is the model's own processor, given the dense mask of the plan.


class Masked:
    """The model's own processor under a mask of all tokens [heads, S, S] in raster order."""

    def __init__(self, own, mask):
        self.own, self.mask = own, mask

    def __call__(
        self,
        attn,
        hidden_states,
        encoder_hidden_states=None,
        attention_mask=None,
        image_rotary_emb=None,
        rotary_emb=None,
    ):
        mask = self.mask[None] if attention_mask is None else self.mask[None] & attention_mask
        rotary = rotary_emb if image_rotary_emb is None else image_rotary_emb
        return self.own(attn, hidden_states, encoder_hidden_states, mask, rotary)


class WanMasked(Masked):
    def __call__(self, attn, hidden_states, text, attention_mask, rotary_emb):
        return super().__call__(attn, hidden_states, text, attention_mask, rotary_emb=rotary_emb)


def layers_of(model):
    if hasattr(model, "blocks"):
        return [block.attn1 for block in model.blocks]
    return [block.attn for block in (*model.transformer_blocks, *model.single_transformer_blocks)]


def masked(model, plans, order):
    """A copy of the model that attends under the dense masks of plans, None for dense layers."""
    other = copy.deepcopy(model)
    for layer, plan in zip(layers_of(other), plans, strict=True):
        if plan is not None:
            dense = plan.to_dense()[0]
            mask = dense[:, order.inverse][:, :, order.inverse]
            kind = WanMasked if hasattr(model, "blocks") else Masked
            layer.set_processor(kind(layer.processor, mask))
    return other


def sparse(order, seed, heads=2):
    """A random plan in which every token sees itself; padded slots see nobody."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(1, heads, order.seqlen, order.seqlen, generator=generator) < 0.3
    mask |= torch.eye(order.seqlen, dtype=torch.bool)
    if order.grid.text:
        mask[..., order.text_start] = True  # a first text token, which is never padding
    held = order.slots >= 0
    return mp.from_token_mask(mask & held & held[:, None], block_size=BLOCK)


@pytest.mark.parametrize("case", CASES)
def test_sparse_plans_are_the_models_attention_under_their_masks(case):
    make, inputs, grid = CASES[case]
    model, values = make(), inputs()
    for order in orders(grid):
        plan = sparse(order, seed=3)
        own, own_gradients = models.gradients(masked(model, [plan] * 3, order), values)

        with attach(model, plan, order=order):
            out, found = models.gradients(model, values)

        torch.testing.assert_close(out, own, **CLOSE)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, own_gradients[name], atol=2e-4, rtol=2e-4)


def test_the_oracle_can_fail():
    model, values = models.wan(), models.wan_inputs()
    order = TokenOrder.tiles(Grid(*models.WAN_GRID), TILE)
    plan, other = sparse(order, seed=3), sparse(order, seed=4)
    own = models.sample(masked(model, [plan] * 3, order), values)

    with attach(model, other, order=order):
        assert (models.sample(model, values) - own).abs().max() > 1e-3
    with attach(model, plan, order=TokenOrder.raster(order.grid)):
        assert (models.sample(model, values) - own).abs().max() > 1e-3


def test_a_pattern_brings_its_order():
    model, values = models.wan(), models.wan_inputs()
    plan = sliding_tile(Grid(*models.WAN_GRID), tile=TILE, window=(1, 2, 1), block_size=BLOCK)
    order = TokenOrder.tiles(Grid(*models.WAN_GRID), TILE)
    own = models.sample(masked(model, [plan.with_heads(2)] * 3, order), values)

    with attach(model, plan) as run:
        torch.testing.assert_close(models.sample(model, values), own, **CLOSE)
    assert torch.equal(run.order.slots, order.slots)


def book_of(order, steps, layers=range(3)):
    """A book of another plan at every step and layer."""
    plans = {
        (step, layer): sparse(order, seed=10 * step + layer) for step in steps for layer in layers
    }
    return mp.PlanBook.from_layers(plans), plans


def test_a_book_gives_each_step_and_layer_its_plan():
    model = models.wan()
    order = TokenOrder.tiles(Grid(*models.WAN_GRID), TILE)
    book, plans = book_of(order, range(1, 3), layers=range(1, 3))

    with attach(model, book, order=order, dense_steps=1, dense_layers=1, kept=1):
        for step, timestep in enumerate((900.0, 500.0, 100.0)):
            values = models.wan_inputs(timestep=timestep)
            chosen = [None if step < 1 or layer < 1 else plans[step, layer] for layer in range(3)]
            dense = copy.deepcopy(model)
            for layer in layers_of(dense)[1:]:
                layer.set_processor(layer.processor.dense)
            own = models.sample(masked(dense, chosen, order), values)

            for _ in range(2):  # guidance: a second call of the same step
                torch.testing.assert_close(models.sample(model, values), own, **CLOSE)


def test_a_run_starts_over_when_timesteps_rise():
    model = models.wan()
    with attach(model, full(TokenOrder.raster(Grid(*models.WAN_GRID))), order=TokenOrder.raster(
        Grid(*models.WAN_GRID))) as run:  # fmt: skip
        seen = []
        for timestep in (900.0, 900.0, 500.0, 100.0, 900.0, 500.0):
            models.sample(model, models.wan_inputs(timestep=timestep))
            seen.append(run.step)

    assert seen == [0, 0, 1, 2, 0, 1]


def test_a_pipeline_tells_steps_by_its_callback():
    model = models.wan()
    order = TokenOrder.raster(Grid(*models.WAN_GRID))
    pipe = SimpleNamespace(num_timesteps=2)
    with attach(model, full(order), order=order, steps="told") as run:
        with pytest.raises(mp.PlanError, match=r"step is not known in forward .*set step = 0"):
            models.sample(model, models.wan_inputs())
        run.step = 0
        models.sample(model, models.wan_inputs())
        kept = run.on_step_end(pipe, 0, torch.tensor(900.0), {"latents": 1})
        after_first = run.step
        run.on_step_end(pipe, 1, torch.tensor(500.0), {})

    assert (kept, after_first, run.step) == ({"latents": 1}, 1, 0)


def test_transformers_that_take_turns_share_steps():
    high, low = models.wan(), models.wan()
    order = TokenOrder.raster(Grid(*models.WAN_GRID))
    with attach([high, low], full(order), order=order) as run:
        models.sample(high, models.wan_inputs(timestep=900.0))
        models.sample(low, models.wan_inputs(timestep=300.0))

    assert run.step == 1


def test_detaching_gives_the_models_processors_back():
    model = models.hunyuan()
    before = dict(model.attn_processors)
    order = TokenOrder.raster(Grid(*models.HUNYUAN_GRID, models.TEXT))
    run = attach(model, full(order), order=order, dense_layers=1)
    changed = [name for name, own in model.attn_processors.items() if own is not before[name]]
    run.detach()
    run.detach()

    assert changed == [f"single_transformer_blocks.{i}.attn.processor" for i in range(2)]
    assert all(own is before[name] for name, own in model.attn_processors.items())
    assert not model._forward_pre_hooks


def test_fused_projections_are_used():
    model, values = models.wan(), models.wan_inputs()
    model.fuse_qkv_projections()
    order = TokenOrder.raster(Grid(*models.WAN_GRID))
    with torch.no_grad():
        for block in model.blocks:  # so that the separate ones would show
            block.attn1.to_q.weight.mul_(2)
        own = models.sample(model, values)
        with attach(model, full(order), order=order):
            torch.testing.assert_close(models.sample(model, values), own, **CLOSE)


def test_gradient_checkpointing_recomputes_the_same():
    model, values = models.wan(), models.wan_inputs()
    order = TokenOrder.tiles(Grid(*models.WAN_GRID), TILE)
    with attach(model, sparse(order, seed=5), order=order):
        out, plain = models.gradients(model, values)
        model.enable_gradient_checkpointing()
        again, found = models.gradients(model.train(), values)

    torch.testing.assert_close(again, out)
    torch.testing.assert_close(found, plain)


def test_half_precision_stays_near_the_models_own():
    model, values = models.wan().bfloat16(), models.wan_inputs()
    values = {name: value.bfloat16() for name, value in values.items()}
    order = TokenOrder.tiles(Grid(*models.WAN_GRID), TILE)
    own = models.sample(model, values)
    with attach(model, full(order), order=order):
        out = models.sample(model, values)

    assert out.dtype == torch.bfloat16
    assert (out - own).float().norm() < 0.02 * own.float().norm()


@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "model"])
def test_compiled_models_run_every_plan_of_a_book(whole):
    """One graph of the dense step, one of the planned ones, and one when their sizes differ."""
    model = models.wan()
    grid = Grid(*models.WAN_GRID)
    windows = [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1)]
    plans = {
        (step, layer): sliding_tile(
            grid, tile=TILE, window=windows[step + layer], block_size=(8, 8)
        )
        for step in range(1, 3)
        for layer in range(2)
    }
    book = mp.PlanBook.from_layers(plans, default=plans[2, 1], layers=range(3))
    counter = CompileCounterWithBackend("eager" if whole else "aot_eager")

    def denoise():
        calls = [models.wan_inputs(timestep=timestep) for timestep in (900.0, 500.0, 100.0)]
        return [models.sample(model, values) for values in calls]

    with torch.no_grad(), attach(model, book, dense_steps=1):
        eager = denoise()
        if whole:
            model.compile(backend=counter)
        else:
            for block in model.blocks:
                block.compile(backend=counter, fullgraph=True)
        compiled = denoise()

    assert counter.frame_count <= 3
    torch.testing.assert_close(compiled, eager)
