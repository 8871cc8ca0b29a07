"""Backend "flex": PyTorch's FlexAttention, for any CUDA GPU.

In a compiled region `attention` traces straight into `flex_attention`, which the compiler knows, as
it does its autograd. In eager mode the same function runs compiled by itself. Either takes the
plan as plain tensors and makes BlockMask and mask function inside, and no number of blocks, tiles
or patterns is part of the graph: plans of one shape share one compilation.

A backward of compiled FlexAttention reuses what the forward saved, and so refuses retain_graph=True
unless torch._functorch.config.donated_buffer is False from the first call on.
"""

from functools import lru_cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from maskplan.attention.call import AttentionCall
from maskplan.attention.flex_mask import bit_mask, octets_of
from maskplan.attention.metadata import Metadata
from maskplan.errors import UnsupportedError, sentence
from maskplan.lower.engine_lists import EngineLists
from maskplan.lower.plan_cache import Lowering
from maskplan.lower.tensors import BlockSparseTensors

NAME = "flex"
ENGINES = ("flex",)
OPERATOR = False
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FEWEST_FEATURES = 16  # what a matrix product of FlexAttention's kernels takes
COMPILER = "inductor"
# FlexAttention's kernel for short queries would take the lists of one block of them for all.
KERNEL_OPTIONS: Any = {"FORCE_USE_FLEX_ATTENTION": True}
_Lists = tuple[Tensor, Tensor, Tensor, Tensor]
_Tables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Inputs = tuple[_Lists, _Lists | None, _Tables]
_kept: "WeakKeyDictionary[EngineLists, _Inputs]" = WeakKeyDictionary()


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.device.type != "cuda":
        return f"tensors are on {asked.device}, and its gradients need a CUDA GPU"
    if asked.dtype not in DTYPES:
        return f"it does not compute {str(asked.dtype).removeprefix('torch.')}"
    if min(asked.head_dim, asked.head_dim_v) < FEWEST_FEATURES:
        return f"head dims are below {FEWEST_FEATURES}"
    if find_spec("triton") is None:
        return "triton, which FlexAttention compiles with, is not installed"
    return None


def lowering(asked: Metadata) -> Lowering:
    """With the lists that the backward walks, if one may come."""
    shape: dict[str, Any] = {
        "head_dim": asked.head_dim,
        "head_dim_v": asked.head_dim_v,
        "heads": asked.heads,
        "kv_heads": asked.kv_heads,
        "arch": "cuda",
    }
    return Lowering(
        target=NAME,
        backward=("loop_q",) if asked.differentiable else (),
        shape=tuple(shape.items()),
    )


def attend(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ]), with a graph where inputs require one.

    lse, which costs a kernel of its own in each direction, is None where it is not wanted.
    """
    if call.empty:
        return nothing(call.q, call.k, call.v)
    lists: Any = call.lowered.lists
    function = flex_function if torch.compiler.is_compiling() else None
    return flex_attend(
        call.q, call.k, call.v, lists, scale=call.scale, return_lse=call.lse, function=function
    )


def nothing(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Results where there is no query or no key, with gradients 0 whatever the inputs hold."""
    zero = sum(x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0).sum() for x in (q, k, v))
    batch, length, heads, _ = q.shape
    out = q.new_zeros(batch, length, heads, v.shape[3]) + zero
    lse = q.new_full((batch, heads, length), -torch.inf, dtype=torch.float32) + zero
    return out, lse


def flex_inputs(lists: EngineLists) -> _Inputs:
    """(forward lists, backward lists, tables) as `flex_function` takes them.

    Axes whose length differs between plans of one shape are marked as dynamic.
    """
    backward = lists.backward
    return (
        _block_lists(lists.forward, lists.dense),
        None if backward is None else _block_lists(backward, lists.dense),
        _tables(lists),
    )


def _block_lists(lists: BlockSparseTensors, dense: bool) -> _Lists:
    mask_idx, full_idx = lists.mask_block_idx, lists.full_block_idx
    if not dense:  # else their width is that of the shape
        mask_idx, full_idx = _dynamic(mask_idx, 3), _dynamic(full_idx, 3)
    return lists.mask_block_cnt, mask_idx, lists.full_block_cnt, full_idx


def _tables(lists: EngineLists) -> _Tables:
    bits: Any = lists.bits
    return (
        bits.first_line,
        _dynamic(bits.words, 0),
        _dynamic(bits.before, 0),
        _dynamic(bits.content, 0),
        _dynamic(octets_of(bits.tiles), 0),
    )


def _dynamic(tensor: Tensor, axis: int) -> Tensor:
    if not torch.compiler.is_compiling():  # an outer region has inputs of its own
        torch._dynamo.maybe_mark_dynamic(tensor, axis)  # noqa: SLF001 - its documented place
    return tensor


