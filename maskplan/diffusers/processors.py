"""Attention processors that run a planned layer as the model's own would, but for the pairs.

NOTE [The model's own arithmetic]: projections, norms and rotary embeddings are those of
`WanAttnProcessor` and `HunyuanVideoAttnProcessor2_0` (diffusers 0.42), rounded at the same places:
with a full plan a layer differs from the model's own by the order of sums in its softmax alone.
Tests compare the two for every architecture, so that a change of diffusers shows.

NOTE [Order before projection]: tokens are put into the plan's order before they are projected and
taken out of it before the output projection. Both are made token by token, so this equals ordering
q, k, v and out, at two gathers of the hidden states instead of four.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskplan.attention import attention
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.plan import Plan

Rotary = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """What a layer attends by during one forward call of the model.

    Attributes:
        plan: pairs of the joint sequence, its tokens in order.
        slots: int64 [slots]: raster number of the video token in each slot; None for raster order.
        inverse: int64 [tokens]: slot of each video token; None for raster order.
    """

    plan: Plan | LoweredPlan
    slots: Tensor | None
    inverse: Tensor | None

    def order(self, x: Tensor, dim: int) -> Tensor:
        """Video tokens of `x` put into the plan's order along `dim`."""
        return x if self.slots is None else x.index_select(dim, self.slots)

    def undo(self, x: Tensor, dim: int) -> Tensor:
        """Video tokens of `x` in raster order again."""
        return x if self.inverse is None else x.index_select(dim, self.inverse)


class PlanProcessor:
    """The processor of one layer: the model's own while `current` is None."""

    def __init__(self, dense: Any, options: Mapping[str, Any]) -> None:
        self.dense = dense
        self.options = options
        self.current: Planned | None = None

    @property
    def _attention_backend(self) -> Any:
        """What `set_attention_backend` sets: the engine of dense calls."""
        return self.dense._attention_backend  # noqa: SLF001 # diffusers' own name

    @_attention_backend.setter
    def _attention_backend(self, backend: Any) -> None:
        self.dense._attention_backend = backend  # noqa: SLF001

    @property
    def _parallel_config(self) -> Any:
        return self.dense._parallel_config  # noqa: SLF001

    @_parallel_config.setter
    def _parallel_config(self, config: Any) -> None:
        raise UnsupportedError(
            sentence(
                what="planned layers do not run in context parallel",
                where="enable_parallelism",
                got=type(config).__name__,
                wanted="whole sequences on each device",
                remedy="detach the plans, or leave parallelism off",
            )
        )

    def attend(self, planned: Planned, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, S, H * D] of [B, S, H, D], in the dtype of `query`."""
        out = attention(query, key, value, planned.plan, **self.options)
        joined: Tensor = out.flatten(2, 3).type_as(query)
        return joined


class WanPlanProcessor(PlanProcessor):
    """For the self-attention of Wan's blocks."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Rotary | None = None,
    ) -> Tensor:
        """As `WanAttnProcessor`."""
        planned = self.current
        if planned is None:
            dense: Tensor = self.dense(
                attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb
            )
            return dense
        hidden_states = planned.order(hidden_states, 1)
        if attn.fused_projections:
            query, key, value = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        else:
            query, key, value = (
                project(hidden_states) for project in (attn.to_q, attn.to_k, attn.to_v)
            )
        query, key, value = (
            x.unflatten(2, (attn.heads, -1)) for x in (attn.norm_q(query), attn.norm_k(key), value)
        )
        if rotary_emb is not None:
            cos, sin = (planned.order(x, 1) for x in rotary_emb)
            query, key = wan_rotary(query, cos, sin), wan_rotary(key, cos, sin)
        out = planned.undo(self.attend(planned, query, key, value), 1)
        projected: Tensor = attn.to_out[1](attn.to_out[0](out))
        return projected


def wan_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (x[2i], x[2i + 1]) turned by the angles in cos and sin [1, S, 1, D]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).type_as(x)


class HunyuanVideoPlanProcessor(PlanProcessor):
    """For dual-stream blocks, whose text has projections of its own, and single-stream ones."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Rotary | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `HunyuanVideoAttnProcessor2_0`; padded text is hidden by the plan, not the mask."""
        planned = self.current
        if planned is None:
            dense: tuple[Tensor, Tensor] = self.dense(
                attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb
            )
            return dense
        video, text = planned.order(hidden_states, 1), encoder_hidden_states
        query, key, value = _joint(attn, planned, video, text, image_rotary_emb)
        out = self.attend(planned, query, key, value)
        video_out = planned.undo(out[:, : video.shape[1]], 1)
        text_out = out[:, video.shape[1] :]
        if getattr(attn, "to_out", None) is not None:
            video_out = attn.to_out[1](attn.to_out[0](video_out))
        if getattr(attn, "to_add_out", None) is not None:
            text_out = attn.to_add_out(text_out)
        return video_out, text_out


def _joint(
    attn: Any, planned: Planned, video: Tensor, text: Tensor, rotary: Rotary | None
) -> tuple[Tensor, ...]:
    """Query, key and value of video and text tokens, [B, S, H, D] each."""
    dual = attn.add_q_proj is not None
    own = (attn.to_q, attn.to_k, attn.to_v)
    of_text = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj) if dual else own
    norms = (attn.norm_q, attn.norm_k, None)
    text_norms = (attn.norm_added_q, attn.norm_added_k, None) if dual else norms
    angles = None if rotary is None else tuple(planned.order(x, 0) for x in rotary)
    joined = []
    for place in range(3):
        first = _projected(attn, video, own[place], norms[place])
        if angles is not None and place < 2:
            first = _hunyuan_rotary(first, angles)
        second = _projected(attn, text, of_text[place], text_norms[place])
        joined.append(torch.cat([first, second], dim=1))
    return tuple(joined)


def _projected(attn: Any, x: Tensor, project: Any, norm: Any) -> Tensor:
    heads: Tensor = project(x).unflatten(2, (attn.heads, -1))
    return heads if norm is None else norm(heads)


def _hunyuan_rotary(x: Tensor, angles: tuple[Tensor, ...]) -> Tensor:
    from diffusers.models.embeddings import apply_rotary_emb

    turned: Tensor = apply_rotary_emb(x, angles, sequence_dim=1)
    return turned
