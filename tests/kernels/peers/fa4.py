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
from typing import Any
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
    """A compilation of FA4. Lengths are in it, since FA4 chooses kernels by them.

    Attributes:
        direction: "forward" or "backward".
        seqlen: of the queries.
        head_dim: D of all tensors.
        sparse: whether it walks block lists.
        heads: of the queries.
        causal: dense kernels alone.
        sms: CTAs of the persistent forward, at most.
        group: query heads of a KV head. With groups, dK and dV are sums in global memory.
        packed: lists that all heads share, and rows of (token, head in group) in the forward.
        mask: what reads the bits of mask blocks, a name of `fa4_masks.MASKS`; None for no bits.
        keys: length of the keys; `seqlen` if None.
    """

    direction: str
    seqlen: int
    head_dim: int
    sparse: bool
    heads: int = 1
    causal: bool = False
    sms: int = 148
    group: int = 1
    packed: bool = False
    mask: str | None = None
    keys: int | None = None

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group

    @property
    def list_heads(self) -> int:
        return 1 if self.packed else self.heads

    @property
    def seqlen_k(self) -> int:
        return self.seqlen if self.keys is None else self.keys

    @property
    def list_shape(self) -> tuple[int, int]:
        """Rows and columns of the forward's lists, in tokens whether or not rows are packed."""
        return -(-self.seqlen // Q_BLOCK), -(-self.seqlen_k // K_BLOCK)

    def __str__(self) -> str:
        kind = "sparse" if self.sparse else "causal" if self.causal else "dense"
        few = f"-sms{self.sms}" if self.sms != 148 else ""
        return f"{self.direction}-{kind}-s{self.seqlen}-d{self.head_dim}-h{self.heads}{few}"


def interface():
    """flash_attn.cute.interface, imported for SM100."""
    with mock.patch.dict(os.environ, ENVIRONMENT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what others are warned of is theirs
        from flash_attn.cute import interface as module
    return module


def entries(case: Case, cache) -> list[CacheEntry]:
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
    return found


def programs(case: Case, cache) -> list[HostProgram]:
    """Host programs of the entries."""
    return [HostProgram(entry.object_file, entry.ptx) for entry in entries(case, cache)]


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
    rows, columns = case.list_shape
    forward = case.direction == "forward"
    outer, inner = (rows, columns) if forward else (columns, rows)
    with FakeTensorMode():
        lengths = (case.seqlen, case.seqlen_k, case.seqlen_k, case.seqlen, case.seqlen)
        heads = (case.heads, case.kv_heads, case.kv_heads, case.heads, case.heads)
        q, k, v, out, grad = (
            torch.empty((1, *size, case.head_dim), dtype=torch.bfloat16, device="cuda")
            for size in zip(lengths, heads, strict=True)
        )
        lists = None
        if case.sparse:
            counts, indices = (
                torch.zeros(size, dtype=torch.int32, device="cuda")
                for size in ((1, case.list_heads, outer), (1, case.list_heads, outer, inner))
            )
            lists = BlockSparseTensorsTorch(
                mask_block_cnt=counts, mask_block_idx=indices,
                full_block_cnt=counts.clone(), full_block_idx=indices.clone(),
                block_size=(Q_BLOCK, K_BLOCK),
            )  # fmt: skip
        if forward:
            module._flash_attn_fwd(
                q, k, v, block_sparse_tensors=lists, causal=case.causal, return_lse=True,
                **_mask_arguments(case),
            )  # fmt: skip
        else:
            lse = torch.empty((1, case.heads, case.seqlen), dtype=torch.float32, device="cuda")
            module._flash_attn_bwd(q, k, v, out, grad, lse, block_sparse_tensors=lists)


def _mask_arguments(case: Case) -> dict[str, Any]:
    """The mask function of a case and fake tables for it."""
    if case.mask is None:
        return {}
    from tests.kernels.peers.fa4_masks import MASKS

    mask = MASKS[case.mask]
    tables = [
        torch.zeros((2,) * (rank - 1) + (4,), dtype=torch.int32, device="cuda")
        for rank in mask.ranks
    ]
    for table in tables:
        table.__leading_dim__ = table.ndim - 1
        table.__assumed_align__ = mask.align
    return {"mask_mod": mask.function(case), "aux_tensors": tables}
