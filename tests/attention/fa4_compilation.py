"""A program: compiles the fa4 backend's kernels for one architecture, with no GPU.

    python -m tests.attention.fa4_compilation sm90

flash-attn-4 compiles under torch's fake tensors. Prints a line for each case that compiled.
"""

import os
import sys
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.attention import fa4
from maskplan.lower.engine_lists import fa4_lists

CAUSAL = mp.causal(700, 900, align="top_left", block_size=(128, 128))
CASES = {
    "bits": (CAUSAL, 128, 128, 4, 4),
    "whole": (mp.full(700, 900), 128, 128, 4, 4),
    "folded": (CAUSAL.reblock((16, 128)), 128, 128, 8, 2),
    "packed": (CAUSAL, 64, 64, 8, 2),
    "d192": (CAUSAL, 192, 128, 2, 2),
}


class Hardware:
    """What CuTe DSL asks of a GPU that is not there."""

    def get_device_multiprocessor_count(self) -> int:
        return 132

    def get_max_active_clusters(self, *_shape: int, **_named: int) -> int:
        return 132


def compile_case(arch: str, name: str) -> None:
    """Forward and backward of a case, deterministic where there is such a backward."""
    plan, head_dim, head_dim_v, heads, kv_heads = CASES[name]
    lists = fa4_lists(
        plan, arch=arch, head_dim=head_dim, head_dim_v=head_dim_v, heads=heads, kv_heads=kv_heads
    )

    def fake(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), mock.patch("torch.cuda.current_device", return_value=0):
        there = pytree.tree_map_only(torch.Tensor, lambda x: fake(*x.shape, dtype=x.dtype), lists)
        q, k = fake(1, 700, heads, head_dim), fake(1, 900, kv_heads, head_dim)
        v = fake(1, 900, kv_heads, head_dim_v)
        out, lse = fa4.fa4_forward(q, k, v, there, scale=0.1)
        grads = fa4.fa4_backward(
            q, k, v, out, lse, torch.empty_like(out), torch.empty_like(lse), there, scale=0.1,
            deterministic=arch == "sm100",
        )  # fmt: skip
        assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]
    print("compiled", arch, name, flush=True)


def main(arch: str, names: list[str]) -> None:
    """Compile the cases `names` for `arch`."""
    cubin = {"sm90": "sm_90a", "sm100": "sm_100a"}[arch]
    os.environ |= {
        "FLASH_ATTENTION_ARCH": cubin, "CUTE_DSL_ARCH": cubin, "FLASH_ATTENTION_NUM_SMS": "132",
    }  # fmt: skip
    import cutlass.utils
    import cutlass.utils.hardware_info

    for module in (cutlass.utils, cutlass.utils.hardware_info):
        module.HardwareInfo = Hardware
    for name in names:
        compile_case(arch, name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(CASES))
