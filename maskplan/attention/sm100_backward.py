"""The backward of `sm100` and `sm100-emulated`: preprocess, LoopQ or LoopK, postprocess.

NOTE [One buffer of sums]: what CTAs add to in float32 is one allocation, which the preprocess
clears while it reads O and dO: dQ for LoopQ, dK and dV for LoopK, all three where LoopQ splits the
groups of KV heads that are too few for the device.

NOTE [Padded heads]: the kernels are written for heads of 64 and 128, the same for q, k, v. Heads of
other sizes are padded with zeros up to these, which changes no score and no gradient, in copies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskplan.attention import sm100_gathered as gathered
from maskplan.attention import sm100_kernels as kernels
from maskplan.attention.call import AttentionCall, room
from maskplan.lower.direction import head_split
from maskplan.lower.schedule import longest_first
from maskplan.lower.walk import Walk

if TYPE_CHECKING:
    from kernels_sm100.backward_config import BackwardConfig

Gradients = tuple[Tensor, Tensor, Tensor]
# Launches a kernel: (what builds it, its configuration, its arguments, those it writes whole).
Launch = Callable[[Any, "BackwardConfig", tuple[Any, ...], tuple[str, ...]], None]
_HEAD_DIMS = (64, 128)
_FOUR = 4  # elements that the preprocess clears at a time


def direction(call: AttentionCall) -> str:
    """The direction that runs: what was asked for, or what the plan is lowered for.

    Of a plan that is lowered for both, "auto" takes LoopQ. Token tiles have LoopK alone.
    """
    if call.lowered.gathered is not None:
        return "loop_k"
    if call.backward != "auto":
        return call.backward
    return "loop_q" if call.lowered.loop_q is not None else "loop_k"


def walk(call: AttentionCall) -> Walk:
    """What the backward of a call walks."""
    found = call.lowered.loop_q if direction(call) == "loop_q" else call.lowered.loop_k
    assert found is not None, "`supports` refuses plans that are lowered without it"
    return found


def backward_config(call: AttentionCall, ctas: int) -> "BackwardConfig":
    """What the backward kernel of a call is compiled for, to keep `ctas` busy."""
    from kernels_sm100.backward_config import BackwardConfig

    if call.lowered.gathered is not None:
        return gathered.backward_config(call, padded_dim(call))
    target, walked = call.lowered.target, walk(call)
    assert target is not None, "a plan lowered for sm100 has a target"
    name, in_turns = direction(call), call.deterministic
    split = 1
    if name == "loop_q" and not in_turns and not target.pack_gqa:
        items = call.batch * int(call.k.shape[2]) * walked.rows
        split = head_split(items, call.group, ctas)
    return BackwardConfig(
        direction=name,
        dtype=str(call.q.dtype).removeprefix("torch."),
        head_dim=padded_dim(call),
        group=call.group,
        pack_gqa=target.pack_gqa,
        parts=walked.parts,
        head_split=split,
        deterministic=in_turns,
        spt=in_turns and walked.spt,
    )


def padded_dim(call: AttentionCall) -> int:
    """The head dim that kernels are compiled for; see NOTE [Padded heads]."""
    needed = max(int(call.q.shape[3]), int(call.v.shape[3]))
    return next(dim for dim in _HEAD_DIMS if dim >= needed)


def steps(call: AttentionCall) -> int:
    """Pairs of a Q tile and a KV block that the backward of a call visits at most, plus items."""
    if call.lowered.gathered is not None:
        return gathered.steps(call)
    walked, pattern = walk(call), call.lowered.pattern_id.long()
    rows = max(walked.rows, 1)
    entries = walked.row_ptr.diff().view(-1, rows).sum(1)[pattern].sum()
    target = call.lowered.target
    assert target is not None, "a plan lowered for sm100 has a target"
    repeats = call.batch * call.heads // target.rows_per_token // pattern.numel()
    return int(entries * walked.parts + pattern.numel() * walked.rows) * repeats


@lru_cache(maxsize=128)
def compiled(build: Any, config: "BackwardConfig", arch: str) -> Any:
    """A kernel of the backward, out of the persistent cache where it is there.

    Raises:
        KernelError: of kernels_sm100, if it cannot be compiled.
    """
    from kernels_sm100.backward_host import BACKWARD_SOURCES
    from kernels_sm100.launch import compile_kernel

    return compile_kernel(build, config, arch=arch, sources=BACKWARD_SOURCES)


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Float32 sums, and the semaphores of LoopQ's turns: all cleared before they are used."""

    flat: Tensor
    parts: dict[str, Tensor]
    turns: Tensor
    semaphores: Tensor


