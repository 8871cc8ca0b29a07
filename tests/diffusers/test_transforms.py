"""Planned transformers in transforms of torch.func: see NOTE [Transforms and tables]."""

import pytest
import torch

import maskplan as mp
from maskplan.diffusers import attach
from maskplan.video import Grid, TokenOrder
from tests.diffusers import models

pytest.importorskip("diffusers", reason="the extra `diffusers` is not installed")

CASES = {
    "wan": (models.wan, models.wan_inputs, Grid(*models.WAN_GRID)),
    "hunyuan": (models.hunyuan, models.hunyuan_inputs, Grid(*models.HUNYUAN_GRID, models.TEXT)),
}


def windowed(order: TokenOrder) -> mp.Plan:
    length = order.seqlen
    return mp.sliding_window(length, length, left=20, right=30, block_size=(16, 16))


# The model's own cross-attention has no batching rule on the CPU.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_samples_are_those_without(case):
    make, inputs, grid = CASES[case]
    model, values, order = make(), inputs(), TokenOrder.raster(grid)
    latent = values["hidden_states"]

    def loss(latent):
        one = latent.sum() == latent.sum()  # so that what is read off is wrapped, too
        given = {"timestep": values["timestep"] * one}
        if case == "hunyuan":
            given["encoder_attention_mask"] = values["encoder_attention_mask"] & one
        return models.sample(model, values | given | {"hidden_states": latent}).square().mean()

    with attach(model, windowed(order), order=order):
        found = torch.func.grad(loss)(latent)
        leaf = latent.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(loss(leaf), leaf)
        both = torch.vmap(lambda x: models.sample(model, values | {"hidden_states": x}))(
            torch.stack([latent, latent.flip(-1)])
        )
        alone = [
            models.sample(model, values | {"hidden_states": x}) for x in (latent, latent.flip(-1))
        ]

    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(both, torch.stack(alone), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "where"), [("encoder_attention_mask", "text_lengths"), ("timestep", "largest")]
)
def test_what_a_plan_is_chosen_by_is_not_vmapped(name, where):
    make, inputs, grid = CASES["hunyuan"]
    model, values, order = make(), inputs(), TokenOrder.raster(grid)
    many = torch.stack([values[name]] * 2)
    with (
        attach(model, windowed(order), order=order),
        pytest.raises(mp.UnsupportedError, match=f"transform is not supported in {where}: got a"),
    ):
        torch.vmap(lambda x: models.sample(model, values | {name: x}))(many)