def flex_function(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forward: _Lists,
    backward: _Lists | None,
    tables: _Tables | None,
    block_size: tuple[int, int],
    scale: float,
    return_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """(out [B, HQ, SQ, DV], lse float32 [B, HQ, SQ] or None), differentiable if `backward` is.

    Args:
        q: [B, HQ, SQ, D].
        k: [B, HK, SK, D].
        v: [B, HK, SK, DV].
        forward: (mask_cnt, mask_idx, full_cnt, full_idx) of KV blocks for each Q block.
        backward: the same of Q blocks for each KV block; None for no gradients.
        tables: those of `bit_mask`; None where every listed block is full, and then only for the
            compiler's kernels, which go by the lists.
        block_size: (bq, bk) of lists and tables.
        scale: factor of the scores.
        return_lse: whether lse is wanted.
    """
    from torch.nn.attention import flex_attention as flex

    lengths = (q.shape[2], k.shape[2])
    mask_mod: Any = flex.noop_mask
    if tables is not None:
        mask_mod = bit_mask(*tables, block_size)
    lists: Any = _named("kv", forward)
    lists |= _named("q", backward)
    mask = flex.BlockMask(seq_lengths=lengths, BLOCK_SIZE=block_size, mask_mod=mask_mod, **lists)
    wanted = flex.AuxRequest(lse=True) if return_lse else None
    attend_by_lists: Any = flex.flex_attention  # whose overloads a checker does not see through
    made = attend_by_lists(
        q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=dict(KERNEL_OPTIONS), return_aux=wanted,
    )  # fmt: skip
    return (made[0], made[1].lse) if return_lse else (made, None)


def _named(axis: str, lists: _Lists | None) -> dict[str, Tensor | None]:
    """The lists as fields of a BlockMask.

    Of both kinds, also where every block is full: with the full blocks as its only list, which is
    right too without a mask function, the backward is 2 % slower.
    """
    counts, indices = f"{axis}_num_blocks", f"{axis}_indices"
    names = (counts, indices, f"full_{counts}", f"full_{indices}")
    return dict.fromkeys(names) if lists is None else dict(zip(names, lists, strict=True))


@lru_cache
def compiled(*signature: Any) -> Any:
    """`flex_function`, compiled: one for each signature, which says all that it specialises on.

    A function of its own, so that shapes are constants in it, and its compilations do not add up
    with those of other shapes to the number at which Dynamo gives up.
    """
    name = f"{flex_function.__name__}_{abs(hash(signature))}"
    code = flex_function.__code__.replace(co_name=name)
    function = FunctionType(code, globals(), name, flex_function.__defaults__)
    return torch.compile(function, fullgraph=True, backend=COMPILER)


def flex_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: EngineLists,
    *,
    scale: float,
    return_lse: bool = True,
    function: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ] in natural log), with autograd's graph.

    Args:
        q: [B, SQ, HQ, D], any strides.
        k: [B, SK, HK, D].
        v: [B, SK, HK, DV].
        lists: from `flex_lists`, for these shapes and on their device.
        scale: factor of the scores.
        return_lse: whether lse is wanted.
        function: `flex_function` itself, to be traced by some compiler; None for the compiled one.

    Raises:
        UnsupportedError: if a gradient is wanted and the lists have no backward.
    """
    if lists.backward is None and torch.is_grad_enabled() and _any_grad(q, k, v):
        raise UnsupportedError(
            sentence(
                what="there are no lists for the backward",
                where="the flex backend",
                got="lists of the forward alone",
                wanted="lists of both directions",
                remedy="lower the plan with its backward",
            )
        )
    block_size = lists.forward.block_size
    if function is None:
        forward, backward, tables = _kept_inputs(lists)
        if backward is not None and not (torch.is_grad_enabled() and _any_grad(q, k, v)):
            backward = None  # each tensor that compiled code is given costs a microsecond
        call = compiled(
            q.shape, k.shape, v.shape, q.dtype, block_size, lists.dense, backward is None, scale,
            return_lse,
        )  # fmt: skip
    else:
        call = function
        forward, backward, tables = flex_inputs(lists)
    out, lse = call(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), forward, backward,
        None if function is None and lists.whole else tables, block_size, scale, return_lse,
    )  # fmt: skip
    return out.transpose(1, 2), lse


def _kept_inputs(lists: EngineLists) -> _Inputs:
    """`flex_inputs`, made once; see NOTE [Native lists] of maskplan/attention/fa4_inputs.py."""
    found = _kept.get(lists)
    if found is None:
        found = _kept[lists] = flex_inputs(lists)
    return found


def _any_grad(*tensors: Tensor) -> bool:
    return any(tensor.requires_grad for tensor in tensors)