def gradients(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, *,
    ctas: int, launch: Launch,
) -> Gradients:  # fmt: skip
    """(dq, dk, dv), shaped and typed as q, k and v.

    Args:
        call: the call of the forward, under a plan lowered for sm100; not empty.
        out: what the forward gave.
        lse: likewise.
        dout: [B, SQ, HQ, DV], any strides.
        dlse: [B, HQ, SQ] likewise, or None for zeros.
        ctas: CTAs at most, all of which are resident.
        launch: runs a kernel.
    """
    from kernels_sm100 import backward_host as host
    from kernels_sm100 import backward_shapes as shapes

    config = backward_config(call, ctas)
    dim = config.head_dim
    signed, scale = kernels.signed(call)
    q, k, v, o, do = (_wide(x, dim) for x in (signed, call.k, call.v, out, dout))
    sums = _sums(call, config)
    shape = shapes.rows_shape(config, call.batch, call.heads, call.lowered.seqlen_q)
    bias, delta = (q.new_empty(shape, dtype=torch.float32) for _ in range(2))
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    rows = shapes.rows_config(config)
    prepared = host.preprocess_arguments(
        rows, o, do, _rows(lse), _rows(dlse), bias, delta, (sums.flat, sums.turns)
    )
    launch(host.build_preprocess, rows, prepared, ("bias", "delta", "clear_a", "clear_b"))
    grads = {
        name: room(x, dim, x.dtype, call.layout)
        for name, x in (("dq", call.q), ("dk", call.k), ("dv", call.v))
    }
    inputs = {"q": q, "k": k, "v": v, "do": do, "bias": bias, "delta": delta}
    outputs = grads | sums.parts | {"semaphores": sums.semaphores}
    given = host.backward_arguments(
        config, inputs, outputs, _tables(call, config), scale=scale, ctas=ctas
    )
    owned = tuple(name for name in grads if f"{name}_sums" not in sums.parts)
    launch(host.build_backward, config, given, owned)
    given_scale = kernels.scale_of(call)
    of_sums = {"dq": (rows, given_scale), "dk": (shapes.keys_config(config), scale)}
    of_sums["dv"] = (shapes.keys_config(config), 1.0)
    for name, (shaped, factor) in of_sums.items():
        if name not in owned:
            found = host.postprocess_arguments(
                shaped, sums.parts[f"{name}_sums"], grads[name], factor
            )
            launch(host.build_postprocess, shaped, found, ("out",))
    dq, dk, dv = grads.values()
    if config.direction == "loop_k" and given_scale <= 0:
        # The kernel has scaled dQ by the scale of `signed`.
        dq = -dq if given_scale < 0 else torch.zeros_like(dq)
    wanted = (call.q, call.k, call.v)
    dq, dk, dv = (x[..., : w.shape[3]] for x, w in zip((dq, dk, dv), wanted, strict=True))
    return dq, dk, dv


def _wide(tensor: Tensor, dim: int) -> Tensor:
    """[B, S, H, F] as the kernels take it, F padded to `dim`."""
    missing = dim - int(tensor.shape[3])
    if missing == 0:
        return kernels.for_tma(tensor)
    padded: Tensor = torch.nn.functional.pad(tensor.detach(), (0, missing))
    return padded.contiguous()


def _rows(tensor: Tensor) -> Tensor:
    """Float32 [B, HQ, SQ], compact."""
    return kernels.compact(tensor.detach().to(torch.float32))


def _sums(call: AttentionCall, config: "BackwardConfig") -> _Sums:
    """Room for the sums of a direction, see NOTE [One buffer of sums]; nothing is cleared."""
    from kernels_sm100 import backward_shapes as shapes

    queries = shapes.dq_sums_shape(config, call.batch, call.heads, call.lowered.seqlen_q)
    keys = shapes.kv_sums_shape(config, call.batch, int(call.k.shape[2]), call.lowered.seqlen_k)
    rooms = {"dq_sums": queries} if config.direction == "loop_q" else {}
    if config.direction == "loop_k" or config.head_split > 1:
        rooms |= {"dk_sums": keys, "dv_sums": keys}
    flat = call.q.new_empty(sum(map(prod, rooms.values())), dtype=torch.float32)
    parts = torch.split(flat, [prod(shape) for shape in rooms.values()])
    waiting = prod(queries[:3])
    cleared = -(-waiting // _FOUR) * _FOUR if config.deterministic else 0
    turns = call.q.new_empty(max(cleared, waiting), dtype=torch.float32)
    return _Sums(
        flat=flat,
        parts={name: part.view(rooms[name]) for name, part in zip(rooms, parts, strict=True)},
        turns=turns[:cleared],
        semaphores=turns[:waiting].view(torch.int32).view(queries[:3]),
    )


def _tables(call: AttentionCall, config: "BackwardConfig") -> dict[str, Tensor]:
    """The tables of a walk, by the kernel's names."""
    if call.lowered.gathered is not None:
        return {name: kernels.compact(x) for name, x in gathered.backward_tables(call).items()}
    walked = walk(call)
    names = ["row_ptr", "col", "tile_id", "tiles", "order"]
    if config.direction == "loop_q":
        names.append("write_order")
    tables = {name: getattr(walked, name) for name in names}
    tables["pattern_id"] = call.lowered.pattern_id
    if config.direction == "loop_q":
        tables["order"] = _order_of_owners(call, walked)
    return {name: kernels.compact(table) for name, table in tables.items()}


def _order_of_owners(call: AttentionCall, walked: Walk) -> Tensor:
    """LoopQ's work items, longest first: a KV block of a KV head, over the heads of its group."""
    kv_heads = int(call.k.shape[2])
    if call.lowered.heads <= kv_heads or walked.rows == 0:
        return walked.order
    work = walked.row_ptr.diff().view(-1, walked.rows)[call.lowered.pattern_id.long()]
    return longest_first(work.view(len(work), kv_heads, -1, walked.rows).sum(2).reshape(-1))
