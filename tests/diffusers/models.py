"""Tiny transformers of diffusers with random weights, and the inputs they take."""

import torch

WAN_GRID = (3, 4, 6)
HUNYUAN_GRID = (3, 4, 5)
TEXT = 7


def wan(*, image: bool = False, layers: int = 3):
    """12 channels a head, two heads; `image` adds the cross-attention to image tokens."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    extra = {"image_dim": 10, "added_kv_proj_dim": 24} if image else {}
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=layers,
        rope_max_seq_len=32,
        **extra,
    ).eval()


def wan_inputs(*, batch: int = 1, grid=WAN_GRID, timestep: float = 900.0, image: bool = False):
    generator = torch.Generator().manual_seed(1)
    t, h, w = grid
    inputs = {
        "hidden_states": torch.randn(batch, 4, t, 2 * h, 2 * w, generator=generator),
        "timestep": torch.full((batch,), timestep),
        "encoder_hidden_states": torch.randn(batch, 512 if image else 9, 16, generator=generator),
    }
    if image:
        inputs["encoder_hidden_states_image"] = torch.randn(batch, 5, 10, generator=generator)
    return inputs


def hunyuan(*, condition: str | None = None):
    """Two heads of 16 channels; one dual-stream block and two single-stream ones."""
    from diffusers import HunyuanVideoTransformer3DModel

    torch.manual_seed(0)
    return HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=2,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(4, 6, 6),
        image_condition_type=condition,
    ).eval()


def hunyuan_inputs(*, lengths=(5,), grid=HUNYUAN_GRID, timestep: float = 900.0):
    """A sample for each text length; the rest of TEXT is padding."""
    generator = torch.Generator().manual_seed(2)
    batch, (t, h, w) = len(lengths), grid
    return {
        "hidden_states": torch.randn(batch, 4, t, 2 * h, 2 * w, generator=generator),
        "timestep": torch.full((batch,), timestep),
        "encoder_hidden_states": torch.randn(batch, TEXT, 16, generator=generator),
        "encoder_attention_mask": torch.arange(TEXT) < torch.tensor(lengths)[:, None],
        "pooled_projections": torch.randn(batch, 8, generator=generator),
        "guidance": torch.full((batch,), 6000.0),
    }


def sample(model, inputs):
    """The model's output."""
    return model(**inputs, return_dict=False)[0]


def gradients(model, inputs):
    """(output, gradients of every parameter that has one) of a weighted sum of the output."""
    model.zero_grad()
    out = sample(model, inputs)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    (out * weight).sum().backward()
    return out.detach(), {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
