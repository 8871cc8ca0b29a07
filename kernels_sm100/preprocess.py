"""What the backward needs of each query row, and zeroed accumulators.

    bias  = -LSE log2(e)             -inf where a row has no key, or is past the end
    delta = sum_d O dO - dLSE        0 there

NOTE [Rows without a key]: with P = exp2(scale log2(e) S + bias) and dS = P (dP - delta), a row
whose bias is -inf has P = 0 and dS = 0 in every block, whatever the lists say: no NaN comes of
LSE = -inf, and the queries past the end of a ragged sequence need no mask.

A CTA writes 128 rows, packed or of a head, and its own share of what is to be cleared; no element
is written twice.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute

from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.backward_fakes import BackwardFakes, compact, stream
from kernels_sm100.softmax import LOG2_E

THREADS = 256
LANES = 8  # lanes that share a row
VECTOR = 8  # elements of a 16-byte load


class Preprocess:
    """The kernel of one configuration; `cute.compile` takes an instance."""

    def __init__(self, config: BackwardConfig) -> None:
        self.head_dim = config.head_dim
        self.pack = config.rows_per_token

    @cute.jit
    def __call__(
        self,
        o: cute.Tensor,
        do: cute.Tensor,
        lse: cute.Tensor,
        dlse: cute.Tensor,
        bias: cute.Tensor,
        delta: cute.Tensor,
        clear_a: cute.Tensor,
        clear_b: cute.Tensor,
        stream: Any,
    ) -> None:
        """Launch the kernel.

        Args:
            o: [B, SQ, HQ, D].
            do: likewise, the gradient of o.
            lse: float32 [B, HQ, SQ], natural log; -inf where a row has no key.
            dlse: float32 [B, HQ, SQ], its gradient.
            bias: float32 [B, HQ / G, M * 128], written: packed rows with PackGQA, else G is 1.
            delta: likewise, written.
            clear_a: float32 [n], n a multiple of 4: set to zero.
            clear_b: likewise.
            stream: CUDA stream.
        """
        self.kernel(o, do, lse, dlse, bias, delta, clear_a, clear_b).launch(
            grid=(delta.shape[2] // TILE, delta.shape[1], delta.shape[0]),
            block=(THREADS, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        o: cute.Tensor,
        do: cute.Tensor,
        lse: cute.Tensor,
        dlse: cute.Tensor,
        bias: cute.Tensor,
        delta: cute.Tensor,
        clear_a: cute.Tensor,
        clear_b: cute.Tensor,
    ) -> None:
        """Eight lanes share a row, so that each of their loads is a stretch of 128 bytes."""
        thread = cute.arch.thread_idx()[0]
        tile, head, batch = cute.arch.block_idx()
        lane = thread % LANES
        for i in cutlass.range_constexpr(TILE * LANES // THREADS):
            row = tile * TILE + i * (THREADS // LANES) + thread // LANES
            token, of_head = row, head
            if const_expr(self.pack > 1):
                token, of_head = row // self.pack, head * self.pack + row % self.pack
            total = Float32(0.0)
            base = -Float32.inf
            if token < o.shape[1]:
                for j in cutlass.range_constexpr(self.head_dim // (LANES * VECTOR)):
                    a = self.vector(o, batch, token, of_head, j * LANES + lane)
                    b = self.vector(do, batch, token, of_head, j * LANES + lane)
                    for n in cutlass.range_constexpr(VECTOR):
                        total += a[n] * b[n]
            for step in cutlass.range_constexpr(3):
                total += cute.arch.shuffle_sync_bfly(total, offset=1 << step)
            if token < o.shape[1]:
                value, gradient = lse[batch, of_head, token], dlse[batch, of_head, token]
                some = value != -Float32.inf  # selects, no branch
                base = -value * LOG2_E if some else -Float32.inf
                total = total - gradient if some else Float32(0.0)
            if lane == 0:
                bias[batch, head, row] = base
                delta[batch, head, row] = total
        grid = cute.arch.grid_dim()
        cta = (batch * grid[1] + head) * grid[0] + tile
        self.clear(clear_a, cta * THREADS + thread, grid[0] * grid[1] * grid[2] * THREADS)
        self.clear(clear_b, cta * THREADS + thread, grid[0] * grid[1] * grid[2] * THREADS)

    @cute.jit
    def vector(
        self, tensor: cute.Tensor, batch: Int32, row: Int32, head: Int32, index: Int32
    ) -> cute.Tensor:
        """Elements 8 index to 8 index + 7 of a row, as float32."""
        source = cute.logical_divide(tensor[batch, row, head, None], cute.make_layout(VECTOR))
        raw = cute.make_rmem_tensor(VECTOR, tensor.element_type)
        cute.autovec_copy(source[None, index], raw)
        wide = cute.make_rmem_tensor(VECTOR, Float32)
        wide.store(raw.load().to(Float32))
        return wide

    @cute.jit
    def clear(self, target: cute.Tensor, first: Int32, stride: Int32) -> None:
        """Zero a flat tensor, four elements at a time."""
        vectors = cute.logical_divide(target, cute.make_layout(4))
        zero = cute.make_rmem_tensor(4, Float32)
        zero.fill(0.0)
        index = first
        while index < target.shape[0] // 4:
            cute.autovec_copy(zero, vectors[None, index])
            index += stride


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `Preprocess.__call__` by name, without storage."""
    fakes = BackwardFakes(config)

    def of_heads() -> Any:
        return compact(Float32, fakes.batch, fakes.heads, fakes.seqlen_q)

    return {
        "o": fakes.of_queries(),
        "do": fakes.of_queries(),
        "lse": of_heads(),
        "dlse": of_heads(),
        "bias": fakes.of_rows(),
        "delta": fakes.of_rows(),
        "clear_a": compact(Float32, cute.sym_int(), align=16),
        "clear_b": compact(Float32, cute.sym_int(), align=16),
        "stream": stream(),
    }
