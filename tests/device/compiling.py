"""Compiles, for a GPU that is not there, every Triton kernel that public calls start.

The interpreter runs kernels as Python and lets pass what the compiler refuses: a name whose type
changes in a loop, or a shape that does not fit. `python -m tests.device.compiling` prints what was
compiled. Tensors are on the CPU, nothing is started, and results are garbage.
"""

from typing import Any
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import maskplan as mp
from maskplan.plan import BlockLists
from tests.device.planning import DISPATCHERS, generator

HOPPER = GPUTarget("cuda", 90, 32)
POLICIES = ("uniform", "union", "representative")


class NoGpu:
    """A driver of a GPU that is described and never used."""

    def get_current_device(self) -> int:
        """Its number."""
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002 - as Triton calls it
        """The null stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return HOPPER


def emptied(plan: Any) -> Any:
    """`plan` with lists that say nothing, since no kernel has written them."""
    assert isinstance(plan, BlockLists)
    plan.row_ptr.zero_()
    plan.col.zero_()
    return plan


def call_everything() -> None:
    """Calls that between them start every kernel in every variant that shapes tell apart."""
    for sq, sk, topk, size in ((200, 700, 16, (1, 128)), (300, 9000, 99, (64, 96)),
                               (5000, 4000, 8, (1, 128))):  # fmt: skip
        indices = torch.randint(-1, sk, (1, 2, sq, topk), generator=generator(0))
        for whole in (False, True):
            plan = emptied(mp.from_topk(indices, sk, block_size=size, whole=whole))
            plan.block_sparse_tensors(width="dense")
            for spt in (False, True):
                across = emptied(plan.transpose())
                across.block_sparse_tensors(width="dense", spt=spt)
            for other in ((2 * size[0], 2 * size[1]), (48, 64), (50, 50)):
                plan.reblock(other)
            if sq == 200:
                plan.lower("cpu", backward=("loop_q", "loop_k"))
                plan.lower("sm100", backward=("loop_q",))
    blocks = torch.zeros(1, 1, 100, 4, dtype=torch.int32)
    mp.from_topk(blocks, 700, block_size=(10, 16), unit="block")
    emptied(mp.from_block_mask(torch.rand(1, 3, 70, 90) < 0.2, 70 * 128, 90 * 128)).transpose()
    emptied(mp.from_block_mask(torch.rand(70, 90) < 0.2, 70 * 128, 90 * 128)).reblock((96, 128))
    mp.sliding_window(1000, 1000, left=30, right=0, device="cpu")
    mp.causal(1000, 1000, device="cpu")
    mp.video.sliding_tile(mp.video.Grid(20, 45, 50), device="cpu")
    lists = torch.randint(-1, 700, (2, 4, 300, 33), generator=generator(1))
    for policy in POLICIES:
        for heads in ({}, {"group": 2, "kv_heads": 2}, {"group": 128}):
            mp.TokenTiles.from_topk(
                lists, 700, policy=policy, form="tokens", base="global", **heads,
                lengths=torch.full((2, 4, 300), 5),
            )  # fmt: skip


def compiled() -> dict[str, int]:
    """Names of the kernels, and how many variants of each were compiled."""
    run, found = JITFunction.run, {}

    def compile_alone(self: JITFunction, *args: object, grid: object, warmup: bool, **options: Any):
        assert not warmup
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found[id(kernel)] = kernel
        return kernel

    driver.set_active(NoGpu())
    patches = [mock.patch(f"{name}.on_gpu", return_value=True) for name in DISPATCHERS]
    patches += [
        mock.patch(f"maskplan.{name}.gpu", lambda device: device)
        for name in ("build.closed_forms", "patterns.sliding_tile")
    ]
    patches.append(mock.patch.object(JITFunction, "run", compile_alone))
    for patch in patches:
        patch.start()
    try:
        call_everything()
    finally:
        for patch in patches:
            patch.stop()
    names = [kernel.metadata.name for kernel in found.values()]
    return {name: names.count(name) for name in sorted(set(names))}


if __name__ == "__main__":
    for name, variants in compiled().items():
        print(name, variants)
