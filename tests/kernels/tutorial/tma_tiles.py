"""A tile by TMA into swizzled shared memory, read and changed by threads, and out again by TMA.

`seen` is what threads read through the layout, so that a swizzle which loads and stores agree upon
but the layout does not know is found; `out` is seen + 1, stored or added.
"""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

TYPES = {
    "float32": cutlass.Float32, "bfloat16": cutlass.BFloat16, "float16": cutlass.Float16,
    "int32": cutlass.Int32,
}  # fmt: skip


@dataclass(frozen=True)
class TileConfig:
    dtype: str = "float32"
    rows: int = 32
    columns: int = 32
    swizzle: int = 3  # 0 none, 1 of 32 bytes, 2 of 64, 3 of 128
    add: bool = False  # reduce into `out` instead of storing
    threads: int = 64


class Tiles:
    def __init__(self, config):
        self.config = config
        self.tile = (config.rows, config.columns)
        self.bytes = config.rows * config.columns * TYPES[config.dtype].width // 8

    @cute.kernel
    def kernel(
        self,
        load: cute.CopyAtom,
        source: cute.Tensor,
        store: cute.CopyAtom,
        target: cute.Tensor,
        seen: cute.Tensor,
        layout: cute.ComposedLayout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        memory = cutlass.memory.SmemAllocator()
        barrier = memory.allocate_array(cutlass.Int64, 1)
        tile = memory.allocate_tensor(
            TYPES[self.config.dtype], layout.outer, byte_alignment=1024, swizzle=layout.inner
        )
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        place = (row, column)
        shared, global_in = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2),
            cute.group_modes(cute.local_tile(source, self.tile, place), 0, 2),
        )  # fmt: skip
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.bytes)
            cute.copy(load, global_in, shared, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)

        for i in cutlass.range(thread, self.config.rows * self.config.columns, self.config.threads):
            r, c = i // self.config.columns, i % self.config.columns
            value = tile[r, c]
            at = (row * self.config.rows + r, column * self.config.columns + c)
            if at[0] < seen.shape[0] and at[1] < seen.shape[1]:
                seen[at] = value
            tile[r, c] = (value + value.dtype(1)).to(value.dtype)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()

        shared, global_out = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2),
            cute.group_modes(cute.local_tile(target, self.tile, place), 0, 2),
        )  # fmt: skip
        if warp == 0:
            if cutlass.const_expr(self.config.add):
                cute.copy(store, shared, global_out)  # CuTe elects a lane for reductions itself,
            else:
                with cute.arch.elect_one():  # and for stores it does not
                    cute.copy(store, shared, global_out)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def __call__(self, source: cute.Tensor, target: cute.Tensor, seen: cute.Tensor, stream):
        layout = cute.make_composed_layout(
            cute.make_swizzle(self.config.swizzle, 4, 3), 0,
            cute.make_layout(self.tile, stride=(self.config.columns, 1)),
        )  # fmt: skip
        store_op = (
            cpasync.CopyReduceBulkTensorTileS2GOp()
            if self.config.add
            else cpasync.CopyBulkTensorTileS2GOp()
        )
        load, source_map = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), source, layout, self.tile
        )
        store, target_map = cpasync.make_tiled_tma_atom(store_op, target, layout, self.tile)
        grid = cute.ceil_div(seen.shape, self.tile)
        self.kernel(load, source_map, store, target_map, seen, layout).launch(
            grid=(*grid, 1), block=(self.config.threads, 1, 1), stream=stream
        )


def build(config):
    rows, columns = cute.sym_int32(), cute.sym_int32(divisibility=16)
    fake = [
        make_fake_compact_tensor(
            TYPES[config.dtype], (rows, columns), stride_order=(1, 0), assumed_align=16
        )
        for _ in range(3)
    ]
    return Tiles(config), {
        "source": fake[0], "target": fake[1], "seen": fake[2],
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }  # fmt: skip
