"""out[i] = x[tokens[i]], zeros for -1: the forward's gathering by cp.async, and nothing of SM100.

Two warps copy chunks of 128 rows into a ring of two stages, in the layout of the 128-byte swizzle;
a third hands them to TMA stores, which read them by the async proxy, as MMA would.
"""

from dataclasses import dataclass
from pathlib import Path

import cutlass
import cutlass.memory
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from kernels_sm100 import gather
from kernels_sm100.barriers import next_slot

SOURCES = tuple(Path(gather.__file__).parent / f"{n}.py" for n in ("gather", "barriers", "config"))
WORKERS, STAGES, CTAS = 2, 2, 2
CHUNK = gather.TILE_K


@dataclass(frozen=True)
class GatherCopyConfig:
    columns: int = 128  # of x, 64 or 128


class GatherCopy:
    def __init__(self, config):
        self.spans = config.columns // gather.SPAN
        self.stage_bytes = self.spans * gather.SPAN_BYTES

    @cute.kernel
    def kernel(
        self,
        store: cute.CopyAtom,
        target: cute.Tensor,
        x: cute.Tensor,
        tokens: cute.Tensor,
        layout: cute.ComposedLayout,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        memory = cutlass.memory.SmemAllocator()
        full = memory.allocate_array(cutlass.Int64, STAGES)
        empty = memory.allocate_array(cutlass.Int64, STAGES)
        listed = memory.allocate_array(Int32, CHUNK, byte_alignment=16)
        tiles = memory.allocate_tensor(
            cutlass.BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner
        )
        if cute.arch.thread_idx()[0] == 0:
            for i in range(STAGES):
                cute.arch.mbarrier_init(full + i, WORKERS * gather.LANES)
                cute.arch.mbarrier_init(empty + i, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp < WORKERS:
            self.load(x, tokens, listed, tiles, full, empty, warp)
        else:
            self.write(store, target, tiles, tokens, full, empty)

    @cute.jit
    def load(self, x, tokens, listed, tiles, full, empty, warp):
        share = CHUNK // WORKERS
        lane = cute.arch.lane_idx()
        buffer, place = listed + warp * share, warp * gather.LANES + lane
        ahead = cute.make_rmem_tensor(share // gather.LANES, Int32)
        now = cute.make_rmem_tensor(share // gather.LANES, Int32)
        slot, phase, chunk = Int32(0), Int32(1), cute.arch.block_idx()[0]
        base = tiles.iterator.toint() + warp * (share * gather.ROW_BYTES)
        if chunk < tokens.shape[0]:
            gather.fetch(tokens, chunk, place, ahead)
        while chunk < tokens.shape[0]:
            now.store(ahead.load())
            chunk += CTAS
            if chunk < tokens.shape[0]:
                gather.fetch(tokens, chunk, place, ahead)
            cute.arch.mbarrier_wait(empty + slot, phase)
            gather.stage(now, buffer, lane)
            gather.copy_rows(x, buffer, base + slot * self.stage_bytes, WORKERS, self.spans)
            gather.arrive_copied(full + slot)
            slot, phase = next_slot(slot, phase, STAGES)

    @cute.jit
    def write(self, store, target, tiles, tokens, full, empty):
        shared, out = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(tiles, 0, 2),
            cute.group_modes(cute.local_tile(target, (CHUNK, gather.SPAN), (None, None)), 0, 2),
        )  # fmt: skip
        slot, phase, chunk = Int32(0), Int32(0), cute.arch.block_idx()[0]
        while chunk < tokens.shape[0]:
            cute.arch.mbarrier_wait(full + slot, phase)
            cute.arch.fence_view_async_shared()
            with cute.arch.elect_one():
                for span in cutlass.range_constexpr(self.spans):
                    cute.copy(store, shared[None, span, slot], out[None, chunk, span])
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=False)
                cute.arch.mbarrier_arrive(empty + slot)
            slot, phase = next_slot(slot, phase, STAGES)
            chunk += CTAS

    @cute.jit
    def __call__(self, x: cute.Tensor, tokens: cute.Tensor, out: cute.Tensor, stream):
        layout = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0,
            cute.make_layout(
                (CHUNK, gather.SPAN, self.spans, STAGES),
                stride=(gather.SPAN, 1, CHUNK * gather.SPAN, CHUNK * gather.SPAN * self.spans),
            ),
        )  # fmt: skip
        store, target = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), out, cute.select(layout, mode=[0, 1]),
            (CHUNK, gather.SPAN),
        )  # fmt: skip
        self.kernel(store, target, x, tokens, layout).launch(
            grid=(CTAS, 1, 1), block=((WORKERS + 1) * gather.LANES, 1, 1), stream=stream
        )


def build(config):
    chunks, rows = cute.sym_int32(), cute.sym_int32(divisibility=CHUNK)
    return GatherCopy(config), {
        "x": make_fake_tensor(
            cutlass.BFloat16, (cute.sym_int32(), config.columns),
            (cute.sym_int64(divisibility=8), 1), assumed_align=16,
        ),
        "tokens": make_fake_compact_tensor(
            Int32, (chunks, CHUNK), stride_order=(1, 0), assumed_align=16
        ),
        "out": make_fake_compact_tensor(
            cutlass.BFloat16, (rows, config.columns), stride_order=(1, 0), assumed_align=16
        ),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }  # fmt: skip
