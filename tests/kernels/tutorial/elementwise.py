"""y = factor * x, one thread an element."""

from dataclasses import dataclass

import cutlass
import cutlass.memory
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@dataclass(frozen=True)
class ScaleConfig:
    factor: float = 2.0
    threads: int = 128


class Scale:
    def __init__(self, config):
        self.config = config

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        i = block * self.config.threads + thread
        if i < cute.size(x):
            y[i] = x[i] * cutlass.Float32(self.config.factor)

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream):
        blocks = cute.ceil_div(cute.size(x), self.config.threads)
        self.kernel(x, y).launch(
            grid=(blocks, 1, 1), block=(self.config.threads, 1, 1), stream=stream
        )


def build(config):
    length = cute.sym_int32()
    return Scale(config), {
        "x": make_fake_compact_tensor(cutlass.Float32, (length,)),
        "y": make_fake_compact_tensor(cutlass.Float32, (length,)),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
