"""`BackwardConfig`: everything about the backward kernels that is decided when they are compiled.

NOTE [Accumulators]: sums over CTAs are float32 in global memory, [B, heads, tiles, D / 4, 128, 4]:
element (row, d) of a tile of 128 rows at [d // 4, row, d % 4]. A thread that owns a row writes 16
bytes next to those of its neighbours, in shared memory without bank conflicts and in global memory
as one stretch, which a bulk reduction adds. Rows past the end of a sequence exist, and stay unread.
Sums of gathered rows are [B, HK, SK, D]: rows lie apart, and each is added on its own.
"""

from dataclasses import dataclass

from kernels_sm100.config import DTYPES
from kernels_sm100.errors import ConfigError, sentence
from kernels_sm100.field_types import check_field_types
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode

TILE = 128  # queries and keys of a tile
DIRECTIONS = ("loop_q", "loop_k")
HEAD_DIMS = (64, 128)
MAX_PARTS = 4
# (inner_load, inner_store) of LoopK over listed tokens.
_GATHERED = tuple(
    (load, store)
    for load in (InnerLoadMode.CP_ASYNC, InnerLoadMode.TMA_GATHER4)
    for store in (InnerStoreMode.TMA_1D, InnerStoreMode.ATOMIC_ADD)
)


def _refuse(what: str, got: object, wanted: object, remedy: str) -> ConfigError:
    return ConfigError(
        sentence(what=what, where="BackwardConfig", got=got, wanted=wanted, remedy=remedy)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardConfig:
    """What a backward kernel, its preprocess and its postprocess are compiled for.

    Attributes:
        direction: "loop_q", a CTA owns a KV block and adds to dQ, or "loop_k", a CTA owns a Q tile
            and adds to dK and dV.
        dtype: "bfloat16" or "float16", of q, k, v, o and their gradients.
        head_dim: D of all of them, 64 or 128.
        group: query heads per KV head.
        pack_gqa: rows are packed, row = token * group + head in group; the group divides 128.
        descending: the inner loop runs through lists from their ends.
        parts: Q tiles of a coarse entry of LoopQ, 1, 2 or 4; LoopK has 1.
        head_split: CTAs of LoopQ that share a group's heads, a divisor of the group; if more than
            1, dK and dV are added to float32 sums, as those of LoopK are.
        deterministic: LoopQ adds to each dQ tile in the plan's write order.
        spt: that order descends in KV blocks (the walk was made with `spt=True`).
        inner_load: how the stream comes to shared memory: `TMA` for listed blocks; K and V of LoopK
            by `CP_ASYNC` or `TMA_GATHER4` for listed tokens.
        inner_store: how sums are added to global memory: `TMA` whole tiles; of listed tokens by
            `TMA_1D` a row at a time, or by `ATOMIC_ADD`.

    Raises:
        ConfigError: for values that no kernel is written for.
    """

    direction: str = "loop_q"
    dtype: str = "bfloat16"
    head_dim: int = 128
    group: int = 1
    pack_gqa: bool = False
    descending: bool = False
    parts: int = 1
    head_split: int = 1
    deterministic: bool = False
    spt: bool = False
    inner_load: InnerLoadMode = InnerLoadMode.TMA
    inner_store: InnerStoreMode = InnerStoreMode.TMA

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.direction not in DIRECTIONS:
            raise _refuse(
                "direction not available",
                repr(self.direction),
                f"one of {', '.join(DIRECTIONS)}",
                "name the loop that is inside",
            )
        if self.dtype not in DTYPES:
            raise _refuse(
                "dtype not available",
                repr(self.dtype),
                f"one of {', '.join(DTYPES)}",
                "cast q, k, v",
            )
        if self.head_dim not in HEAD_DIMS:
            raise _refuse(
                "head_dim not available", self.head_dim, "64 or 128", "pad the heads with zeros"
            )
        if self.group < 1:
            raise _refuse("group not available", self.group, "at least 1", "count query heads")
        if self.pack_gqa and TILE % self.group:
            raise _refuse(
                "packed group not available",
                self.group,
                f"a divisor of {TILE}",
                "do not pack: pack_gqa=False",
            )
        if self.direction == "loop_k" and self.deterministic:
            raise _refuse(
                "deterministic dK and dV not available",
                "direction='loop_k'",
                "direction='loop_q', which owns dK and dV",
                "use LoopQ, or do without deterministic=True",
            )
        if self.parts not in ((1, 2, MAX_PARTS) if self.direction == "loop_q" else (1,)):
            raise _refuse(
                "parts not available",
                self.parts,
                "1, 2 or 4 for loop_q, 1 for loop_k",
                "lower the plan for this configuration",
            )
        if self.head_split != 1:
            self._check_split()
        modes = (self.inner_load, self.inner_store)
        blocks = (InnerLoadMode.TMA, InnerStoreMode.TMA)
        if modes not in (blocks, *(_GATHERED if self.direction == "loop_k" else ())):
            raise _refuse(
                "modes not available",
                f"{self.inner_load.name}, {self.inner_store.name} of {self.direction}",
                "TMA, TMA; or of loop_k CP_ASYNC or TMA_GATHER4 with TMA_1D or ATOMIC_ADD",
                "take those of modes.derive_modes",
            )
        if self.spt and not self.deterministic:
            raise _refuse(
                "spt without an order",
                "deterministic=False",
                "deterministic=True",
                "leave spt out",
            )

    def _check_split(self) -> None:
        """Refuse a split that is not available."""
        if self.direction == "loop_k" or self.pack_gqa:
            raise _refuse(
                "head_split not available",
                f"direction={self.direction!r}, pack_gqa={self.pack_gqa}",
                "'loop_q', whose CTAs loop over the heads of a group, which are not packed",
                "leave head_split out",
            )
        if self.deterministic:
            raise _refuse(
                "head_split not available",
                f"head_split={self.head_split}, deterministic=True",
                "1, so that one CTA owns a dK and dV",
                "leave one of them out",
            )
        if self.head_split < 1 or self.group % self.head_split:
            raise _refuse(
                "head_split not available",
                self.head_split,
                f"a divisor of the group, {self.group}",
                "split into equal shares of heads",
            )

    @property
    def heads_each(self) -> int:
        """Query heads, or packed heads, that a work item of LoopQ loops over."""
        return self.group // self.rows_per_token // self.head_split

    @property
    def rows_per_token(self) -> int:
        """Packed rows of a token."""
        return self.group if self.pack_gqa else 1

    @property
    def gathered(self) -> bool:
        """Whether K and V are gathered by token."""
        return self.inner_load is not InnerLoadMode.TMA

    @property
    def rows_per_bit(self) -> int:
        """Packed rows that share a bit: 1 where heads may list their own tokens."""
        return 1 if self.gathered else self.rows_per_token

    @property
    def mask_words(self) -> int:
        """Words of bits that a key has in a bit tile of S^T."""
        return -(-TILE // self.rows_per_bit // 32)

    @property
    def stages(self) -> int:
        """Buffers of the second streamed tensor: dO of LoopQ, V of LoopK. The first has two."""
        return 1 if self.head_dim == 128 else 2  # what fits into shared memory
