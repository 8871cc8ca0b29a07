"""Float32 accumulators to gradients in the inputs' dtype, scaled; rows may be packed."""

from typing import Any

import cutlass
from cutlass import BFloat16, Float16, Float32, const_expr, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from kernels_sm100.backward_config import TILE, BackwardConfig

VECTOR = 8  # elements of a 16-byte store
DTYPE = {"bfloat16": BFloat16, "float16": Float16}


class Postprocess:
    """The kernel of one configuration; `cute.compile` takes an instance."""

    def __init__(self, config: BackwardConfig) -> None:
        self.head_dim = config.head_dim
        self.pack = config.rows_per_token

    @cute.jit
    def __call__(self, sums: cute.Tensor, out: cute.Tensor, scale: Float32, stream: Any) -> None:
        """Launch the kernel.

        Args:
            sums: float32 [B, H / G, T, D / 4, 128, 4], see NOTE [Accumulators]: packed rows with
                PackGQA, else G is 1.
            out: [B, S, H, D], written: scale * sums.
            scale: of every element.
            stream: CUDA stream.
        """
        self.kernel(sums, out, scale).launch(
            grid=(sums.shape[2], sums.shape[1], sums.shape[0]),
            block=(TILE, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, sums: cute.Tensor, out: cute.Tensor, scale: Float32) -> None:
        """A thread owns a row; each of its loads is next to those of its neighbours."""
        thread = cute.arch.thread_idx()[0]
        tile, head, batch = cute.arch.block_idx()
        row = tile * TILE + thread
        token, of_head = row, head
        if const_expr(self.pack > 1):
            token, of_head = row // self.pack, head * self.pack + row % self.pack
        if token < out.shape[1]:
            line = out[batch, token, of_head, None]
            target = cute.logical_divide(line, cute.make_layout(VECTOR))
            for i in cutlass.range_constexpr(self.head_dim // VECTOR):
                values = cute.make_rmem_tensor((4, 2), Float32)
                for j in cutlass.range_constexpr(2):
                    source = sums[batch, head, tile, 2 * i + j, thread, None]
                    cute.autovec_copy(source, values[None, j])
                narrow = cute.make_rmem_tensor(VECTOR, out.element_type)
                flat = cute.make_tensor(values.iterator, cute.make_layout(VECTOR))
                narrow.store((flat.load() * scale).to(out.element_type))
                cute.autovec_copy(narrow, target[None, i])


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `Postprocess.__call__` by name, without storage."""
    batch, seqlen, heads, row_heads = (cute.sym_int() for _ in range(4))
    strides = (cute.sym_int64(divisibility=8) for _ in range(3))
    sums = (batch, row_heads, cute.sym_int(), config.head_dim // 4, TILE, 4)
    out = (batch, seqlen, heads, config.head_dim)
    return {
        "sums": make_fake_compact_tensor(
            Float32, sums, stride_order=(5, 4, 3, 2, 1, 0), assumed_align=16
        ),
        "out": make_fake_tensor(DTYPE[config.dtype], out, (*strides, 1), assumed_align=16),
        "scale": Float32(1.0),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
