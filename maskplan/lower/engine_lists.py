"""`EngineLists`: what FlexAttention and FlashAttention-4 are given of a plan, both directions.

NOTE [Folded heads]: where the heads of a group share one list per query, the kernel's rows can be
(query, head in group), query slowest: q is seen as [B, SQ * G, HK, D], a block of bq queries as one
of bq * G rows, and heads are KV heads. Then blocks of a few queries fill a tile, which as queries
alone they could not, and nothing is listed twice.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from maskplan.errors import UnsupportedError
from maskplan.geometry import Geometry
from maskplan.lower.packing import pack, register, unpack
from maskplan.lower.ranked_bits import RankedBits, ranked_bits
from maskplan.lower.target import Target
from maskplan.lower.target import target as make_target
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.plan import Plan, TransposedPlan

_Slots = TypeVar("_Slots", Tensor, Tensor | None)

FLEX_MULTIPLE = 128  # tokens of its largest tile, along both axes
_FEW_SLOTS = 1 << 18  # of one list, 1 MiB


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class EngineLists:
    """Padded lists of one plan for one engine, and the tables of its mask function. A pytree.

    Attributes:
        engine: "flex" or "fa4".
        geometry: lengths and block size of the plan, in tokens.
        head_dim: D that the blocks are legal for.
        head_dim_v: DV likewise.
        heads: query heads HQ of the call.
        kv_heads: HK.
        arch: "sm90" or "sm100" for fa4; "cuda" or "cpu" for flex.
        rows_per_token: G where heads are folded into rows, see NOTE [Folded heads]; else 1.
        forward: for each Q block the KV blocks it visits.
        backward: for each KV block the Q blocks that visit it; None where there is no backward.
        whole: whether every listed block is full in both directions.
        dense: whether lists have a slot for every block, so that their width follows from shapes.
        bits: tables of the mask function; None where it is never asked, in whole lists of fa4.
    """

    engine: str
    geometry: Geometry
    head_dim: int
    head_dim_v: int
    heads: int
    kv_heads: int
    arch: str
    rows_per_token: int
    forward: BlockSparseTensors
    backward: BlockSparseTensors | None
    whole: bool
    dense: bool
    bits: RankedBits | None

    def to(self, device: torch.device | str) -> "EngineLists":
        """The same with every tensor on `device`."""
        packed = pack(self)
        lists: EngineLists = unpack([x.to(device) for x in packed.tensors], packed.spec)
        return lists


def fa4_lists(
    plan: Plan,
    *,
    arch: str,
    head_dim: int,
    head_dim_v: int | None = None,
    heads: int,
    kv_heads: int,
    backward: bool = True,
    width: str | None = None,
) -> EngineLists:
    """The lists that flash-attn-4 walks, forward and backward each in the finest legal blocks.

    Args:
        plan: forward lists, with 1, HK or HQ heads.
        arch: "sm90" or "sm100".
        head_dim: D.
        head_dim_v: DV; None for D.
        heads: HQ.
        kv_heads: HK.
        backward: whether to make the lists of the backward too.
        width: of the lists, as in `Plan.block_sparse_tensors`; None is "compact" for an exact plan
            and "dense" for a device plan.

    Raises:
        UnsupportedError: where the kernels do not exist for these head dims.
    """
    head_dim_v = head_dim if head_dim_v is None else head_dim_v
    rows_per_token = _rows_per_token(plan, arch, (head_dim, head_dim_v), heads, kv_heads)
    packed = make_target(
        arch,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        group=heads // kv_heads,
        pack_gqa=rows_per_token > 1,
    )
    plan = _for_kernel_heads(plan, kv_heads if rows_per_token > 1 else heads)
    options: dict[str, Any] = {"width": _width(plan, width)}
    tiled = _fitted(plan, packed, "forward")
    streamed = _fitted(plan, packed, "loop_q") if backward else None
    # Reblocking can make mask blocks of whole ones, in one direction and not in the other.
    whole = tiled.tile_id is None and (streamed is None or streamed.tile_id is None)
    return EngineLists(
        engine="fa4",
        geometry=plan.geometry,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        heads=heads,
        kv_heads=kv_heads,
        arch=arch,
        rows_per_token=rows_per_token,
        forward=_for_fa4(tiled, packed, options),
        backward=None
        if streamed is None
        else _for_fa4(streamed.transpose(), packed, options, ordered=arch == "sm100"),
        whole=whole,
        dense=options["width"] == "dense",
        bits=None if whole else ranked_bits(tiled),
    )


def flex_lists(
    plan: Plan,
    *,
    head_dim: int,
    head_dim_v: int | None = None,
    heads: int,
    kv_heads: int,
    arch: str = "cuda",
    backward: bool = True,
    width: str | None = None,
) -> EngineLists:
    """The lists of FlexAttention's BlockMask, both directions in one block size.

    Unused slots are 0, in range, since FlexAttention reads one past the count. There are always
    tables: FlexAttention that is not compiled looks at the mask function and at no list.

    Args:
        plan: forward lists, with 1, HK or HQ heads.
        head_dim: D.
        head_dim_v: DV; None for D.
        heads: HQ.
        kv_heads: HK.
        arch: "cuda"; "cpu" takes any block size, and dense lists.
        backward: whether to make the lists of the backward too.
        width: as in `fa4_lists`, but None is "dense" of small exact plans too: then no shape of
            them differs between plans, and compiled FlexAttention has less to look at in a call.
    """
    head_dim_v = head_dim if head_dim_v is None else head_dim_v
    plan = _for_kernel_heads(plan, heads)
    if arch == "cpu":
        width = "dense"
    else:
        size = flex_block_size(plan.block_size)
        plan = plan if size == plan.block_size else plan.reblock(size)
    slots = plan.pattern_id.numel() * plan.geometry.num_q_blocks * plan.geometry.num_k_blocks
    if width is None and slots <= _FEW_SLOTS:
        width = "dense"
    options: dict[str, Any] = {"width": _width(plan, width)}
    return EngineLists(
        engine="flex",
        geometry=plan.geometry,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        heads=heads,
        kv_heads=kv_heads,
        arch=arch,
        rows_per_token=1,
        forward=_for_flex(plan.block_sparse_tensors(**options)),
        backward=_for_flex(plan.transpose().block_sparse_tensors(**options)) if backward else None,
        whole=plan.tile_id is None,
        dense=options["width"] == "dense",
        bits=_several(ranked_bits(plan)),
    )


def flex_block_size(block_size: tuple[int, int]) -> tuple[int, int]:
    """The smallest block size, not finer than `block_size`, that FlexAttention's kernels take.

    A block has to hold whole tiles, forward and backward; FlexAttention picks them by GPU, dtype,
    head dim and version, up to 128 x 128, and has no kernel for a block that they do not divide.
    """
    bq, bk = (-(-size // FLEX_MULTIPLE) * FLEX_MULTIPLE for size in block_size)
    return bq, bk


def _width(plan: Plan, width: str | None) -> str:
    if width is not None:
        return width
    return "compact" if plan.status is None else "dense"


def _for_kernel_heads(plan: Plan, heads: int) -> Plan:
    return plan if plan.heads in (1, heads) else plan.with_heads(heads)


def _rows_per_token(plan: Plan, arch: str, dims: tuple[int, int], heads: int, kv_heads: int) -> int:
    """G if folding lets the forward's blocks be finer than they can be otherwise, else 1."""
    group = heads // kv_heads
    if group == 1 or plan.heads not in (1, kv_heads):
        return 1
    sizes = []
    for folded in (True, False):
        try:
            rules = make_target(
                arch, head_dim=dims[0], head_dim_v=dims[1], group=group, pack_gqa=folded
            )
        except UnsupportedError:
            if not folded:
                raise
            return 1
        sizes.append(rules.fit(plan.block_size, "forward", plan.seqlen_q)[0])
    return group if sizes[0] < sizes[1] else 1


