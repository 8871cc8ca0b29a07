"""Arguments of the backward kernels without storage: every size and stride is dynamic."""

from typing import Any

from cutlass import BFloat16, Float16, Float32, Int32, Int64, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from kernels_sm100.backward_config import TILE, BackwardConfig

DTYPE = {"bfloat16": BFloat16, "float16": Float16}


class BackwardFakes:
    """Tensors of one configuration that agree in their sizes.

    Attributes:
        batch, seqlen_q, seqlen_k, heads, kv_heads: B, SQ, SK, HQ, HK.
        row_heads: HQ, or HK where rows of a group are packed.
        row_tiles: tiles of 128 rows of a head.
    """

    def __init__(self, config: BackwardConfig) -> None:
        self.config = config
        self.batch, self.seqlen_q, self.seqlen_k = (cute.sym_int() for _ in range(3))
        self.heads, self.row_heads, self.kv_heads = (cute.sym_int() for _ in range(3))
        self.row_tiles, self.padded = cute.sym_int(), cute.sym_int()

    def activation(self, seqlen: Any, heads: Any) -> Any:
        """[B, S, H, D] of the configuration's dtype, any strides that TMA takes."""
        strides = (cute.sym_int64(divisibility=8) for _ in range(3))
        shape = (self.batch, seqlen, heads, self.config.head_dim)
        return make_fake_tensor(DTYPE[self.config.dtype], shape, (*strides, 1), assumed_align=16)

    def of_queries(self) -> Any:
        """[B, SQ, HQ, D]."""
        return self.activation(self.seqlen_q, self.heads)

    def of_keys(self) -> Any:
        """[B, SK, HK, D]."""
        return self.activation(self.seqlen_k, self.kv_heads)

    def of_rows(self) -> Any:
        """Float32 [B, row heads, padded rows]: bias, delta."""
        return compact(Float32, self.batch, self.row_heads, self.padded, align=16)

    def sums(self, heads: Any, tiles: Any) -> Any:
        """Float32 sums, see NOTE [Accumulators]."""
        shape = (self.batch, heads, tiles, self.config.head_dim // 4, TILE, 4)
        return compact(Float32, *shape, align=16)

    def inputs(self) -> dict[str, Any]:
        """What both directions read."""
        return {
            "q": self.of_queries(),
            "k": self.of_keys(),
            "v": self.of_keys(),
            "do": self.of_queries(),
            "bias": self.of_rows(),
            "delta": self.of_rows(),
        }

    def tables(self, *, write_order: bool) -> dict[str, Any]:
        """Those of a walk."""
        parts = self.config.parts
        turns = {"write_order": compact(Int32, cute.sym_int(), parts)} if write_order else {}
        return {
            "pattern_id": compact(Int32, cute.sym_int(), cute.sym_int()),
            "row_ptr": compact(Int64, cute.sym_int()),
            "col": compact(Int32, cute.sym_int()),
            "tile_id": compact(Int32, cute.sym_int(), parts),
            **turns,
            "tiles": compact(Int32, cute.sym_int(), TILE, self.config.mask_words, align=16),
            "order": compact(Int32, cute.sym_int()),
        }


def compact(kind: Any, *shape: Any, align: int | None = None) -> Any:
    """A tensor without gaps, the last size fastest."""
    order = tuple(range(len(shape)))[::-1]
    return make_fake_compact_tensor(kind, shape, stride_order=order, assumed_align=align)


def scalars() -> dict[str, Any]:
    """What both directions take last."""
    return {
        "scale": Float32(0.0),
        "scale_log2": Float32(0.0),
        "ctas": Int32(0),
        "stream": stream(),
    }


def stream() -> Any:
    """The stream that the caller's environment gives."""
    return make_fake_stream(use_tvm_ffi_env_stream=True)
