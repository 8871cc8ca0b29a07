"""What the backends `sm100` and `sm100-emulated` share: our SM100 kernels, found when needed.

`kernels_sm100` knows tensors and no plans; here a call under a lowered plan becomes its
configuration and its arguments.
"""

from functools import lru_cache
from importlib.util import find_spec
from math import e, log2
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskplan.attention import sm100_gathered as gathered
from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.plan_cache import Lowering
from maskplan.lower.target import TILE_ROWS, target
from maskplan.lower.walk import Walk

if TYPE_CHECKING:
    from kernels_sm100.config import ForwardConfig

ENGINES = ("sm100", "tokens")
DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIM_MULTIPLE, _LARGEST_HEAD_DIM = 16, 128
_FLOAT32, _LOG2_E = torch.finfo(torch.float32), log2(e)
_NEEDED = {"cutlass": "nvidia-cutlass-dsl", "tvm_ffi": "apache-tvm-ffi"}


@lru_cache
def missing() -> str | None:
    """Why the kernels cannot be compiled and loaded on this machine; None if they can."""
    absent = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if absent:
        return f"{' and '.join(absent)} not installed: pip install 'maskplan[sm100]' brings it"
    return None


def refused(asked: Metadata) -> str | None:
    """Why no kernel is written for the call, wherever it is to run; None if one is."""
    if asked.dtype not in DTYPES:
        return f"it computes bfloat16 and float16, not {str(asked.dtype).removeprefix('torch.')}"
    dims = (asked.head_dim, asked.head_dim_v)
    if any(dim % _HEAD_DIM_MULTIPLE or dim > _LARGEST_HEAD_DIM for dim in dims):
        return (
            f"its kernels take head dims that are multiples of {_HEAD_DIM_MULTIPLE} up to "
            f"{_LARGEST_HEAD_DIM}, not {dims}: pad q, k and v with zeros"
        )
    if asked.differentiable and asked.deterministic and asked.backward == "loop_k":
        return (
            "its loop_k adds dK and dV in any order, and equal bits are wanted: "
            'pass backward="loop_q", or deterministic=False'
        )
    if (reason := missing()) is not None:
        return reason
    return gathered.refused(asked) if asked.engine == "tokens" else None


def packs(asked: Metadata) -> bool:
    """Whether a Plan is lowered for packed rows, (token, head in group), which share K and V."""
    legal = asked.group > 1 and TILE_ROWS % asked.group == 0
    return legal and asked.plan_heads in (1, asked.kv_heads)


def lowering(asked: Metadata) -> Lowering:
    """Merged walks for the kernels; with that of the backward, if one may come."""
    kernels = target(
        "sm100",
        head_dim=asked.head_dim,
        head_dim_v=asked.head_dim_v,
        group=asked.group,
        pack_gqa=packs(asked),
    )
    if not asked.differentiable:
        return Lowering(target=kernels, backward=())
    if asked.backward == "auto" and not asked.deterministic:
        heads = (("kv_heads", asked.kv_heads),)
        return Lowering(target=kernels, backward=("auto",), shape=heads)
    direction = "loop_q" if asked.deterministic else asked.backward
    return Lowering(target=kernels, backward=(direction,))


def forward_walk(lowered: LoweredPlan) -> Walk:
    """What the forward walks."""
    assert lowered.forward is not None, "every plan for sm100 has it"
    return lowered.forward


def forward_config(call: AttentionCall) -> "ForwardConfig":
    """What the forward kernel of a call is compiled for."""
    from kernels_sm100.config import ForwardConfig
    from kernels_sm100.modes import Direction, Launch, derive_modes

    if call.lowered.gathered is not None:
        return gathered.forward_config(call)
    kernels = call.lowered.target
    assert kernels is not None, "a plan lowered for sm100 has a target"
    q_tiles = 2 if call.lowered.seqlen_q * kernels.rows_per_token > TILE_ROWS else 1
    # Where a list row spans several CTAs, an entry has one tile id for all of them.
    parts = q_tiles if forward_walk(call.lowered).parts == q_tiles else 1
    launch = Launch(direction=Direction.FORWARD, group=kernels.rows_per_token)
    return ForwardConfig(
        dtype=str(call.q.dtype).removeprefix("torch."),
        head_dim=int(call.q.shape[3]),
        head_dim_v=int(call.v.shape[3]),
        group=call.group,
        pack_gqa=kernels.pack_gqa,
        q_tiles=q_tiles,
        parts=parts,
        outer_store=derive_modes(launch).outer_store,
    )


