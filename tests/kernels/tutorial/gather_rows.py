"""out[i] = x[index[i]], four rows of x a TMA load (tile::gather4), rows out of bounds as zeros."""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

THREADS = 64


@dataclass(frozen=True)
class GatherConfig:
    rows: int = 16  # a CTA, a multiple of 4
    columns: int = 64  # of x, at most 128 bytes
    swizzle: int = 3


class Gather:
    def __init__(self, config):
        self.config = config
        self.tile = (config.rows, config.columns)
        self.bytes = config.rows * config.columns * 2

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        x: cute.Tensor,
        index: cute.Tensor,
        out: cute.Tensor,
        layout: cute.ComposedLayout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        memory = cutlass.memory.SmemAllocator()
        barrier = memory.allocate_array(cutlass.Int64, 1)
        tile = memory.allocate_tensor(
            cutlass.BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner
        )
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        shared, rows, which = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2),
            [
                cute.group_modes(cute.local_tile(tensor, self.tile, (None, 0)), 0, 2)
                for tensor in (x, index)
            ],
        )  # fmt: skip
        rows, which = rows[None, block], which[None, block]
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.bytes)
            cute.copy(load, [rows, which], shared, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in cutlass.range(thread, self.config.rows * self.config.columns, THREADS):
            r, c = i // self.config.columns, i % self.config.columns
            out[block * self.config.rows + r, c] = tile[r, c]

    @cute.jit
    def __call__(self, x: cute.Tensor, index: cute.Tensor, out: cute.Tensor, stream):
        layout = cute.make_composed_layout(
            cute.make_swizzle(self.config.swizzle, 4, 3), 0,
            cute.make_layout(self.tile, stride=(self.config.columns, 1)),
        )  # fmt: skip
        # The rows that each row of the result comes from, the same for all columns.
        where = cute.make_tensor(
            index.iterator, cute.make_layout((index.shape[0], self.config.columns), stride=(1, 0))
        )
        load, source = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensor2DGather4G2SOp(), x, layout, self.tile, gmem_coord_tensor=where
        )
        self.kernel(load, source, where, out, layout).launch(
            grid=(index.shape[0] // self.config.rows, 1, 1), block=(THREADS, 1, 1), stream=stream
        )


def build(config):
    rows, length = cute.sym_int32(), cute.sym_int32(divisibility=config.rows)
    return Gather(config), {
        "x": make_fake_compact_tensor(
            cutlass.BFloat16, (rows, config.columns), stride_order=(1, 0), assumed_align=16
        ),
        "index": make_fake_compact_tensor(cutlass.Int32, (length,), assumed_align=16),
        "out": make_fake_compact_tensor(
            cutlass.BFloat16, (length, config.columns), stride_order=(1, 0), assumed_align=16
        ),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
