"""What others offer, called by hand: SDPA, FlexAttention and flash-attn-4, dense and block-sparse.

Lists are made here from the block mask by sorting, and share no code with maskplan's.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from maskplan.bench.case import Missing, Work
from maskplan.bench.inputs import Tensors

WAYS = ("forward", "backward")
Calls = tuple[Callable[[], Work], Callable[[], Work]]  # makers of the two


def one_way(make: Callable[[], Calls], way: str) -> Callable[[], Work]:
    """A maker of the work of `way`; nothing is made before it is called."""

    def prepare() -> Work:
        return make()[WAYS.index(way)]()

    return prepare


def by_autograd(tensors: Tensors, attend: Callable[..., Tensor]) -> Calls:
    """Forward and backward of a differentiable function of q, k, v in maskplan's layout."""
    _keep_graphs()

    def forward() -> Work:
        return lambda: attend(tensors.q, tensors.k, tensors.v)

    def backward() -> Work:
        leaves = tensors.leaves()
        out = attend(*leaves)
        return lambda: torch.autograd.grad(out, leaves, tensors.dout, retain_graph=True)

    return forward, backward


def _keep_graphs() -> None:
    """Let a compiled backward run again, for good: it asks both when compiled and when run."""
    from torch._functorch import config

    config.donated_buffer = False


def sdpa(tensors: Tensors) -> Calls:
    """Dense `scaled_dot_product_attention`: cuDNN's on a GPU, torch's choice on a CPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    grouped = tensors.q.shape[2] != tensors.k.shape[2]

    def attend(*qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv)
        if not q.is_cuda:
            return scaled_dot_product_attention(q, k, v, enable_gqa=grouped).transpose(1, 2)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, enable_gqa=grouped).transpose(1, 2)

    return by_autograd(tensors, attend)


@lru_cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(tensors: Tensors, mask: Tensor, block: int) -> Calls:
    """Compiled `flex_attention` on the full blocks of `mask` bool [1, heads, M, N]."""
    return by_autograd(tensors, flex_attend(tensors, mask, block))


def flex_attend(tensors: Tensors, mask: Tensor, block: int) -> Callable[..., Tensor]:
    """Compiled `flex_attention`, as a function of q, k, v in maskplan's layout."""
    from torch.nn.attention.flex_attention import BlockMask

    counts, indices = sorted_lists(mask)
    none = torch.zeros_like(counts)
    block_mask = BlockMask.from_kv_blocks(
        none, torch.zeros_like(indices), counts, indices, BLOCK_SIZE=block,
        seq_lengths=(tensors.q.shape[1], tensors.k.shape[1]),
    )  # fmt: skip

    def attend(*qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv)
        out: Tensor = _compiled_flex()(q, k, v, block_mask=block_mask)
        return out.transpose(1, 2)

    return attend


def fa4(tensors: Tensors, mask: Tensor | None = None, block: int = 128) -> Calls:
    """flash-attn-4's own functions: dense, or on the full blocks of `mask` [1, heads, M, N]."""
    lists = None if mask is None else _fa4_lists(mask, block)
    turned = None if mask is None else _fa4_lists(mask.transpose(2, 3), block)

    def attend() -> tuple[Tensor, Tensor]:
        out, lse, *_ = _fa4_interface()._flash_attn_fwd(  # noqa: SLF001 # as its autograd calls it
            tensors.q, tensors.k, tensors.v, block_sparse_tensors=lists, return_lse=True
        )
        return out, lse

    def backward() -> Work:
        out, lse = attend()
        return lambda: _fa4_interface()._flash_attn_bwd(  # noqa: SLF001 # likewise
            tensors.q, tensors.k, tensors.v, out, tensors.dout, lse, block_sparse_tensors=turned
        )

    return lambda: attend, backward


def fa4_attend(mask: Tensor, block: int) -> Callable[..., Tensor]:
    """flash-attn-4's public function, with its own autograd, on the full blocks of `mask`."""
    lists, turned = _fa4_lists(mask, block), _fa4_lists(mask.transpose(2, 3), block)

    def attend(*qkv: Tensor) -> Tensor:
        out: Tensor = _fa4_interface().flash_attn_func(
            *qkv, block_sparse_tensors=lists, block_sparse_tensors_bwd=turned
        )[0]
        return out

    return attend


def sorted_lists(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(counts int32 [..., M], indices int32 [..., M, N] ascending, the rest behind them)."""
    indices = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int().contiguous()
    return mask.sum(dim=-1, dtype=torch.int32), indices


def _fa4_interface() -> Any:
    if find_spec("flash_attn") is None:
        raise Missing("flash-attn-4 is not installed")
    from flash_attn.cute import interface

    return interface


def _fa4_lists(mask: Tensor, block: int) -> Any:
    _fa4_interface()
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    counts, indices = sorted_lists(mask)
    return BlockSparseTensorsTorch(
        mask_block_cnt=torch.zeros_like(counts),
        mask_block_idx=torch.zeros_like(indices),
        full_block_cnt=counts,
        full_block_idx=indices,
        block_size=(block, block),
    )
