"""`attach`: plans in place of a transformer's self-attention, step by step."""

from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from maskplan.attention.choice import named
from maskplan.diffusers.models import (
    Architecture,
    HunyuanVideo,
    ModelCall,
    architecture_of,
    bound,
    check_layer_count,
    check_processors,
    heads_of,
    models_of,
    query_like,
)
from maskplan.diffusers.processors import (
    HunyuanVideoPlanProcessor,
    PlanProcessor,
    WanPlanProcessor,
)
from maskplan.diffusers.source import Place, PlanSource, Source, check_plans, order_of
from maskplan.diffusers.steps import StepCount
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.patterns.token_order import TokenOrder


class PlannedAttention:
    """Plans attached to one or more transformers, until `detach`; made by `attach`.

    As a context manager it detaches at the end of the block.
    """

    def __init__(
        self,
        transformers: Iterable[nn.Module],
        source: PlanSource,
        steps: StepCount,
        dense: tuple[int, int],
    ) -> None:
        self._source = source
        self._steps = steps
        self._dense_steps, self._dense_layers = dense
        self._processors: list[tuple[nn.Module, int, PlanProcessor]] = []
        self._hooks = []
        for transformer in transformers:
            architecture = architecture_of(transformer)
            processors = self._replace(architecture, transformer)
            hook = partial(self._before, architecture, processors)
            self._hooks.append(transformer.register_forward_pre_hook(hook, with_kwargs=True))

    @property
    def step(self) -> int | None:
        """The denoising step of the next forward call, from 0; None if it is yet to be told.

        Assign to it where the steps are told. A backward that recomputes activations has to come
        before the step changes.
        """
        return self._steps.step

    @step.setter
    def step(self, step: int) -> None:
        self._steps.tell(integer(step, "step", low=0))

    @property
    def order(self) -> TokenOrder:
        """The order that video tokens are put into for attention."""
        return self._source.order

    def on_step_end(
        self, pipe: Any, step: int, timestep: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """For a pipeline's `callback_on_step_end`: tells the next step; 0 after the last one."""
        del timestep
        last = step + 1 >= pipe.num_timesteps
        self._steps.tell(0 if last else step + 1)
        return callback_kwargs

    def detach(self) -> None:
        """Give the transformers their own attention back. Does nothing the second time."""
        for hook in self._hooks:
            hook.remove()
        for layer, _, processor in self._processors:
            layer.set_processor(processor.dense)  # type: ignore[operator] # an attention module
        self._hooks, self._processors = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def _replace(
        self, architecture: Architecture, transformer: nn.Module
    ) -> list[tuple[int, PlanProcessor]]:
        """Put processors of ours into the planned layers; their numbers and processors."""
        kind = HunyuanVideoPlanProcessor if architecture is HunyuanVideo else WanPlanProcessor
        placed: list[tuple[int, PlanProcessor]] = []
        for number, layer in enumerate(architecture.layers(transformer)):
            if number < self._dense_layers:
                continue
            processor = kind(layer.processor, self._source.options)
            layer.set_processor(processor)  # type: ignore[operator] # an attention module
            self._processors.append((layer, number, processor))
            placed.append((number, processor))
        return placed

    @torch.compiler.disable  # type: ignore[untyped-decorator] # counts steps outside of the graph
    def _before(
        self,
        architecture: Architecture,
        processors: list[tuple[int, PlanProcessor]],
        transformer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Give each processor its plan, before a forward call of the model."""
        values = bound(transformer, args, kwargs)
        call = architecture.call(transformer, values)
        step = self._steps.of_call(call.timestep)
        dense = step < self._dense_steps
        if not dense:
            _check_tokens(self.order, call)
        like = query_like(architecture.layers(transformer), values["hidden_states"])
        for number, processor in processors:
            place = Place(step=step, layer=number, text_lengths=call.text_lengths, like=like)
            processor.current = None if dense else self._source.at(place)


def attach(
    transformers: nn.Module | Iterable[nn.Module],
    plans: Source,
    *,
    order: TokenOrder | None = None,
    dense_steps: int = 0,
    dense_layers: int = 0,
    steps: str = "timestep",
    backend: str = "auto",
    deterministic: bool = False,
    kept: int | None = None,
) -> PlannedAttention:
    """Run the self-attention of a diffusers transformer by plans.

    Only the attention among video tokens, and of HunyuanVideo's video and text tokens, is replaced.
    Cross-attention, the refiner of the text, dense layers and dense steps stay the model's own.
    Padded text is hidden from every query, as the model's mask hides it.

    Args:
        transformers: a `WanTransformer3DModel` or `HunyuanVideoTransformer3DModel`, or the ones
            among which a pipeline switches (Wan 2.2), which then share plans and steps. Attach
            before they are compiled.
        plans: one plan for all steps and layers, or a book that has one for each planned layer
            and step, with 1 head or the model's, and batch 1 or the one called with. Its queries
            and keys are the grid's tokens; HunyuanVideo's text comes last, padding included.
        order: how tokens lie in the plans; by default what their provenance says. Tokens are put
            into this order for attention and taken out of it again.
        dense_steps: the first steps, which run the model's own attention.
        dense_layers: the first layers, which always do.
        steps: how the step is known. "timestep" counts the distinct timesteps that the model is
            called with, starting over when they rise; it reads the timestep, a sync on a GPU.
            "told" waits to be told, by `step` or a pipeline's `callback_on_step_end`.
        backend: as in `maskplan.attention`.
        deterministic: as in `maskplan.attention`.
        kept: how many plans are held ready for the device, the last used ones. By default two a
            layer: guidance may call with two text lengths. Lists of one layer may take tens of MB.

    Returns:
        The attached plans: `detach` ends them, `on_step_end` is the pipeline's callback.

    Raises:
        PlanTypeError: if a transformer is of an unknown architecture, or plans or order are not
            plans and an order.
        PlanError: if there is no transformer, or one twice, plans do not fit the heads, layers or
            order, a backend is unknown or an option is out of range. A forward call raises it if
            the video's grid or the text does not fit the plans.
        UnsupportedError: if a layer has a processor that is not the model's own.
    """
    models = models_of(transformers)
    dense_steps = integer(dense_steps, "dense_steps", low=0)
    dense_layers = integer(dense_layers, "dense_layers", low=0)
    order = order_of(plans, order)
    most = 1
    for model in models:
        architecture = architecture_of(model)
        layers = architecture.layers(model)
        most = max(most, len(layers))
        check_layer_count(len(layers), dense_layers)
        check_processors(layers, architecture)
        _check_text_last(architecture, order)
        check_plans(plans, order, heads_of(layers), range(dense_layers, len(layers)))
    kept = 2 * most if kept is None else integer(kept, "kept", low=1)
    if backend != "auto":
        named(backend)
    options = {"backend": backend, "deterministic": deterministic}
    source = PlanSource(plans, order, options, kept)
    return PlannedAttention(models, source, StepCount(steps), (dense_steps, dense_layers))


def _check_text_last(architecture: Architecture, order: TokenOrder) -> None:
    """Text tokens are the last ones where there are any, and none where there is no joint one."""
    grid = order.grid
    if (grid.text and not architecture.joint) or (grid.text and grid.text_first):
        raise PlanError(
            sentence(
                what="plans have text where the model has none",
                where="order",
                got=f"{grid.text} text tokens {'before' if grid.text_first else 'after'} the video",
                wanted="text after the video" if architecture.joint else "video tokens only",
                remedy="plan with Grid(t, h, w, text=...) of this model",
            )
        )


def _check_tokens(order: TokenOrder, call: ModelCall) -> None:
    """Check that the tokens of a forward call are those of the grid."""
    got, wanted = (*call.grid, call.text), (*order.grid.shape, order.grid.text)
    if got != wanted:
        raise PlanError(
            sentence(
                what="the model's tokens are not those of the plans",
                where="forward of the transformer",
                got=f"a grid of {got[0]} x {got[1]} x {got[2]} and {got[3]} text tokens",
                wanted=f"{wanted[0]} x {wanted[1]} x {wanted[2]} and {wanted[3]}",
                remedy="plan for this size of video and text, or detach",
            )
        )
