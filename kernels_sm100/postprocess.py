"""Float32 accumulators to gradients in the inputs' dtype, scaled; rows may be packed.

NOTE [Sectors]: sums lie by column, gradients by row, and a warp that followed either would touch
the other in pieces of 16 bytes. So it takes four rows of 64 columns: its loads are stretches of 64
bytes and its stores of 128, whole sectors both.
"""

from typing import Any

import cutlass
from cutlass import Float32, const_expr, cute

from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.backward_fakes import BackwardFakes, compact, stream

VECTOR = 8  # elements of a 16-byte store
THREADS = 256
LANES = 8  # lanes that share a row


class Postprocess:
    """The kernel of one configuration; `cute.compile` takes an instance."""

    def __init__(self, config: BackwardConfig) -> None:
        self.head_dim = config.head_dim
        self.pack = config.rows_per_token
        self.gathered = config.gathered

    @cute.jit
    def __call__(self, sums: cute.Tensor, out: cute.Tensor, scale: Float32, stream: Any) -> None:
        """Launch the kernel.

        Args:
            sums: float32 [B, H / G, T, D / 4, 128, 4], see NOTE [Accumulators]: packed rows with
                PackGQA, else G is 1. Of gathered rows [B, H, S, D].
            out: [B, S, H, D], written: scale * sums.
            scale: of every element.
            stream: CUDA stream.
        """
        if const_expr(self.gathered):
            sums = self.by_tile(sums)
        self.kernel(sums, out, scale).launch(
            grid=(sums.shape[2], sums.shape[1], sums.shape[0]),
            block=(THREADS, 1, 1),
            stream=stream,
        )

    def by_tile(self, sums: cute.Tensor) -> cute.Tensor:
        """[B, H, S, D] as [B, H, T, D / 4, 128, 4], whose last tile may be cut: a view."""
        batch, heads, seqlen, width = sums.shape
        of_batch, of_head, of_row, _ = sums.stride
        layout = cute.make_layout(
            (batch, heads, cute.ceil_div(seqlen, TILE), width // 4, TILE, 4),
            stride=(of_batch, of_head, TILE * of_row, 4, of_row, 1),
        )
        return cute.make_tensor(sums.iterator, layout)

    @cute.kernel
    def kernel(self, sums: cute.Tensor, out: cute.Tensor, scale: Float32) -> None:
        """Eight lanes share a row, see NOTE [Sectors]."""
        thread = cute.arch.thread_idx()[0]
        tile, head, batch = cute.arch.block_idx()
        lane = thread % LANES
        for i in cutlass.range_constexpr(TILE * LANES // THREADS):
            line = i * (THREADS // LANES) + thread // LANES
            row = tile * TILE + line
            token, of_head = row, head
            if const_expr(self.pack > 1):
                token, of_head = row // self.pack, head * self.pack + row % self.pack
            if token < out.shape[1]:
                vectors = cute.make_layout(VECTOR)
                target = cute.logical_divide(out[batch, token, of_head, None], vectors)
                for j in cutlass.range_constexpr(self.head_dim // (LANES * VECTOR)):
                    vector = j * LANES + lane
                    values = cute.make_rmem_tensor((4, 2), Float32)
                    for part in cutlass.range_constexpr(2):
                        source = sums[batch, head, tile, 2 * vector + part, line, None]
                        cute.autovec_copy(source, values[None, part])
                    narrow = cute.make_rmem_tensor(VECTOR, out.element_type)
                    flat = cute.make_tensor(values.iterator, vectors)
                    narrow.store((flat.load() * scale).to(out.element_type))
                    cute.autovec_copy(narrow, target[None, vector])


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `Postprocess.__call__` by name, without storage."""
    fakes = BackwardFakes(config)
    sums = fakes.sums(fakes.row_heads, fakes.row_tiles)
    if config.gathered:
        rows = (fakes.batch, fakes.heads, fakes.seqlen_q, config.head_dim)
        sums = compact(Float32, *rows, align=16)
    return {"sums": sums, "out": fakes.of_queries(), "scale": Float32(1.0), "stream": stream()}
