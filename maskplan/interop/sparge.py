"""SpargeAttn: block masks (`mask_id`) and delta-coded lists (`lut`), for the blocks of a GPU.

Blocks are 128 queries by 64 keys, but 64 by 128 on sm90: a mask made for one does not fit another,
so every call names the architecture. A row of `lut` holds the first KV block and then the distance
to each next one; `valid_block_num` says how many count.

Source: SpargeAttn, `spas_sage_attn/utils.py` (`block_map_lut_triton`) and `core.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.build.block_lists import from_block_lists
from maskplan.build.block_mask import from_block_mask
from maskplan.build.host import index_tensor, on_host, rank
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.interop.whole_blocks import pattern_masks, whole_blocks
from maskplan.plan import Plan

_BLOCKS = {"sm90": (64, 128)} | dict.fromkeys(
    ("sm80", "sm86", "sm87", "sm89", "sm100", "sm120"), (128, 64)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpargeTensors:
    """What SpargeAttn's kernels take, and the blocks it counts in.

    Attributes:
        mask_id: int8 [batch, heads, M, N], 1 where a block is visited.
        lut: int32 [batch, heads, M, N], deltas, 0 past the count.
        valid_block_num: int32 [batch, heads, M].
        block_size: (bq, bk), in tokens.
    """

    mask_id: Tensor
    lut: Tensor
    valid_block_num: Tensor
    block_size: tuple[int, int]


def block_size_of(arch: str) -> tuple[int, int]:
    """(bq, bk) of SpargeAttn's kernels on an architecture.

    Raises:
        PlanError: if SpargeAttn has no kernel for it.
    """
    if not isinstance(arch, str) or arch not in _BLOCKS:
        raise PlanError(
            sentence(
                what="unknown architecture",
                where="arch",
                got=repr(arch),
                wanted=", ".join(map(repr, sorted(_BLOCKS))),
                remedy="name the GPU that the kernels run on: block sizes differ",
            )
        )
    return _BLOCKS[arch]


def to_sparge(plan: Plan, arch: str, *, superset: bool = False) -> SpargeTensors:
    """The tensors of a plan.

    Args:
        plan: the plan, in any block size.
        arch: "sm80", "sm86", "sm87", "sm89", "sm90", "sm100" or "sm120".
        superset: keep whole blocks where the plan keeps a part of one.

    Raises:
        PlanError: for an unknown `arch`, or a block kept in part without `superset`.
    """
    block_size = block_size_of(arch)
    moved = whole_blocks(plan, block_size, "SpargeAttn mask_id", superset=superset)
    mask, by_head = pattern_masks(moved), moved.pattern_id.long()
    counts = mask.sum(dim=-1, dtype=torch.int32)
    # Listed blocks first, both kinds ascending.
    listed = (~mask).to(torch.int8).argsort(dim=-1, stable=True)
    deltas = listed.diff(dim=-1, prepend=torch.zeros_like(listed[..., :1]))
    lut = deltas.masked_fill(torch.arange(mask.shape[-1]) >= counts[..., None], 0)
    return SpargeTensors(
        mask_id=mask.to(torch.int8)[by_head],
        lut=lut.to(torch.int32)[by_head],
        valid_block_num=counts[by_head],
        block_size=block_size,
    )


def from_mask_id(mask_id: Tensor, seqlen_q: int, seqlen_k: int, *, arch: str) -> Plan:
    """The plan of a block mask.

    Args:
        mask_id: bool or an integer dtype [batch, heads, M, N], 0 or 1.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        arch: the architecture it was made for.

    Raises:
        PlanTypeError: if it is no such tensor.
        PlanError: if it holds another value, or its shape fits another architecture.
    """
    rank(on_host(mask_id, "mask_id"), "mask_id", (4,), "[batch, heads, M, N]", "add the axes")
    if mask_id.is_floating_point() or mask_id.is_complex():
        raise PlanTypeError(
            sentence(
                what="mask is not of 0 and 1",
                where="mask_id",
                got=str(mask_id.dtype).removeprefix("torch."),
                wanted="bool or an integer dtype",
                remedy="pass the mask, not the scores it was made from",
            )
        )
    bad = ((mask_id != 0) & (mask_id != 1)).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        raise PlanError(
            sentence(
                what="mask is not of 0 and 1",
                where=f"mask_id[{', '.join(map(str, place))}]",
                got=int(mask_id[place]),
                wanted="0 or 1",
                remedy="pass mask_id; lists enter through from_lut",
            )
        )
    block_size = block_size_of(arch)
    return from_block_mask(mask_id.to(torch.bool), seqlen_q, seqlen_k, block_size=block_size)


def from_lut(
    lut: Tensor, valid_block_num: Tensor, seqlen_q: int, seqlen_k: int, *, arch: str
) -> Plan:
    """The plan of delta-coded lists.

    Args:
        lut: int32 or int64 [batch, heads, M, width].
        valid_block_num: int32 or int64 [batch, heads, M]; lanes beyond are not looked at.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        arch: the architecture it was made for.

    Raises:
        PlanTypeError: if they are no such tensors.
        PlanError: if a count exceeds the width, or the decoded blocks leave the keys or do not
            ascend; the message counts decoded blocks.
    """
    rank(index_tensor(lut, "lut"), "lut", (4,), "[batch, heads, M, width]", "add the axes")
    decoded = lut.to(torch.int64).cumsum(dim=-1)
    return from_block_lists(
        valid_block_num, decoded, seqlen_q, seqlen_k, block_size=block_size_of(arch)
    )
