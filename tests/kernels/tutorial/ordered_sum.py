"""CTAs add their rows to one row by 1D bulk reductions; a semaphore fixes the order of the sum.

Without the order float32 sums differ from run to run: this is how a deterministic dQ is made.
"""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@dataclass(frozen=True)
class OrderedSumConfig:
    columns: int = 256
    threads: int = 64
    ordered: bool = True
    descending: bool = False


class OrderedSum:
    def __init__(self, config):
        self.config = config

    @cute.kernel
    def kernel(self, x: cute.Tensor, total: cute.Tensor, semaphore: cute.Tensor):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        memory = cutlass.memory.SmemAllocator()
        row = memory.allocate_tensor(cutlass.Float32, cute.make_layout(config.columns), 128)
        for i in cutlass.range(thread, config.columns, config.threads):
            row[i] = x[block, i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if thread == 0:
            turn = blocks - 1 - block if cutlass.const_expr(config.descending) else block
            if cutlass.const_expr(config.ordered):
                found = cutlass.Int32(-1)
                while found != turn:
                    found = cute.arch.load(
                        semaphore.iterator.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu"
                    )
                # What the CTAs before added by the async proxy is seen by this one's.
                cute.arch.inline_ptx("fence.proxy.async.global;")
            cute.arch.inline_ptx(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
                " [{$r0}], [{$r1}], {$r2};",
                read_only_args=[
                    total.iterator.toint(), row.iterator.toint(), cutlass.Int32(config.columns * 4),
                ],
            )  # fmt: skip
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=False)
            if cutlass.const_expr(config.ordered):
                cute.arch.inline_ptx("fence.proxy.async.global;")
                cute.arch.red(
                    semaphore.iterator.llvm_ptr, cutlass.Int32(1),
                    op="add", dtype="s32", sem="release", scope="gpu",
                )  # fmt: skip

    @cute.jit
    def __call__(self, x: cute.Tensor, total: cute.Tensor, semaphore: cute.Tensor, stream):
        self.kernel(x, total, semaphore).launch(
            grid=(x.shape[0], 1, 1), block=(self.config.threads, 1, 1), stream=stream
        )


def build(config):
    rows = cute.sym_int32()
    return OrderedSum(config), {
        "x": make_fake_compact_tensor(
            cutlass.Float32, (rows, config.columns), stride_order=(1, 0), assumed_align=16
        ),
        "total": make_fake_compact_tensor(cutlass.Float32, (config.columns,), assumed_align=16),
        "semaphore": make_fake_compact_tensor(cutlass.Int32, (1,)),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
