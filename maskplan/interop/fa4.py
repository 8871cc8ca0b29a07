"""flash-attn-4's block-sparse tensors, both ways.

Source: flash-attn-4, `BlockSparseTensorsTorch`: mask_block_cnt, mask_block_idx, full_block_cnt,
full_block_idx, block_size. Entries past a count are not looked at.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from maskplan.build.block_lists import from_block_lists
from maskplan.build.mask_fn import MaskFn
from maskplan.errors import PlanError, sentence
from maskplan.lower.target import Target
from maskplan.plan import Plan

_LISTS = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")


def to_fa4(
    plan: Plan,
    *,
    mask_mod: object = None,
    target: Target | None = None,
    direction: str = "forward",
    width: str = "compact",
) -> dict[str, Any]:
    """The keywords of `BlockSparseTensorsTorch`: see `Plan.block_sparse_tensors` and its `fa4`.

    Raises:
        PlanError: if there are mask blocks and no `mask_mod`, or the blocks do not fit `target`.
    """
    tensors = plan.block_sparse_tensors(target, direction=direction, width=width)
    return tensors.fa4(mask_mod=mask_mod)


def from_fa4(
    tensors: object,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] | None = None,
    mask_fn: MaskFn | None = None,
) -> Plan:
    """The plan of forward block-sparse tensors.

    Args:
        tensors: a `BlockSparseTensorsTorch`, a `maskplan.BlockSparseTensors` (whose bits are
            read), or a mapping with the same names; the full lists may be None.
        seqlen_q: SQ, in tokens; with PackGQA unpack the lists first.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk); by default what `tensors` says.
        mask_fn: the mask function that goes along with the lists, with FlexAttention's signature.

    Raises:
        PlanTypeError: if mask blocks come without bits or `mask_fn`, or a tensor is none.
        PlanError: if no block size is given, or two differ, or the lists are not valid.
    """
    held = {name: _field(tensors, name) for name in (*_LISTS, "block_size")}
    stated = None if held["block_size"] is None else tuple(held["block_size"])
    if block_size is not None and stated is not None and tuple(block_size) != stated:
        _fail("block sizes disagree", f"{tuple(block_size)} and {stated}", "pass one of them")
    size = block_size if block_size is not None else stated
    if size is None:
        _fail("block size is not given", "None", "pass block_size, which the lists do not tell")
    mask_cnt, mask_idx, full_cnt, full_idx = (held[name] for name in _LISTS)
    if mask_cnt is None or mask_idx is None:
        _fail("lists of mask blocks are missing", "None", "pass them, with counts of 0 if need be")
    if (full_cnt is None) != (full_idx is None):
        _fail("full lists need counts and indices", "one of them", "pass both or neither")
    if full_cnt is None:
        full_cnt, full_idx = torch.zeros_like(mask_cnt), mask_idx[..., :0]
    bits: dict[str, Any] = {"mask_fn": mask_fn}
    tile_id, tiles = _field(tensors, "mask_tile_id"), _field(tensors, "tiles")
    if mask_fn is None and tile_id is not None:
        bits = {"tile_id": tile_id, "tiles": tiles}
    if not bool((mask_cnt > 0).any()):
        return from_block_lists(full_cnt, full_idx, seqlen_q, seqlen_k, block_size=size)
    return from_block_lists(
        full_cnt,
        full_idx,
        seqlen_q,
        seqlen_k,
        block_size=size,
        mask_cnt=mask_cnt,
        mask_idx=mask_idx,
        **bits,
    )


def _field(tensors: object, name: str) -> Any:
    if isinstance(tensors, Mapping):
        return tensors.get(name)
    return getattr(tensors, name, None)


def _fail(what: str, got: str, remedy: str) -> NoReturn:
    raise PlanError(
        sentence(
            what=what,
            where="from_fa4",
            got=got,
            wanted="the fields of BlockSparseTensorsTorch",
            remedy=remedy,
        )
    )
