"""Padded lists of plans: forward lists, and those of a LoopQ backward with dQ's write order."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, flag, integer
from maskplan.lower.options import check_known
from maskplan.lower.target import Target, target_of
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.plan import BlockLists, Plan, TransposedPlan
from maskplan.transform.transpose import transpose_lists

_FORWARD_LISTS = ("forward", "loop_k")
_WHERE = "block_sparse_tensors"


def _padded(plan: BlockLists, value: Tensor, widths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """`value` int32 [blocks] as padded lists of mask and of full blocks, [batch, heads, R, W]."""
    from maskplan.lower import tensors_kernel as kernels

    lines = len(plan.row_ptr) - 1
    mask = np.full((lines, widths[0]), FILL, dtype=np.int32)
    full = np.full((lines, widths[1]), FILL, dtype=np.int32)
    kernels.fill_kinds(plan.row_ptr.numpy(), _tile_id(plan), value.numpy(), full, mask)
    return _by_head(plan, torch.from_numpy(mask)), _by_head(plan, torch.from_numpy(full))


def _tile_id(plan: BlockLists) -> np.ndarray:
    return np.empty(0, dtype=np.int32) if plan.tile_id is None else plan.tile_id.numpy()


def _by_head(plan: BlockLists, by_line: Tensor) -> Tensor:
    """[P * R, ...] of patterns as [batch, heads, R, ...]."""
    rows = plan.axes.rows
    patterns = plan.num_patterns if rows else 1
    return by_line.view(patterns, rows, *by_line.shape[1:])[plan.pattern_id.long()]


def _bad_width(got: object, wanted: str, remedy: str) -> PlanError:
    return PlanError(
        sentence(
            what="width not available",
            where=_WHERE,
            got=f"width={got!r}",
            wanted=wanted,
            remedy=remedy,
        )
    )


def _check_known(unknown: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse keywords that these lists do not have, those of the other direction among them."""
    remedy = "leave it out; spt is of plan.transpose(), direction of a Plan"
    wanted = " and ".join(known)
    check_known(unknown, (), _WHERE, remedy, wanted)


def slots_of(width: str | int, cols: int, unknown: torch.device | None) -> int | None:
    """Slots of a list of `cols` columns; None for the longest list of each kind.

    `unknown` is the device that alone knows how long lists are, if one does.

    Raises:
        PlanError: if it is not known here, or `width` is none.
    """
    if width == "dense":
        return max(cols, 1)
    if not isinstance(width, str):
        return integer(width, "width", low=1)
    if width != "compact":
        wanted = '"compact" (the longest list), "dense" (every block) or a number of slots'
        raise _bad_width(width, wanted, "name one of these")
    if unknown is not None:
        wanted = f'"dense" or a number of slots, as the lists\' lengths are known to {unknown}'
        raise _bad_width(width, wanted, 'pass width="dense", or plan on the CPU')
    return None


def _tensors(
    plan: BlockLists, width: str | int, rows_per_token: int, *, spt: bool | None = None
) -> BlockSparseTensors:
    slots = slots_of(width, plan.axes.cols, None if plan.status is None else plan.device)
    block_size = (plan.block_size[0] * rows_per_token, plan.block_size[1])
    if plan.status is not None:
        from maskplan.device.padded import padded

        assert slots is not None
        lists = padded(plan, slots, spt=spt)
        return BlockSparseTensors(**lists, tiles=plan.tiles, block_size=block_size, spt=spt)
    full_cnt, mask_cnt = _counts(plan)
    longest = (int(max(mask_cnt.max(initial=1), 1)), int(max(full_cnt.max(initial=1), 1)))
    if slots is not None and max(longest) > slots and plan.axes.cols:
        wanted = f"at least {max(longest)}, the longest list"
        raise _bad_width(width, wanted, "pass more slots, or leave width out")
    widths = longest if slots is None else (slots, slots)
    mask_idx, full_idx = _padded(plan, plan.col, widths)
    ids = torch.zeros_like(plan.col) if plan.tile_id is None else plan.tile_id
    mask_order, full_order = None, None
    if spt is not None:
        assert isinstance(plan, TransposedPlan)
        mask_order, full_order = _padded(plan, write_order(plan, spt=spt), widths)
    return BlockSparseTensors(
        mask_block_cnt=_by_head(plan, torch.from_numpy(mask_cnt)),
        mask_block_idx=mask_idx,
        full_block_cnt=_by_head(plan, torch.from_numpy(full_cnt)),
        full_block_idx=full_idx,
        mask_tile_id=_padded(plan, ids, widths)[0],
        tiles=plan.tiles,
        block_size=block_size,
        dq_write_order=mask_order,
        dq_write_order_full=full_order,
        spt=spt,
    )


