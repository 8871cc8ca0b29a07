"""`ForwardConfig`: everything about the forward kernel that is decided when it is compiled."""

from dataclasses import dataclass

from kernels_sm100.errors import ConfigError, sentence
from kernels_sm100.field_types import check_field_types
from kernels_sm100.modes import InnerLoadMode, OuterStoreMode

TILE_Q = 128  # packed rows of one Q tile: the lanes of tensor memory
TILE_K = 128  # keys of one KV block
MASK_WORDS = TILE_K // 32  # words of a row of a bit tile: one 16-byte load
TMEM_COLUMNS = 512
SHARED_BYTES = 227 * 1024
DTYPES = ("bfloat16", "float16")
MAX_STAGES = 32
# Barriers, the TMEM address and the tokens of a gathered chunk, in front of the tiles.
_BARRIER_BYTES = 1024
_GATHERED_DIMS = (64, 128)  # whole spans of the 128-byte swizzle
_LAZY_LOG2 = 8.0  # P stays below 2^8, far inside the range of both dtypes


def _refuse(field: str, got: object, wanted: object, remedy: str) -> ConfigError:
    return ConfigError(
        sentence(
            what=f"{field} not available",
            where="ForwardConfig",
            got=got,
            wanted=wanted,
            remedy=remedy,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConfig:
    """What the forward kernel is compiled for. Every field changes the code.

    Attributes:
        dtype: "bfloat16" or "float16", of q, k, v and o.
        head_dim: D of q and k: a multiple of 16 up to 128.
        head_dim_v: D of v and o: likewise.
        group: query heads per KV head.
        pack_gqa: rows are packed, row = token * group + head in group; the group divides 128.
        q_tiles: Q tiles of 128 packed rows that a CTA works on, 1 or 2.
        parts: tile ids that an entry of the walk carries: `q_tiles`, or 1 where both tiles share
            one (a list row that spans several CTAs).
        stages: K or V blocks in flight in shared memory; as many as fit if None.
        inner_load: how K and V come to shared memory: `TMA` for listed blocks of 128 keys, the
            other two for listed tokens.
        outer_store: how O goes to global memory: a tile at a time (`TMA`), by one bulk copy a row
            (`TMA_1D`), or from registers (`STG`), which takes no shared memory for O.
        lazy_rescale: leave the row maximum behind by up to 2^8 rather than rescale O, a branch on
            data. Without it O is rescaled in every step.

    Raises:
        ConfigError: for values that no kernel is written for.
    """

    dtype: str = "bfloat16"
    head_dim: int = 128
    head_dim_v: int = 128
    group: int = 1
    pack_gqa: bool = False
    q_tiles: int = 2
    parts: int = 2
    stages: int | None = None
    inner_load: InnerLoadMode = InnerLoadMode.TMA
    outer_store: OuterStoreMode = OuterStoreMode.TMA
    lazy_rescale: bool = True

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.dtype not in DTYPES:
            raise _refuse("dtype", repr(self.dtype), f"one of {', '.join(DTYPES)}", "cast q, k, v")
        for name in ("head_dim", "head_dim_v"):
            value = getattr(self, name)
            if value % 16 or not 16 <= value <= 128:
                raise _refuse(name, value, "a multiple of 16 from 16 to 128", "pad the heads")
        if self.group < 1:
            raise _refuse("group", self.group, "at least 1", "give query heads per KV head")
        if self.pack_gqa and TILE_Q % self.group:
            raise _refuse(
                "packed group", self.group, f"a divisor of {TILE_Q}", "do not pack: pack_gqa=False"
            )
        if self.q_tiles not in (1, 2):
            raise _refuse("q_tiles", self.q_tiles, "1 or 2", "use 2 where a head has > 128 rows")
        if self.parts not in (1, self.q_tiles):
            raise _refuse(
                "parts", self.parts, f"1 or q_tiles={self.q_tiles}", "lower the plan for this shape"
            )
        if self.gathered and not {self.head_dim, self.head_dim_v} <= set(_GATHERED_DIMS):
            raise _refuse(
                "head dimensions of gathered rows",
                (self.head_dim, self.head_dim_v),
                f"each one of {_GATHERED_DIMS}",
                "pad the heads, or list blocks",
            )
        if self.gathered and self.parts != self.q_tiles:
            raise _refuse(
                "parts of a gathered list",
                self.parts,
                f"q_tiles={self.q_tiles}",
                "pass as many",
            )
        if self.stages is not None and not 2 <= self.stages <= min(
            self.stages_that_fit, MAX_STAGES
        ):
            raise _refuse(
                "stages",
                self.stages,
                f"2 to {min(self.stages_that_fit, MAX_STAGES)}",
                "leave it None for as many as fit",
            )

    @property
    def gathered(self) -> bool:
        """Whether K and V are gathered by token."""
        return self.inner_load is not InnerLoadMode.TMA

    @property
    def rows_per_bit_row(self) -> int:
        """Packed rows that share a row of a bit tile: 1 where heads may list their own tokens."""
        return 1 if self.gathered else self.rows_per_token

    @property
    def rows_per_token(self) -> int:
        """Packed rows of a token."""
        return self.group if self.pack_gqa else 1

    @property
    def cta_rows(self) -> int:
        """Packed rows of a CTA."""
        return self.q_tiles * TILE_Q

    @property
    def stages_that_fit(self) -> int:
        """K or V blocks that fit beside Q and O."""
        q = self.q_tiles * TILE_Q * self.head_dim * 2
        scales = self.q_tiles * TILE_Q * 2 * 4
        left = SHARED_BYTES - _BARRIER_BYTES - q - self.out_bytes - scales
        return left // self.stage_bytes

    @property
    def out_bytes(self) -> int:
        """Bytes of O in shared memory."""
        if self.outer_store is OuterStoreMode.STG:
            return 0
        return self.q_tiles * TILE_Q * self.head_dim_v * 2

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage, K or V."""
        return TILE_K * max(self.head_dim, self.head_dim_v) * 2

    @property
    def kv_stages(self) -> int:
        """Stages of the ring."""
        return self.stages or min(self.stages_that_fit, MAX_STAGES)

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers a thread of the softmax, correction and other warps; 65536 in all.

        Head dimensions that are no power of two make more descriptors for the MMA and load warps to
        hold, and without registers for them these would be spilled.
        """
        plain = all(dim in {16, 32, 64, 128} for dim in (self.head_dim, self.head_dim_v))
        return (192, 80, 48) if plain else (184, 88, 56)

    @property
    def rescale_log2(self) -> float:
        """How far, in powers of two, the row maximum may stay behind."""
        return _LAZY_LOG2 if self.lazy_rescale else 0.0
