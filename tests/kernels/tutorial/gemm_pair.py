"""C = A B^T by a pair of CTAs: one instruction of 256 rows, half of A and of B in each CTA.

Only the leader waits for data and issues MMAs; TMA loads of both CTAs count bytes on the leader's
barrier, and commits arrive at the barriers of both.
"""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.utils import blackwell_helpers

from tests.kernels.tutorial.gemm import MAJORS, THREADS, TYPES, operand

PAIR = 0b11


@dataclass(frozen=True)
class GemmPairConfig:
    dtype: str = "bfloat16"
    m: int = 256  # rows of an instruction: 256, or 128
    n: int = 64
    k: int = 64
    stages: int = 2


class GemmPair:
    def __init__(self, config):
        self.config = config
        self.dtype = TYPES[config.dtype]
        self.tiler = (config.m, config.n, config.k)
        self.bytes = (config.m + config.n) * config.k * 2  # of both CTAs

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_a: cute.CopyAtom,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        c: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
    ):
        stages = self.config.stages
        thread, _, _ = cute.arch.thread_idx()
        block, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        memory = cutlass.memory.SmemAllocator()
        full = memory.allocate_array(cutlass.Int64, stages)
        empty = memory.allocate_array(cutlass.Int64, stages)
        done = memory.allocate_array(cutlass.Int64, 1)
        holder = memory.allocate_array(cutlass.Int32, 1)
        shared_a = memory.allocate_tensor(
            self.dtype, layout_a.outer, byte_alignment=1024, swizzle=layout_a.inner
        )
        shared_b = memory.allocate_tensor(
            self.dtype, layout_b.outer, byte_alignment=1024, swizzle=layout_b.inner
        )
        if thread == 0:
            for stage in cutlass.range_constexpr(stages):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, 1)
            cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
        columns = max(self.config.n, 32)
        if warp == 0:
            cute.arch.alloc_tmem(columns, holder, is_two_cta=True)
        cute.arch.sync_threads()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

        thread_mma = mma.get_slice(rank)
        tile = (block // 2, column, None)
        global_a = thread_mma.partition_A(cute.local_tile(a, self.tiler, tile, proj=(1, None, 1)))
        global_b = thread_mma.partition_B(cute.local_tile(b, self.tiler, tile, proj=(None, 1, 1)))
        global_c = thread_mma.partition_C(cute.local_tile(c, self.tiler, tile, proj=(1, 1, None)))
        fragment_a = mma.make_fragment_A(shared_a)
        fragment_b = mma.make_fragment_B(shared_b)
        accumulator = cute.make_tensor(
            cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, holder),
            mma.make_fragment_C(mma.partition_shape_C(self.tiler[:2])).layout,
        )
        into_a, from_a = cpasync.tma_partition(
            load_a, 0, cute.make_layout(1), cute.group_modes(shared_a, 0, 3),
            cute.group_modes(global_a, 0, 3),
        )  # fmt: skip
        into_b, from_b = cpasync.tma_partition(
            load_b, 0, cute.make_layout(1), cute.group_modes(shared_b, 0, 3),
            cute.group_modes(global_b, 0, 3),
        )  # fmt: skip

        count = cute.size(from_a, mode=[1])
        if warp == 0:
            for n in cutlass.range(count):
                stage = n % stages
                cute.arch.mbarrier_wait(empty + stage, (n // stages & 1) ^ 1)
                if rank == 0:
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full + stage, self.bytes)
                barrier = full + stage
                cute.copy(load_a, from_a[None, n], into_a[None, stage], tma_bar_ptr=barrier)
                cute.copy(load_b, from_b[None, n], into_b[None, stage], tma_bar_ptr=barrier)
        if warp == 1 and rank == 0:
            for n in cutlass.range(count):
                stage = n % stages
                cute.arch.mbarrier_wait(full + stage, n // stages & 1)
                for k in cutlass.range_constexpr(cute.size(fragment_a, mode=[2])):
                    mma.set(tcgen05.Field.ACCUMULATE, n > 0 if k == 0 else True)
                    at = (None, None, k, stage)
                    cute.gemm(mma, accumulator, fragment_a[at], fragment_b[at], accumulator)
                with cute.arch.elect_one():
                    tcgen05.commit(empty + stage, PAIR, tcgen05.CtaGroup.TWO)
            with cute.arch.elect_one():
                tcgen05.commit(done, PAIR, tcgen05.CtaGroup.TWO)

        cute.arch.mbarrier_wait(done, 0)
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(32)), cutlass.Float32)
        flat = accumulator[(None, None), 0, 0]
        copy = tcgen05.make_tmem_copy(atom, flat)
        mine = copy.get_slice(thread)
        target = mine.partition_D(global_c[(None, None), 0, 0])
        registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(copy, mine.partition_S(flat), registers)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(registers, target)
        cute.arch.sync_threads()
        # Neither CTA may free TMEM or leave while the other still uses what they share.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            cute.arch.dealloc_tmem(accumulator.iterator, columns, is_two_cta=True)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream):
        config = self.config
        mma = cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                self.dtype, cutlass.Float32, (config.m, config.n, 16), tcgen05.CtaGroup.TWO,
                tcgen05.OperandSource.SMEM, MAJORS["k"], MAJORS["k"],
            )
        )  # fmt: skip
        layout_a = blackwell_helpers.make_smem_layout_a(mma, self.tiler, self.dtype, config.stages)
        layout_b = blackwell_helpers.make_smem_layout_b(mma, self.tiler, self.dtype, config.stages)
        op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO)
        cluster = cute.tiled_divide(cute.make_layout((2, 1, 1)), (mma.thr_id.shape,)).shape
        load_a, map_a = cute.nvgpu.make_tiled_tma_atom_A(
            op, a, cute.select(layout_a, mode=[0, 1, 2]), self.tiler, mma, cluster
        )
        load_b, map_b = cute.nvgpu.make_tiled_tma_atom_B(
            op, b, cute.select(layout_b, mode=[0, 1, 2]), self.tiler, mma, cluster
        )
        tiles = cute.ceil_div((*c.shape, 1), self.tiler[:2])
        self.kernel(mma, load_a, map_a, load_b, map_b, c, layout_a, layout_b).launch(
            grid=(2 * tiles[0], tiles[1], 1), block=(THREADS, 1, 1), cluster=(2, 1, 1),
            stream=stream,
        )  # fmt: skip


def build(config):
    m, n, k = (cute.sym_int32(divisibility=size) for size in (config.m, config.n, config.k))
    dtype = TYPES[config.dtype]
    return GemmPair(config), {
        "a": operand(dtype, "k", m, k),
        "b": operand(dtype, "k", n, k),
        "c": make_fake_compact_tensor(
            cutlass.Float32, (m, n), stride_order=(1, 0), assumed_align=16
        ),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
