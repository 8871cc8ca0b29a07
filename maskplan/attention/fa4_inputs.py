"""What flash-attn-4 is given of a plan beside q, k and v, made once for each lowered plan.

NOTE [Native lists]: engines of others take lists in types of their own, made of the same tensors.
Making these takes microseconds a call and gives the same each time, so they are kept for as long as
the `EngineLists` they were made of. They hold its tensors and no copies: a plan in static memory
that is written again is seen by the next call.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from maskplan.attention import fa4_kernels as kernels
from maskplan.lower.engine_lists import EngineLists, tables
from maskplan.lower.tensors import BlockSparseTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Fa4Inputs:
    """Arguments of one direction.

    Attributes:
        block_sparse: flash-attn-4's tuple of lists.
        mask_mod: reads the bits of partial blocks; None where every listed block is full.
        aux: the tables it reads, or None.
    """

    block_sparse: Any
    mask_mod: Any
    aux: list[Tensor] | None


_Made = dict[tuple[str, bool], Fa4Inputs]
_made: "WeakKeyDictionary[EngineLists, _Made]" = WeakKeyDictionary()


def fa4_inputs(lists: EngineLists, direction: str, *, deterministic: bool = False) -> Fa4Inputs:
    """The arguments of a direction, see NOTE [Native lists].

    Args:
        lists: from `fa4_lists`, with lists of that direction.
        direction: "forward" or "backward".
        deterministic: with the order in which a backward adds to dq.
    """
    made = _made.get(lists)
    if made is None:
        made = _made[lists] = {}
    found = made.get((direction, deterministic))
    if found is None:
        found = made[direction, deterministic] = _inputs(lists, direction, deterministic)
    return found


def _inputs(lists: EngineLists, direction: str, deterministic: bool) -> Fa4Inputs:
    blocks = lists.forward if direction == "forward" else lists.backward
    assert blocks is not None, "the caller has refused lists without a backward"
    mask_mod, aux = _mask_arguments(lists, direction)
    return Fa4Inputs(block_sparse=_block_lists(blocks, deterministic), mask_mod=mask_mod, aux=aux)


def _block_lists(lists: BlockSparseTensors, deterministic: bool) -> Any:
    order: dict[str, Any] = {}
    if deterministic:
        order = {
            "dq_write_order": lists.dq_write_order,
            "dq_write_order_full": lists.dq_write_order_full,
            "spt": lists.spt,
        }
    return kernels.list_type()(
        mask_block_cnt=lists.mask_block_cnt,
        mask_block_idx=lists.mask_block_idx,
        full_block_cnt=lists.full_block_cnt,
        full_block_idx=lists.full_block_idx,
        block_size=lists.block_size,
        **order,
    )


def _mask_arguments(lists: EngineLists, direction: str) -> tuple[Any, list[Tensor] | None]:
    """(mask_mod, tables). Only the forward of sm100 takes a mask function of 32 keys at once."""
    if lists.bits is None:
        return None, None
    aux = list(tables(lists))
    for tensor in aux:
        # Where axes have one entry, strides do not say which axis is the innermost.
        tensor.__leading_dim__ = tensor.ndim - 1  # type: ignore[attr-defined]
    vector = lists.arch == "sm100" and direction == "forward"
    make = kernels.masks().vector_mask if vector else kernels.masks().scalar_mask
    return make(lists.bits.block_size, lists.rows_per_token), aux
