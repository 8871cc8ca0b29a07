"""Lists that `TokenTiles` are made of, as they come and as tiles read them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.pattern_axes import require_heads
from maskplan.build.topk_arguments import checked_lengths
from maskplan.geometry import integer, option
from maskplan.lower.token_checks import FORMS, check_options, lists_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class TileOptions:
    """What the caller of `TokenTiles.from_topk` chose, checked.

    Attributes:
        policy: what a tile's list is.
        form: "auto", "tokens" or "blocks".
        tile_rows: packed rows of a tile.
        group: rows of a token.
        max_coverage: the share of keys beyond which a union is refused.
        capacity: room for keys in a list on a GPU, or None.
    """

    policy: str
    form: str
    tile_rows: int
    group: int
    max_coverage: float
    capacity: int | None

    @property
    def tile_tokens(self) -> int:
        """Tokens of a tile."""
        return self.tile_rows // self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLists:
    """Top-k lists, what is broadcast kept once.

    Attributes:
        indices: int32 or int64 [b, h, SQ, topk], any strides; h counts the heads of groups apart.
        lengths: int64 [b, h, SQ], any strides, or None.
        is_global: indices count over all batches.
        seqlen_k: SK.
        per_head: lists of a token in a tile.
        shape: (batch, heads) of the tiles.
    """

    indices: Tensor
    lengths: Tensor | None
    is_global: bool
    seqlen_k: int
    per_head: int
    shape: tuple[int, int]

    @property
    def seqlen_q(self) -> int:
        """SQ."""
        return int(self.indices.shape[2])

    @property
    def own(self) -> tuple[int, int, int]:
        """(b, heads, lists of a token)."""
        batch, given = self.indices.shape[:2]
        return int(batch), int(given) // self.per_head, self.per_head

    def first_of_groups(self) -> "TileLists":
        """The lists of each group's first head, for all of its heads."""
        lengths = None if self.lengths is None else self.lengths[:, :: self.per_head]
        return TileLists(
            indices=self.indices[:, :: self.per_head],
            lengths=lengths,
            is_global=self.is_global,
            seqlen_k=self.seqlen_k,
            per_head=1,
            shape=self.shape,
        )

    def groups_alike(self) -> bool:
        """Whether the heads of each group have equal lists; it waits for a device."""
        parts = [self.indices] if self.lengths is None else [self.indices, self.lengths]
        return all(
            torch.equal(part[:, :: self.per_head], part[:, g :: self.per_head])
            for part in parts
            for g in range(1, self.per_head)
        )

    def local(self) -> Tensor:
        """`indices` of their batch: -1 in lanes that do not hold, SK, which is no key, in bad ones.

        The very tensor where there are neither lengths nor global indices.
        """
        local, limit = self.indices, self.seqlen_k
        if self.is_global:
            origin = torch.arange(local.shape[0], device=local.device).view(-1, 1, 1, 1) * limit
            inside = (local >= origin) & (local < origin + limit)
            local = torch.where(inside, local - origin, torch.where(local == -1, -1, limit))
        if self.lengths is not None:
            lane = torch.arange(local.shape[3], device=local.device)
            local = local.masked_fill(lane >= self.lengths[..., None], -1)
        return local


def read_arguments(
    indices: Tensor, seqlen_k: int, *, policy: str, form: str, tile_rows: int, group: int,
    kv_heads: int | None, lengths: Tensor | None, base: str, max_coverage: float,
    capacity: int | None,
) -> tuple[TileLists, TileOptions]:  # fmt: skip
    """The arguments of `TokenTiles.from_topk`, checked."""
    index_tensor(indices, "indices", or_gpu=True)
    rank(indices, "indices", (4,), "[batch, heads, SQ, topk]", "add the axes of size 1")
    require_heads(indices, "indices")
    option(base, "base", ("local", "global"))
    option(form, "form", FORMS)
    check_options(policy, tile_rows, group, max_coverage)
    parts = [indices] if lengths is None else [indices, checked_lengths(lengths, indices)]
    batch, given = indices.shape[:2]
    per_head = lists_per_token(given, group, kv_heads)
    heads = given // per_head
    if base == "local" and all(part.stride(0) == 0 for part in parts):
        parts = [part[:1] for part in parts]
    if all(part.stride(1) == 0 for part in parts):
        parts = [part[:, :1] for part in parts]
    lists = TileLists(
        indices=parts[0],
        lengths=None if lengths is None else parts[1],
        is_global=base == "global",
        seqlen_k=integer(seqlen_k, "seqlen_k"),
        per_head=1 if parts[0].shape[1] == 1 else per_head,
        shape=(batch, heads),
    )
    options = TileOptions(
        policy=policy,
        form=form,
        tile_rows=tile_rows,
        group=group,
        max_coverage=max_coverage,
        capacity=None if capacity is None else integer(capacity, "capacity", low=1),
    )
    return lists, options