@lru_cache(maxsize=64)
def compiled_forward(config: "ForwardConfig", arch: str) -> Any:
    """The forward kernel, out of the persistent cache where it is there; compiling takes seconds.

    Raises:
        KernelError: of kernels_sm100, if it cannot be compiled.
    """
    from kernels_sm100.forward_host import FORWARD_SOURCES, build_forward
    from kernels_sm100.launch import compile_kernel

    return compile_kernel(build_forward, config, arch=arch, sources=FORWARD_SOURCES)


def for_tma(tensor: Tensor) -> Tensor:
    """`tensor` [B, S, H, F] where TMA can read it: the same memory if it can."""
    tensor = tensor.detach()
    *outer, last = tensor.stride()
    if last == 1 and all(s > 0 and s % 8 == 0 for s in outer) and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def nothing(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out, lse) of a call without queries or without keys."""
    out = call.new(call.q, int(call.v.shape[3]), call.q.dtype)
    return out.zero_(), _room_for_lse(call).fill_(-torch.inf)


def _room_for_lse(call: AttentionCall) -> Tensor:
    size = (call.batch, call.heads, call.lowered.seqlen_q)
    return call.q.new_empty(size, dtype=torch.float32)


def forward_operands(
    call: AttentionCall, config: "ForwardConfig", *, ctas: int
) -> tuple[tuple[Any, ...], Tensor, Tensor]:
    """(arguments of the compiled kernel, the out and the lse among them)."""
    from kernels_sm100.forward_host import forward_arguments

    tables = _walk_tables(call) if call.lowered.gathered is None else gathered.tables(call)
    out = call.new(call.q, int(call.v.shape[3]), call.q.dtype)
    lse = _room_for_lse(call)
    q, scale = signed(call)
    arguments = forward_arguments(
        config, for_tma(q), for_tma(call.k), for_tma(call.v), out, lse,
        {name: compact(table) for name, table in tables.items()}, scale=scale, ctas=ctas,
    )  # fmt: skip
    return arguments, out, lse


def _walk_tables(call: AttentionCall) -> dict[str, Tensor]:
    walk = forward_walk(call.lowered)
    names = ("row_ptr", "col", "tile_id", "tiles", "order")
    return {name: getattr(walk, name) for name in names} | {"pattern_id": call.lowered.pattern_id}


def compact(table: Tensor) -> Tensor:
    """`table` with the strides of its shape, those of empty tables too, at an aligned address."""
    room = table.new_empty(table.shape)
    if table.stride() == room.stride() and table.data_ptr() % 16 == 0:
        return table
    return room.copy_(table)


def scale_of(call: AttentionCall) -> float:
    """The scale of a call as the kernels can hold it: 0 where float32 would flush it to 0.

    Raises:
        UnsupportedError: if it is NaN, or infinite in float32.
    """
    size = abs(call.scale)
    if size * _LOG2_E <= _FLOAT32.max:  # not so of NaN
        return call.scale if size >= _FLOAT32.smallest_normal else 0.0
    raise UnsupportedError(
        sentence(
            what="scale is no number that the kernels can hold",
            where="scale",
            got=call.scale,
            wanted=f"a finite number, of at most {_FLOAT32.max / _LOG2_E:.1e}, as float32 holds",
            remedy="look where it was computed, or take the backend cpu",
        )
    )


def signed(call: AttentionCall) -> tuple[Tensor, float]:
    """(q, scale > 0) with the scores of the call: the kernel takes a row's maximum unscaled.

    Raises:
        UnsupportedError: for a scale that is none, see `scale_of`.
    """
    scale = scale_of(call)
    if scale > 0:
        return call.q, scale
    return (-call.q, -scale) if scale < 0 else (torch.zeros_like(call.q), 1.0)
