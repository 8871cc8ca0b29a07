"""What the transformers of diffusers have in common here: layers, grid, timestep and text.

Read from diffusers 0.42. Layers are numbered in the order in which they run; HunyuanVideo's
single-stream blocks follow its dual-stream ones, as in FastVideo's mask strategies.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from maskplan.errors import PlanError, PlanTypeError, UnsupportedError, sentence
from maskplan.untransformed import untransformed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelCall:
    """What a forward call of a transformer says about its tokens.

    Attributes:
        grid: latent frames, rows and columns after patching.
        timestep: as the model was given it.
        text: text tokens of the joint sequence; 0 where text is attended to elsewhere.
        text_lengths: text tokens of each sample that are no padding; empty where there are none.
    """

    grid: tuple[int, int, int]
    timestep: Tensor
    text: int
    text_lengths: tuple[int, ...]


class Wan:
    """`WanTransformer3DModel`: self-attention over the video, text in a cross-attention."""

    name = "WanTransformer3DModel"
    processor = "WanAttnProcessor"
    joint = False

    @staticmethod
    def layers(transformer: Any) -> list[nn.Module]:
        """The self-attention of each block."""
        return [block.attn1 for block in transformer.blocks]

    @staticmethod
    def call(transformer: Any, values: Mapping[str, Any]) -> ModelCall:
        """The call with these arguments."""
        grid = patched(values["hidden_states"], transformer.config.patch_size)
        return ModelCall(grid=grid, timestep=values["timestep"], text=0, text_lengths=())


class HunyuanVideo:
    """`HunyuanVideoTransformer3DModel`: one attention over the video and, after it, the text."""

    name = "HunyuanVideoTransformer3DModel"
    processor = "HunyuanVideoAttnProcessor2_0"
    joint = True

    @staticmethod
    def layers(transformer: Any) -> list[nn.Module]:
        """The attention of each block; the refiner of the text has its own, which stays."""
        blocks = [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
        return [block.attn for block in blocks]

    @staticmethod
    def call(transformer: Any, values: Mapping[str, Any]) -> ModelCall:
        """The call with these arguments. Reads the text lengths: a sync on a GPU."""
        side, frames = transformer.config.patch_size, transformer.config.patch_size_t
        return ModelCall(
            grid=patched(values["hidden_states"], (frames, side, side)),
            timestep=values["timestep"],
            text=int(values["encoder_hidden_states"].shape[1]),
            text_lengths=text_lengths(values["encoder_attention_mask"]),
        )


Architecture = type[Wan] | type[HunyuanVideo]
ARCHITECTURES: tuple[Architecture, ...] = (Wan, HunyuanVideo)


@untransformed
def text_lengths(mask: Tensor) -> tuple[int, ...]:
    """Unpadded tokens of each sample, of a mask [B, text].

    Raises:
        UnsupportedError: if the mask is vmapped.
    """
    return tuple(mask.sum(dim=1).int().tolist())


def patched(latent: Tensor, patch: tuple[int, int, int]) -> tuple[int, int, int]:
    """(t, h, w) tokens of a latent [B, C, T, H, W]."""
    t, h, w = (int(n) // p for n, p in zip(latent.shape[2:], patch, strict=True))
    return t, h, w


def architecture_of(transformer: object) -> Architecture:
    """Which architecture `transformer` is.

    Raises:
        PlanTypeError: if none that is known here.
    """
    bases = {cls.__name__ for cls in type(transformer).__mro__ if cls.__module__[:9] == "diffusers"}
    for architecture in ARCHITECTURES:
        if architecture.name in bases:
            return architecture
    raise PlanTypeError(
        sentence(
            what="no such model here",
            where="attach",
            got=type(transformer).__name__,
            wanted=" or ".join(f"diffusers' {known.name}" for known in ARCHITECTURES),
            remedy="pass pipe.transformer, before it is wrapped by torch.compile",
        )
    )


def models_of(transformers: object) -> list[nn.Module]:
    """The models among what `attach` was given: one, or several.

    Raises:
        PlanTypeError: if it is neither a model nor a collection.
        PlanError: if there is none, or one of them twice.
    """
    if isinstance(transformers, nn.Module) and not isinstance(transformers, nn.ModuleList):
        return [transformers]
    if not isinstance(transformers, Iterable):
        raise PlanTypeError(
            sentence(
                what="argument is no model",
                where="transformers",
                got=type(transformers).__name__,
                wanted="a transformer of diffusers, or several",
                remedy="pass pipe.transformer",
            )
        )
    models = list(transformers)
    different = len({id(model) for model in models})
    if not models or different < len(models):
        raise PlanError(
            sentence(
                what="models are not one or several different ones",
                where="transformers",
                got=f"{len(models)}, of which {different} are different",
                wanted="each transformer once",
                remedy="pass those among which the pipeline switches",
            )
        )
    return models


def bound(transformer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a forward call by name."""
    signature = inspect.signature(transformer.forward)
    return dict(signature.bind(*args, **kwargs).arguments)


def check_processors(layers: list[nn.Module], architecture: Architecture) -> None:
    """Check that every layer runs the model's own attention.

    Raises:
        UnsupportedError: if one has another processor.
    """
    for number, layer in enumerate(layers):
        found = type(layer.processor).__name__
        if found != architecture.processor:
            raise UnsupportedError(
                sentence(
                    what="layer has another attention processor",
                    where=f"layer {number}",
                    got=found,
                    wanted=architecture.processor,
                    remedy="detach what was attached before, or reset it with set_processor",
                )
            )


def heads_of(layers: list[nn.Module]) -> int:
    """Attention heads of the layers, which all have as many."""
    return int(layers[0].heads)  # type: ignore[arg-type] # an attribute that torch does not know


def query_like(layers: list[nn.Module], latent: Tensor) -> Tensor:
    """An empty [1, 1, H, D] tensor of the kind of q when the model is called with `latent`."""
    layer: Any = layers[0]
    head_dim = layer.inner_dim // layer.heads
    grad, kind = torch.is_grad_enabled(), latent.device.type
    # Projections make q in autocast's dtype, which another call may not have.
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else latent.dtype
    shape = (1, 1, layer.heads, head_dim)
    make = untransformed(torch.empty)  # no transform may wrap what is kept
    return make(shape, dtype=dtype, device=latent.device, requires_grad=grad)


def check_layer_count(count: int, dense_layers: int) -> None:
    """Check that some layer is left to plan.

    Raises:
        PlanError: if none is.
    """
    if dense_layers >= count:
        raise PlanError(
            sentence(
                what="no layer is left for the plans",
                where="dense_layers",
                got=dense_layers,
                wanted=f"fewer than the model's {count} layers",
                remedy="lower dense_layers, or do not attach plans",
            )
        )
