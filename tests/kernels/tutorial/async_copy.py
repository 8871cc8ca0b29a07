"""Chunks through shared memory by cp.async, a group each; a chunk comes out reversed."""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

VECTOR = 4  # float32 in 16 bytes


@dataclass(frozen=True)
class AsyncCopyConfig:
    threads: int = 64
    chunks: int = 3  # of threads * 4 elements, one a group


class AsyncCopy:
    def __init__(self, config):
        self.config = config
        self.chunk = config.threads * VECTOR

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        memory = cutlass.memory.SmemAllocator()
        buffers = memory.allocate_tensor(
            cutlass.Float32, cute.make_layout((VECTOR, self.config.threads, self.config.chunks)), 16
        )
        atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL),
            cutlass.Float32,
            num_bits_per_copy=128,
        )
        # (4, threads, chunks) of this CTA
        mine = cute.local_tile(x, (VECTOR * self.config.threads * self.config.chunks,), (block,))
        mine = cute.composition(mine, cute.make_layout(buffers.shape))
        for chunk in cutlass.range_constexpr(self.config.chunks):
            cute.copy(atom, mine[None, thread, chunk], buffers[None, thread, chunk])
            cute.arch.cp_async_commit_group()
        other = self.config.threads - 1 - thread
        for chunk in cutlass.range_constexpr(self.config.chunks):
            cute.arch.cp_async_wait_group(self.config.chunks - 1 - chunk)
            cute.arch.sync_threads()
            for i in cutlass.range_constexpr(VECTOR):
                at = (block * self.config.chunks + chunk) * self.chunk + thread * VECTOR + i
                out[at] = buffers[VECTOR - 1 - i, other, chunk]

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, stream):
        self.kernel(x, out).launch(
            grid=(cute.size(x) // (self.chunk * self.config.chunks), 1, 1),
            block=(self.config.threads, 1, 1),
            stream=stream,
        )


def build(config):
    length = cute.sym_int32(divisibility=config.threads * VECTOR * config.chunks)
    return AsyncCopy(config), {
        "x": make_fake_compact_tensor(cutlass.Float32, (length,), assumed_align=16),
        "out": make_fake_compact_tensor(cutlass.Float32, (length,), assumed_align=16),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
