"""One warp loads tiles by TMA into a ring of stages; other warps sum them, column by column.

Full barriers count bytes, empty barriers count warps. With more tiles than stages the ring wraps,
and every wait on either barrier matters.
"""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@dataclass(frozen=True)
class RingConfig:
    rows: int = 8  # of a tile
    columns: int = 64
    stages: int = 2
    consumers: int = 2  # warps


class Ring:
    def __init__(self, config):
        self.config = config
        self.tile = (config.rows, config.columns)
        self.bytes = config.rows * config.columns * 4

    @cute.kernel
    def kernel(self, load: cute.CopyAtom, x: cute.Tensor, out: cute.Tensor, layout: cute.Layout):
        config = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        memory = cutlass.memory.SmemAllocator()
        full = memory.allocate_array(cutlass.Int64, config.stages)
        empty = memory.allocate_array(cutlass.Int64, config.stages)
        tiles = memory.allocate_tensor(cutlass.Float32, layout, 128)
        if thread == 0:
            for stage in cutlass.range_constexpr(config.stages):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, config.consumers)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        # (rows, columns, tiles): a column of tiles a CTA
        source = cute.local_tile(x, self.tile, (None, block))
        shared, global_tiles = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2),
            cute.group_modes(source, 0, 2),
        )  # fmt: skip
        count = cute.size(source, mode=[2])
        if warp == config.consumers:
            for n in cutlass.range(count):
                stage = n % config.stages
                # The first round finds the stages empty: waiting for parity 1 of a new barrier.
                cute.arch.mbarrier_wait(empty + stage, (n // config.stages & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, self.bytes)
                cute.copy(
                    load, global_tiles[None, n], shared[None, stage], tma_bar_ptr=full + stage
                )
        else:
            column = thread
            total = cutlass.Float32(0)
            for n in cutlass.range(count):
                stage = n % config.stages
                cute.arch.mbarrier_wait(full + stage, n // config.stages & 1)
                for r in cutlass.range_constexpr(config.rows):
                    total += tiles[r, column, stage]
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(empty + stage)
            out[block * config.columns + column] = total

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream):
        config = self.config
        assert config.columns == config.consumers * 32
        layout = cute.make_layout(
            (*self.tile, config.stages),
            stride=(config.columns, 1, config.rows * config.columns),
        )
        load, source = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), x, cute.select(layout, mode=[0, 1]), self.tile
        )
        self.kernel(load, source, out, layout).launch(
            grid=(cute.ceil_div(out.shape[0], config.columns), 1, 1),
            block=(32 * (config.consumers + 1), 1, 1),
            stream=stream,
        )


def build(config):
    rows, columns = cute.sym_int32(), cute.sym_int32(divisibility=config.columns)
    return Ring(config), {
        "x": make_fake_compact_tensor(
            cutlass.Float32, (rows, columns), stride_order=(1, 0), assumed_align=16
        ),
        "out": make_fake_compact_tensor(cutlass.Float32, (columns,)),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
