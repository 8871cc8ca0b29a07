"""out[index[r]] = x[r] + 1 by 1D bulk copies, a row and a lane each, in and out.

This is how rows of packed ragged batches are stored, where no tensor map has a tile's shape.
"""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

THREADS = 64


@dataclass(frozen=True)
class BulkRowsConfig:
    columns: int = 48
    rows: int = 32  # a CTA, at most a warp


class BulkRows:
    def __init__(self, config):
        self.config = config

    @cute.kernel
    def kernel(self, x: cute.Tensor, index: cute.Tensor, out: cute.Tensor):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        memory = cutlass.memory.SmemAllocator()
        barrier = memory.allocate_array(cutlass.Int64, 1)
        tile = memory.allocate_tensor(
            cutlass.Float32,
            cute.make_layout((config.rows, config.columns), stride=(config.columns, 1)),
            128,
        )
        first = block * config.rows
        count = cutlass.min(x.shape[0] - first, config.rows)
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        bits = config.columns * 32
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, count * config.columns * 4)
        cute.arch.sync_threads()
        if thread < count:
            load = cute.make_copy_atom(
                cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=bits
            )
            cute.copy(load, x[first + thread, None], tile[thread, None], mbar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in cutlass.range(thread, count * config.columns, THREADS):
            r, c = i // config.columns, i % config.columns
            tile[r, c] = tile[r, c] + cutlass.Float32(1)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if thread < count:
            store = cute.make_copy_atom(
                cpasync.CopyBulkS2GOp(), cutlass.Float32, num_bits_per_copy=bits
            )
            cute.copy(store, tile[thread, None], out[index[first + thread], None])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def __call__(self, x: cute.Tensor, index: cute.Tensor, out: cute.Tensor, stream):
        self.kernel(x, index, out).launch(
            grid=(cute.ceil_div(x.shape[0], self.config.rows), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
        )


def build(config):
    rows, targets = cute.sym_int32(), cute.sym_int32()
    shape = {"stride_order": (1, 0), "assumed_align": 16}
    return BulkRows(config), {
        "x": make_fake_compact_tensor(cutlass.Float32, (rows, config.columns), **shape),
        "index": make_fake_compact_tensor(cutlass.Int32, (rows,)),
        "out": make_fake_compact_tensor(cutlass.Float32, (targets, config.columns), **shape),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