def _fitted(plan: Plan, target: Target, direction: str) -> Plan:
    size = target.fit(plan.block_size, direction, plan.seqlen_q)
    return plan if size == plan.block_size else plan.reblock(size)


def _listed(lists: BlockSparseTensors, *, ordered: bool = False) -> BlockSparseTensors:
    """The lists without tiles, which the tables hold, and with the order of dQ if it is used."""
    return replace(
        lists,
        mask_tile_id=lists.mask_tile_id.new_empty(0, 0, 0, 0),
        tiles=lists.tiles.new_empty(0, 0, 0),
        dq_write_order=lists.dq_write_order if ordered else None,
        dq_write_order_full=lists.dq_write_order_full if ordered else None,
        spt=lists.spt if ordered else None,
    )


def _for_fa4(
    plan: Plan | TransposedPlan, target: Target, options: dict[str, Any], *, ordered: bool = False
) -> BlockSparseTensors:
    """The lists of one direction, at least 2 wide where there is more than one column.

    A width of 1 would be a constant to torch.compile, and a plan with longer rows compile again.
    """
    lists = _listed(plan.block_sparse_tensors(target, **options), ordered=ordered)
    if plan.axes.cols < 2:
        return lists
    return replace(
        lists,
        mask_block_idx=_two_wide(lists.mask_block_idx),
        full_block_idx=_two_wide(lists.full_block_idx),
        dq_write_order=_two_wide(lists.dq_write_order),
        dq_write_order_full=_two_wide(lists.dq_write_order_full),
    )


def _two_wide(slots: _Slots) -> _Slots:
    if slots is None or slots.shape[3] > 1:
        return slots
    return pad(slots, (0, 1), value=FILL)


def _for_flex(lists: BlockSparseTensors) -> BlockSparseTensors:
    """The lists with every slot in range, and mask and full lists of one width, at least 2.

    FlexAttention of torch 2.11 walks both with the strides of the mask lists. A width of 1 would be
    a constant to its compiler.
    """
    lists = _listed(lists)
    width = max(2, lists.mask_block_idx.shape[3], lists.full_block_idx.shape[3])
    mask_idx, full_idx = (
        pad(idx.clamp(min=0), (0, width - idx.shape[3]))
        for idx in (lists.mask_block_idx, lists.full_block_idx)
    )
    return replace(lists, mask_block_idx=mask_idx, full_block_idx=full_idx)


def _several(bits: RankedBits) -> RankedBits:
    """The tables with two entries or more: a length of 1 is a constant to torch.compile."""
    return replace(
        bits,
        words=_twice_one(bits.words),
        before=_twice_one(bits.before),
        content=_twice_one(bits.content),
    )


def _twice_one(table: Tensor) -> Tensor:
    return table if len(table) != 1 else torch.cat([table, table])


def tables(lists: EngineLists) -> tuple[Tensor, ...]:
    """The tables of the mask function in the order in which engines take them."""
    bits: Any = lists.bits
    return (bits.first_line, bits.words, bits.before, bits.content, bits.tiles)


register(EngineLists, "maskplan.lower.EngineLists")
