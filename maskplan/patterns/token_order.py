"""Orders of a grid's tokens: which token each place of the sequence holds, there and back.

NOTE [Slots]: an order is a list of slots, each the raster number of the token it holds. A compact
order has one slot for each token and is a permutation. With padding, slots of -1 hold nothing: a
padded tile or frame then starts on a multiple of its size, and plans never keep a pair of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import flag, integer
from maskplan.patterns.grid import Grid, triple
from maskplan.provenance import Provenance

PAD = -1


@dataclass(frozen=True, kw_only=True)
class TokenOrder:
    """An order of the tokens of a grid. Text stays at its end of the sequence, in its own order.

    Tile order visits the tiles of the grid in raster order, and the tokens of a tile in raster
    order. Tiles at the far edges hold fewer tokens where a tile does not divide the grid. A frame
    is a tile of (1, H, W), so raster order is tile order with that tile.

    Attributes:
        grid: the grid.
        tile: tile size (t, h, w), in tokens.
        multiple: a tile takes up a multiple of this many slots, -1 filling up; 1 is compact.

    Make one with `raster`, `tiles`, `frames`, `token_major` or `strips`.
    """

    grid: Grid
    tile: tuple[int, int, int]
    multiple: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", triple(self.tile, "tile"))
        object.__setattr__(self, "multiple", integer(self.multiple, "multiple", low=1))

    @classmethod
    def raster(cls, grid: Grid) -> Self:
        """Frame by frame, row by row: as models lay out their latents."""
        return cls(grid=grid, tile=(1, grid.h, grid.w))

    @classmethod
    def tiles(cls, grid: Grid, tile: tuple[int, int, int], *, pad: bool = False) -> Self:
        """Tile by tile; with `pad`, each tile takes up t * h * w slots."""
        t, h, w = triple(tile, "tile")
        return cls(grid=grid, tile=(t, h, w), multiple=t * h * w if flag(pad, "pad") else 1)

    @classmethod
    def frames(cls, grid: Grid, multiple: int) -> Self:
        """Raster order with each frame padded to a multiple of `multiple` slots.

        With the block size as multiple, blocks keep their place in a frame.
        """
        return cls(grid=grid, tile=(1, grid.h, grid.w), multiple=multiple)

    @classmethod
    def token_major(cls, grid: Grid) -> Self:
        """Places of a frame one after another, each with all its frames: SVG's temporal heads.

        The token of frame t at place p of its frame has slot p * T + t.
        """
        return cls(grid=grid, tile=(grid.t, 1, 1))

    @classmethod
    def strips(cls, grid: Grid, *, pad: bool = False) -> Self:
        """Regions of 8 rows by 16 columns of each frame, as draft attention orders tokens."""
        return cls.tiles(grid, (1, 8, 16), pad=pad)

    def without_text(self) -> Self:
        """The order of the video's tokens alone: of q, where text is no query."""
        grid = replace(self.grid, text=0, text_first=False)
        return replace(self, grid=grid)

    @property
    def tile_grid(self) -> tuple[int, int, int]:
        """Tiles along (t, h, w), the ones at the edges included."""
        t, h, w = (-(-n // c) for n, c in zip(self.grid.shape, self.tile, strict=True))
        return t, h, w

    @cached_property
    def tile_counts(self) -> Tensor:
        """Tokens of each tile, int64 [tiles], tiles in raster order."""
        sides = [
            torch.tensor([min(c, n - at) for at in range(0, n, c)], device="cpu")
            for n, c in zip(self.grid.shape, self.tile, strict=True)
        ]
        t, h, w = sides
        return (t[:, None, None] * h[:, None] * w).reshape(-1)

    @cached_property
    def tile_starts(self) -> Tensor:
        """First slot of each tile, and one past the video's last slot: int64 [tiles + 1]."""
        slots = -(-self.tile_counts // self.multiple) * self.multiple
        start = self.grid.text if self.grid.text_first else 0
        return torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), slots.cumsum(0)]) + start

    @property
    def seqlen(self) -> int:
        """Slots, those that hold nothing included."""
        first, last = int(self.tile_starts[0]), int(self.tile_starts[-1])
        return last - first + self.grid.text

    @property
    def tokens(self) -> int:
        """Tokens in and out, text included: slots that hold one."""
        return self.grid.seqlen

    @property
    def text_start(self) -> int:
        """First slot of the text."""
        return 0 if self.grid.text_first else int(self.tile_starts[-1])

    @property
    def is_compact(self) -> bool:
        """Whether every slot holds a token."""
        return self.seqlen == self.grid.seqlen

    @cached_property
    def slots(self) -> Tensor:
        """Raster number of the token in each slot, or -1: int64 [seqlen]."""
        slots = torch.full((self.seqlen,), PAD, device="cpu")
        slots[self.inverse] = torch.arange(self.grid.seqlen, device="cpu")
        return slots

    @cached_property
    def inverse(self) -> Tensor:
        """Slot of each token, tokens in raster order: int64 [t * h * w + text]."""
        tokens = _tile_tokens(self.grid.shape, self.tile)
        tile = torch.repeat_interleave(
            torch.arange(len(self.tile_counts), device="cpu"), self.tile_counts
        )
        before = torch.cat(
            [torch.zeros(1, dtype=torch.int64, device="cpu"), self.tile_counts.cumsum(0)]
        )
        place = self.tile_starts[tile] + torch.arange(len(tokens), device="cpu") - before[tile]
        inverse = torch.empty(self.grid.seqlen, dtype=torch.int64, device="cpu")
        inverse[self.grid.video_start + tokens] = place
        text = torch.arange(self.grid.text, device="cpu")
        inverse[self.grid.text_start + text] = self.text_start + text
        return inverse

    def apply(self, x: Tensor, dim: int) -> Tensor:
        """`x` with its tokens, in raster order along `dim`, put into this order; -1 slots are 0.

        Raises:
            PlanError: if `x` has another length along `dim`.
        """
        _check_length(x, dim, self.grid.seqlen, "in raster order")
        slots = self.slots.to(x.device)
        if self.is_compact:
            return x.index_select(dim, slots)
        shape = [1] * x.ndim
        shape[dim] = len(slots)
        taken = x.index_select(dim, slots.clamp(min=0))
        return taken.masked_fill((slots == PAD).view(shape), 0)

    def undo(self, x: Tensor, dim: int) -> Tensor:
        """The inverse of `apply`: tokens in raster order again; -1 slots are dropped.

        Raises:
            PlanError: if `x` has another length along `dim`.
        """
        _check_length(x, dim, self.seqlen, "in this order")
        return x.index_select(dim, self.inverse.to(x.device))

    def to_json(self) -> dict[str, Any]:
        """All but the grid as JSON values, as `Provenance.token_order` keeps them."""
        return {"tile": list(self.tile), "multiple": self.multiple}

    @classmethod
    def from_json(cls, grid: Grid, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(grid=grid, tile=tuple(fields["tile"]), multiple=fields["multiple"])

    @classmethod
    def from_provenance(cls, provenance: Provenance) -> Self | None:
        """The order of a plan's tokens, or None where it has no grid."""
        grid = Grid.from_provenance(provenance)
        if grid is None:
            return None
        if provenance.token_order is None:
            return cls.raster(grid)
        return cls.from_json(grid, provenance.token_order)


def _tile_tokens(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> Tensor:
    """Raster numbers of the video's tokens in compact tile order, int64 [t * h * w]."""
    # A tile longer than its axis is that axis: no memory for tokens that it does not hold.
    sides = [min(n, c) for n, c in zip(shape, tile, strict=True)]
    tiles = [-(-n // c) for n, c in zip(shape, sides, strict=True)]
    whole = [n * c for n, c in zip(tiles, sides, strict=True)]
    t, h, w = shape
    padded = torch.full(whole, PAD, device="cpu")
    padded[:t, :h, :w] = torch.arange(t * h * w, device="cpu").view(shape)
    split = padded.view(tiles[0], sides[0], tiles[1], sides[1], tiles[2], sides[2])
    flat = split.permute(0, 2, 4, 1, 3, 5).reshape(-1)
    return flat[flat != PAD]


def _check_length(x: Tensor, dim: int, wanted: int, order: str) -> None:
    if not isinstance(x, Tensor):
        raise PlanTypeError(
            sentence(
                what="argument is not a tensor",
                where="x",
                got=type(x).__name__,
                wanted="a torch.Tensor",
                remedy="pass the tensor whose tokens are to be moved",
            )
        )
    if x.shape[dim] != wanted:
        raise PlanError(
            sentence(
                what="tensor does not have the tokens of the grid",
                where=f"x, axis {dim}",
                got=x.shape[dim],
                wanted=f"{wanted} tokens {order}",
                remedy="pass the axis that counts tokens, text included",
            )
        )