def _counts(plan: BlockLists) -> tuple[np.ndarray, np.ndarray]:
    """(full, mask) blocks of each line, int32."""
    from maskplan.lower import tensors_kernel as kernels

    lines = len(plan.row_ptr) - 1
    full_cnt, mask_cnt = np.empty(lines, np.int32), np.empty(lines, np.int32)
    kernels.count_kinds(plan.row_ptr.numpy(), _tile_id(plan), full_cnt, mask_cnt)
    return full_cnt, mask_cnt


def forward_tensors(
    plan: Plan,
    target: Target | str | None = None,
    *,
    direction: str = "forward",
    width: str | int = "compact",
    **unknown: Any,
) -> BlockSparseTensors:
    """Padded forward lists: for each Q block, the KV blocks it visits.

    Args:
        plan: forward lists, with 1, HK (PackGQA) or HQ heads, as the kernel indexes them.
        target: the kernel they are for, whose legal tiles are checked: from `maskplan.target`, or
            an architecture's name, for head_dim 128 and group 1; None checks nothing.
        direction: "forward", or "loop_k" for the backward that streams K and V.
        width: "compact", the longest list, at least 1; "dense", the number of KV blocks; or a
            number of slots. A device plan takes "dense" or a number, since its longest list is not
            known without waiting for the device; blocks beyond the number set its status word.
        **unknown: refused.

    Raises:
        PlanTypeError: for another keyword.
        PlanError: if the block size does not fit the target, for an unknown direction or width, for
            "compact" with a device plan, or for fewer slots than the longest list of an exact plan.
        UnsupportedError: if the target has no such direction.
    """
    _check_known(unknown, ("direction", "width"))
    target = check_forward(plan.geometry, target, direction)
    return _tensors(plan, width, target.rows_per_token if target else 1)


def check_forward(geometry: Geometry, target: Target | str | None, direction: str) -> Target | None:
    """The target; refuses a direction without forward lists, and blocks that it does not take.

    Raises:
        PlanError: for these.
        UnsupportedError: if the target has no such direction.
    """
    if direction not in _FORWARD_LISTS:
        raise PlanError(
            sentence(
                what="direction not available",
                where=_WHERE,
                got=repr(direction),
                wanted=" or ".join(map(repr, _FORWARD_LISTS)),
                remedy="use plan.transpose().block_sparse_tensors(...) for LoopQ lists",
            )
        )
    if target is None:
        return None
    target = target_of(target, _WHERE)
    target.check(geometry.block_size, direction, geometry.seqlen_q)
    return target


def loop_q_tensors(
    plan: TransposedPlan,
    target: Target | str | None = None,
    *,
    width: str | int = "compact",
    spt: bool = False,
    **unknown: Any,
) -> BlockSparseTensors:
    """Padded LoopQ lists: for each KV block, the Q blocks that visit it, with dQ's write order.

    For coarse Q blocks, reblock first: p.reblock((256, 128)).transpose().block_sparse_tensors(...).

    Args:
        plan: LoopQ lists.
        target: the kernel they are for, as for forward lists; None checks nothing.
        width: "compact", "dense" or a number of slots, as for forward lists.
        spt: dQ is added in descending order of KV blocks instead of ascending.
        **unknown: refused.

    Raises:
        PlanTypeError: for another keyword.
        PlanError: as for forward lists.
        UnsupportedError: if the target has no LoopQ backward.
    """
    _check_known(unknown, ("width", "spt"))
    if target is not None:
        target = target_of(target, _WHERE)
        target.check(plan.block_size, "loop_q")
    spt = flag(spt, "spt")
    return _tensors(plan, width, target.rows_per_token if target else 1, spt=spt)


def write_order(plan: TransposedPlan, *, spt: bool = False) -> Tensor:
    """Rank of each block's KV block among all that visit the same Q block, int32 [blocks].

    Ranks ascend with the KV block, or descend with `spt`: the order in which a deterministic LoopQ
    adds to dQ.
    """
    axes = plan.axes
    row_ptr, _, source = transpose_lists(plan.row_ptr, plan.col, axes.rows, axes.cols)
    lengths = row_ptr.diff()
    rank = torch.arange(len(source), device="cpu") - torch.repeat_interleave(row_ptr[:-1], lengths)
    if spt:
        rank = torch.repeat_interleave(lengths, lengths) - 1 - rank
    order = torch.empty(len(source), dtype=torch.int32, device="cpu")
    order[source] = rank.to(torch.int32)
    return order
