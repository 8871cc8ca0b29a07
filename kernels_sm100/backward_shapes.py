"""Shapes of the tensors beside a backward, and which tables its kernels walk.

Importing this module imports neither cutlass nor torch.
"""

from dataclasses import replace

from kernels_sm100.backward_config import TILE, BackwardConfig

TABLES = ("pattern_id", "row_ptr", "col", "tile_id", "write_order", "tiles", "order")
TOKEN_TABLES = ("tokens", "keys")  # of gathered keys
_FOUR = 4  # rows of a sum lie in pieces of so many elements, see NOTE [Accumulators]


def tables_of(config: BackwardConfig) -> tuple[str, ...]:
    """Names of the tables that a kernel walks, in its order."""
    if config.direction == "loop_q":
        return TABLES
    names = tuple(name for name in TABLES if name != "write_order")
    return (*names, *TOKEN_TABLES) if config.gathered else names


def rows_config(config: BackwardConfig) -> BackwardConfig:
    """What the preprocess, and the postprocess of dQ, are compiled for: fields that they read."""
    packed = config.rows_per_token > 1
    plain = BackwardConfig(dtype=config.dtype, head_dim=config.head_dim)
    return replace(plain, group=config.group, pack_gqa=True) if packed else plain


def keys_config(config: BackwardConfig) -> BackwardConfig:
    """What the postprocess of dK and dV is compiled for."""
    plain = BackwardConfig(dtype=config.dtype, head_dim=config.head_dim)
    if not config.gathered:
        return plain
    return replace(
        plain, direction="loop_k", inner_load=config.inner_load, inner_store=config.inner_store
    )


def row_tiles(config: BackwardConfig, seqlen_q: int) -> int:
    """M: tiles of 128 rows, packed or not, of a head."""
    return -(-seqlen_q * config.rows_per_token // TILE)


def rows_shape(
    config: BackwardConfig, batch: int, heads: int, seqlen_q: int
) -> tuple[int, int, int]:
    """Of bias and delta: (B, HQ, M * 128), or (B, HK, M * 128) of packed rows."""
    return batch, heads // config.rows_per_token, row_tiles(config, seqlen_q) * TILE


def sums_shape(config: BackwardConfig, batch: int, heads: int, tiles: int) -> tuple[int, ...]:
    """Of float32 sums, see NOTE [Accumulators]."""
    return batch, heads, tiles, config.head_dim // _FOUR, TILE, _FOUR


def dq_sums_shape(config: BackwardConfig, batch: int, heads: int, seqlen_q: int) -> tuple[int, ...]:
    """Of LoopQ's sums of dQ; heads are HQ."""
    tiles = row_tiles(config, seqlen_q)
    return sums_shape(config, batch, heads // config.rows_per_token, tiles)


def kv_sums_shape(
    config: BackwardConfig, batch: int, kv_heads: int, seqlen_k: int
) -> tuple[int, ...]:
    """Of sums of dK, and of dV; of gathered keys row by row."""
    if config.gathered:
        return batch, kv_heads, seqlen_k, config.head_dim
    return sums_shape(config, batch, kv_heads, -(-seqlen_k // TILE))
