"""C = A B^T with A in tensor memory: threads put rows of A there, as softmax does with P."""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.utils import blackwell_helpers

from tests.kernels.tutorial.gemm import MAJORS, THREADS, TYPES, operand

ROWS = 128


@dataclass(frozen=True)
class GemmTmemConfig:
    dtype: str = "bfloat16"
    b_major: str = "k"
    n: int = 64
    k: int = 64


class GemmTmem:
    def __init__(self, config):
        self.config = config
        self.dtype = TYPES[config.dtype]
        self.tiler = (ROWS, config.n, config.k)

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a: cute.Tensor,
        load_b: cute.CopyAtom,
        b: cute.Tensor,
        c: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
    ):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        memory = cutlass.memory.SmemAllocator()
        full = memory.allocate_array(cutlass.Int64, 1)
        done = memory.allocate_array(cutlass.Int64, 1)
        holder = memory.allocate_array(cutlass.Int32, 1)
        shared_b = memory.allocate_tensor(
            self.dtype, layout_b.outer, byte_alignment=1024, swizzle=layout_b.inner
        )
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
        if warp == 0:
            cute.arch.alloc_tmem(512, holder)
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, holder)
        a_column = config.n  # behind the accumulator

        thread_mma = mma.get_slice(0)
        global_b = thread_mma.partition_B(
            cute.local_tile(b, self.tiler, (0, 0, None), proj=(None, 1, 1))
        )
        global_c = thread_mma.partition_C(
            cute.local_tile(c, self.tiler, (0, 0, None), proj=(1, 1, None))
        )
        into_b, from_b = cpasync.tma_partition(
            load_b, 0, cute.make_layout(1), cute.group_modes(shared_b, 0, 3),
            cute.group_modes(global_b, 0, 3),
        )  # fmt: skip
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, config.n * config.k * 2)
            cute.copy(load_b, from_b[None, 0], into_b[None, 0], tma_bar_ptr=full)

        # Two halves a column: row r of A lies in lane r, columns a_column to a_column + k / 2.
        words = config.k // 2
        place = cute.make_tensor(
            tmem + a_column, cute.make_layout((ROWS, words), stride=(1 << 16, 1))
        )
        save = tcgen05.make_tmem_copy(
            cute.make_copy_atom(
                tcgen05.St32x32bOp(tcgen05.Repetition(words)), cutlass.Float32
            ), place,
        ).get_slice(thread)  # fmt: skip
        row = cute.make_rmem_tensor(
            save.partition_S(cute.make_identity_tensor((ROWS, words))).shape, cutlass.Float32
        )
        halves = cute.make_tensor(
            cute.recast_ptr(row.iterator, dtype=self.dtype), cute.make_layout(config.k)
        )
        for i in cutlass.range(config.k, unroll_full=True):
            halves[i] = a[thread, i]
        cute.copy(save, row, save.partition_D(place))
        cute.arch.fence_view_async_tmem_store()
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)

        fragment_b = mma.make_fragment_B(shared_b)
        shape_a = thread_mma.make_fragment_A(cute.make_tensor(tmem, layout_a.outer))
        base = cute.recast_ptr(tmem, dtype=self.dtype) + a_column * 2
        fragment_a = cute.make_tensor(base, shape_a[None, None, None, 0].layout)
        accumulator = cute.make_tensor(
            tmem, mma.make_fragment_C(mma.partition_shape_C(self.tiler[:2])).layout
        )
        if warp == 1:
            cute.arch.mbarrier_wait(full, 0)
            for k in cutlass.range_constexpr(cute.size(fragment_b, mode=[2])):
                mma.set(tcgen05.Field.ACCUMULATE, k > 0)
                cute.gemm(
                    mma, accumulator, fragment_a[None, None, k], fragment_b[None, None, k, 0],
                    accumulator,
                )  # fmt: skip
            with cute.arch.elect_one():
                tcgen05.commit(done)
        cute.arch.mbarrier_wait(done, 0)
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
        flat = accumulator[(None, None), 0, 0]
        copy = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(32)), cutlass.Float32), flat
        )
        mine = copy.get_slice(thread)
        target = mine.partition_D(global_c[(None, None), 0, 0])
        registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(copy, mine.partition_S(flat), registers)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(registers, target)
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()
        if warp == 0:
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            cute.arch.relinquish_tmem_alloc_permit()
            cute.arch.dealloc_tmem(tmem, 512)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream):
        mma = blackwell_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, MAJORS["k"], MAJORS[self.config.b_major], cutlass.Float32,
            tcgen05.CtaGroup.ONE, self.tiler[:2], tcgen05.OperandSource.TMEM,
        )  # fmt: skip
        layout_a = blackwell_helpers.make_smem_layout_a(mma, self.tiler, self.dtype, 1)
        layout_b = blackwell_helpers.make_smem_layout_b(mma, self.tiler, self.dtype, 1)
        load_b, map_b = cute.nvgpu.make_tiled_tma_atom_B(
            cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE), b,
            cute.select(layout_b, mode=[0, 1, 2]), self.tiler, mma,
        )  # fmt: skip
        self.kernel(mma, a, load_b, map_b, c, layout_a, layout_b).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream
        )


def build(config):
    dtype = TYPES[config.dtype]
    return GemmTmem(config), {
        "a": operand(dtype, "k", ROWS, config.k),
        "b": operand(dtype, config.b_major, config.n, config.k),
        "c": make_fake_compact_tensor(
            cutlass.Float32, (ROWS, config.n), stride_order=(1, 0), assumed_align=16
        ),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
