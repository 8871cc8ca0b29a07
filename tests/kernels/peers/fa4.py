"""FlashAttention-4's SM100 kernels, compiled with no GPU, as host programs that can be captured.

They are right on real hardware, so they tell whether the emulator is. FA4 compiles under torch's
fake tensors; what it compiles is taken at `cute.compile`, with PTX and line information asked for.
"""

import os
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels_sm100.emulator.capture import HostProgram, export
from kernels_sm100.launch.cache import CacheEntry
from kernels_sm100.launch.key import compile_key

# Read by FA4 and CuTe DSL when they are imported.
ENVIRONMENT = {"FLASH_ATTENTION_ARCH": "sm_100a", "CUTE_DSL_ARCH": "sm_100a"}
Q_BLOCK, K_BLOCK = 256, 128  # of the block-sparse lists


@dataclass(frozen=True, kw_only=True)
class Case:
    """A compilation of FA4. Lengths are in it, since FA4 chooses kernels by them."""

    direction: str  # "forward" or "backward"
    seqlen: int
    head_dim: int
    sparse: bool
    heads: int = 1
    causal: bool = False
    sms: int = 148  # CTAs of the persistent forward, at most

    @property
    def kv_heads(self) -> int:
        return self.heads

    def __str__(self) -> str:
        kind = "sparse" if self.sparse else "causal" if self.causal else "dense"
        few = f"-sms{self.sms}" if self.sms != 148 else ""
        return f"{self.direction}-{kind}-s{self.seqlen}-d{self.head_dim}-h{self.heads}{few}"


@dataclass(frozen=True, kw_only=True)
class GroupedCase(Case):
    """With groups of query heads, whose dK and dV are added to float32 sums in global memory."""

    group: int = 1

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group


def interface():
    """flash_attn.cute.interface, imported for SM100."""
    with mock.patch.dict(os.environ, ENVIRONMENT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what others are warned of is theirs
        from flash_attn.cute import interface as module
    return module


def programs(case: Case, cache) -> list[HostProgram]:
    """What FA4 compiles for `case`, in the order of its calls; from the cache if it is there."""
    sources = sorted(Path(interface().__file__).parent.glob("*.py"))
    key = compile_key(case, options=("fa4",), sources=sources)
    count = 1 if case.direction == "forward" else 3
    found = [cache.get(f"{key}-{number}") for number in range(count)]
    if None in found:
        found = _compile(case)
        assert len(found) == count
        for number, entry in enumerate(found):
            cache.put(f"{key}-{number}", entry)
    return [HostProgram(entry.object_file, entry.ptx) for entry in found]


def _compile(case: Case) -> list[CacheEntry]:
    from cutlass import cute
    from cutlass.utils.hardware_info import HardwareInfo

    real = cute.compile
    made = []

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kept = (
            f"--gpu-arch sm_100a --generate-line-info --keep-ptx --keep-cubin --dump-dir {folder}"
        )

        def compile_and_keep(*arguments, options):
            started = time.perf_counter()
            compiled = real(*arguments, options=f"{options} {kept}")
            entry = CacheEntry(
                object_file=export(compiled),
                ptx=compiled.artifacts.PTX,
                cubin=compiled.artifacts.CUBIN,
                names=(),
                seconds=time.perf_counter() - started,
            )
            made.append(entry)
            return compiled

        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        sms = str(case.sms)
        stack.enter_context(
            mock.patch.dict(os.environ, ENVIRONMENT | {"FLASH_ATTENTION_NUM_SMS": sms})
        )
        stack.enter_context(mock.patch.object(cute, "compile", compile_and_keep))
        for name, value in (
            ("__init__", None),
            ("get_max_active_clusters", case.sms),
            ("get_device_multiprocessor_count", case.sms),
            ("get_l2_cache_size_in_bytes", 126 << 20),
        ):
            stack.enter_context(
                mock.patch.object(HardwareInfo, name, lambda *_, value=value, **__: value)
            )
        _trace(case)
    return made


def _trace(case: Case) -> None:
    """Call FA4 with fake tensors: it compiles, and launches nothing."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    module = interface()
    for function in (
        module._flash_attn_fwd, module._flash_attn_bwd,
        module._bwd_preprocess, module._bwd_postprocess_convert,
    ):  # fmt: skip
        function.compile_cache.clear()
    rows, columns = -(-case.seqlen // Q_BLOCK), -(-case.seqlen // K_BLOCK)
    forward = case.direction == "forward"
    outer, inner = (rows, columns) if forward else (columns, rows)
    with FakeTensorMode():
        q, k, v, out, grad = (
            torch.empty((1, case.seqlen, heads, case.head_dim), dtype=torch.bfloat16, device="cuda")
            for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads, case.heads)
        )
        lists = None
        if case.sparse:
            counts, indices = (
                torch.zeros(size, dtype=torch.int32, device="cuda")
                for size in ((1, case.heads, outer), (1, case.heads, outer, inner))
            )
            lists = BlockSparseTensorsTorch(
                mask_block_cnt=counts, mask_block_idx=indices,
                full_block_cnt=counts.clone(), full_block_idx=indices.clone(),
                block_size=(Q_BLOCK, K_BLOCK),
            )  # fmt: skip
        if forward:
            module._flash_attn_fwd(
                q, k, v, block_sparse_tensors=lists, causal=case.causal, return_lse=True
            )
        else:
            lse = torch.empty((1, case.heads, case.seqlen), dtype=torch.float32, device="cuda")
            module._flash_attn_bwd(q, k, v, out, grad, lse, block_sparse_tensors=lists)
