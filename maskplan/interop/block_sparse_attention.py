"""MIT's Block-Sparse-Attention: a block mask, dense and streaming heads side by side.

Blocks are 128 x 128 tokens. `head_mask_type` says of each head: 0 dense, negative streaming, 1 the
next mask of `base_blockmask`. A streaming head sees `sink` leading blocks and `local` blocks up to
its own (tokens, with exact streaming). Causal masks meet in the bottom right corner. Its kernels
walk `row_blockmask`: descending lists, padded with -1.

Source: Block-Sparse-Attention, `block_sparse_attn_interface.py` (`convert_blockmask_row_reverse`)
and the reference masks of its tests (`generate_streaming_mask`, `construct_exact_streaming_mask`).
"""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.block_lists import from_block_lists
from maskplan.build.block_mask import from_block_mask
from maskplan.build.closed_forms import causal as causal_plan
from maskplan.build.host import Integers, bool_tensor, index_tensor, int_array, rank
from maskplan.build.slices import ABSENT, as_slices, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, flag
from maskplan.interop.whole_blocks import block_mask_of, whole_blocks
from maskplan.pairs import kept_pairs
from maskplan.plan import Plan
from maskplan.provenance import Provenance

BLOCK = 128


def _fail(what: str, where: str, got: object, wanted: object, remedy: str) -> PlanError:
    return PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))


def from_head_masks(
    base_blockmask: Tensor | None,
    head_mask_type: Integers,
    streaming_info: Integers | None,
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool,
    exact_streaming: bool = False,
) -> Plan:
    """The plan of a call of `block_sparse_attn_func` over samples of equal length.

    Args:
        base_blockmask: bool [B, sparse heads, M, N], or None where no head is sparse.
        head_mask_type: int [H]: 0, 1, or negative.
        streaming_info: int [2 * H]: (sink, local) of each head; None where no head streams.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        causal: whether the call is causal.
        exact_streaming: sink and local count tokens; needs `causal`.

    Raises:
        PlanTypeError: if an array has another type or rank.
        PlanError: if the numbers of heads do not fit, a type is above 1, a size of a streaming head
            is negative, or exact streaming is not causal.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=(BLOCK, BLOCK))
    types = int_array(head_mask_type, "head_mask_type", (None,))
    if (types > 1).any() or not len(types):
        at = int((types > 1).argmax()) if len(types) else 0
        raise _fail(
            "unknown type of head",
            f"head_mask_type[{at}]",
            int(types[at]) if len(types) else "no heads",
            "0 dense, 1 sparse or negative streaming",
            "number sparse heads all 1: they take the masks in order",
        )
    causal = flag(causal, "causal")
    if flag(exact_streaming, "exact_streaming") and not causal:
        raise _fail(
            "exact streaming is not causal", "causal", causal, True, "pass causal=True, as the call"
        )
    masks = _sparse_masks(base_blockmask, int((types == 1).sum()), geometry)
    streams = _streams(streaming_info, types)
    heads = [_one_head(kind, geometry) for kind in types.tolist()]
    batch = masks.shape[0]
    full = torch.stack(heads).expand(batch, -1, -1, -1).clone()
    full[:, torch.from_numpy(types == 1)] = masks
    if not exact_streaming:
        for head, (sink, local) in streams.items():
            full[:, head] = _streaming_blocks(sink, local, geometry, causal=causal)
    plan = from_block_mask(full, seqlen_q, seqlen_k, block_size=(BLOCK, BLOCK))
    if exact_streaming:
        plan = plan & _exact_streams(streams, len(types), geometry)
    if causal:
        align = "bottom_right"
        plan = plan & causal_plan(seqlen_q, seqlen_k, align=align, block_size=(BLOCK, BLOCK))
    return plan


def _one_head(kind: int, geometry: Geometry) -> Tensor:
    """Every block of a dense head, and of a streaming one that is cut to tokens later."""
    shape = (geometry.num_q_blocks, geometry.num_k_blocks)
    return torch.full(shape, kind <= 0, dtype=torch.bool)


def _sparse_masks(masks: Tensor | None, count: int, geometry: Geometry) -> Tensor:
    wanted = (count, geometry.num_q_blocks, geometry.num_k_blocks)
    if masks is None:
        masks = torch.zeros((1, 0, *wanted[1:]), dtype=torch.bool)
    rank(bool_tensor(masks, "base_blockmask"), "base_blockmask", (4,), "[B, heads, M, N]", "add B")
    if tuple(masks.shape[1:]) != wanted or not len(masks):
        raise _fail(
            "masks do not fit the sparse heads or the lengths",
            "base_blockmask",
            f"shape {list(masks.shape)}",
            f"[B, {wanted[0]}, {wanted[1]}, {wanted[2]}], for {geometry}",
            "pass one mask for each head of type 1",
        )
    return masks


def _streams(info: Integers | None, types: np.ndarray) -> dict[int, tuple[int, int]]:
    """(sink, local) of each streaming head."""
    heads = (types < 0).nonzero()[0].tolist()
    if not heads:
        return {}
    if info is None:
        raise _fail(
            "streaming heads without sizes",
            "streaming_info",
            "None",
            f"(sink, local) for each of {len(types)} heads",
            "pass the streaming_info of the call",
        )
    pairs = int_array(info, "streaming_info", (2 * len(types),)).reshape(-1, 2)
    if (pairs[heads] < 0).any():
        head = heads[int((pairs[heads] < 0).any(axis=1).argmax())]
        raise _fail(
            "negative size of a streaming head",
            f"streaming_info[{2 * head}:{2 * head + 2}]",
            pairs[head].tolist(),
            "(sink, local) from 0 up",
            "pass the streaming_info of the call",
        )
    return {head: (int(pairs[head, 0]), int(pairs[head, 1])) for head in heads}


def _streaming_blocks(sink: int, local: int, geometry: Geometry, *, causal: bool) -> Tensor:
    """Block mask of a streaming head: bool [M, N]."""
    rows, cols = geometry.num_q_blocks, geometry.num_k_blocks
    row, col = torch.arange(rows)[:, None], torch.arange(cols)[None]
    start, ends = 0, torch.full_like(row, cols)
    if causal:
        start = max((geometry.seqlen_q - geometry.seqlen_k) // BLOCK, 0)
        ends = -(-max(geometry.seqlen_k - geometry.seqlen_q, 0) // BLOCK) + 1 + row - start
    near = (col >= (ends - local).clamp(0, cols)) & (col < ends.clamp(max=cols))
    return (near | (col < sink)) & (row >= start)


def _exact_streams(streams: dict[int, tuple[int, int]], heads: int, geometry: Geometry) -> Plan:
    """Token masks of streaming heads, everything for the others; without the causal bound."""
    offset = geometry.seqlen_k - geometry.seqlen_q
    everything = (0, geometry.seqlen_q, 0, geometry.seqlen_k, -ABSENT, ABSENT)
    patterns = [as_slices([everything])]
    ids = torch.zeros((1, heads), dtype=torch.int32)
    for head, (sink, local) in streams.items():
        near = (*everything[:4], offset - local + 1, ABSENT)
        sinks = (*everything[:3], min(sink, geometry.seqlen_k), -ABSENT, ABSENT)
        ids[0, head] = len(patterns)
        patterns.append(as_slices([near, sinks]))
    return plan_of_slices(patterns, geometry, Provenance(builder="from_head_masks"), ids)


def to_head_masks(plan: Plan, *, causal: bool, superset: bool = False) -> tuple[Tensor, Tensor]:
    """(base_blockmask bool [B, sparse heads, M, N], head_mask_type int32 [H]) of a plan.

    Heads that see everything (up to the diagonal, if `causal`) become dense, others sparse.

    Args:
        plan: the plan, in any block size.
        causal: whether the call will be causal, which then cuts the blocks on the diagonal.
        superset: keep whole blocks where the plan keeps a part of one.

    Raises:
        PlanError: if the plan keeps a part of a block otherwise, and `superset` is False; or pairs
            past the diagonal of a causal call.
    """
    where = "Block-Sparse-Attention base_blockmask"
    causal = flag(causal, "causal")
    size = (BLOCK, BLOCK)
    everything = torch.ones(1, 1, *_shape(plan), dtype=torch.bool)
    if not causal:
        mask = block_mask_of(whole_blocks(plan, size, where, superset=superset))
    else:
        bound = causal_plan(plan.seqlen_q, plan.seqlen_k, align="bottom_right", block_size=size)
        mask = block_mask_of(plan.reblock(size))
        everything = block_mask_of(bound)
        outside = plan.reblock(size) - bound
        if outside.num_blocks:
            raise _fail(
                "plan keeps pairs past the causal diagonal",
                where,
                f"{kept_pairs(outside)} such pairs",
                "none, for a causal call",
                "pass causal=False, or cut the plan with plan & maskplan.causal(...)",
            )
        again = from_block_mask(mask, plan.seqlen_q, plan.seqlen_k, block_size=size) & bound
        if again != plan.reblock(size) and not superset:
            raise _fail(
                "format cannot hold this plan",
                where,
                "blocks kept in part",
                "whole blocks cut by the causal diagonal",
                "pass superset=True to keep whole blocks, or use a format with masks",
            )
    sparse = (mask != everything).any(dim=3).any(dim=2).any(dim=0)
    return mask[:, sparse], sparse.to(torch.int32)


def _shape(plan: Plan) -> tuple[int, int]:
    return -(-plan.seqlen_q // BLOCK), -(-plan.seqlen_k // BLOCK)


def from_row_lists(row_blockmask: Tensor, seqlen_q: int, seqlen_k: int) -> Plan:
    """The plan of descending lists.

    Args:
        row_blockmask: int32 or int64 [B, heads, M, width], descending, then -1.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.

    Raises:
        PlanTypeError: if it is no such tensor.
        PlanError: if a list does not descend, has a block after a -1, or leaves the keys.
    """
    rank(index_tensor(row_blockmask, "row_blockmask"), "row_blockmask", (4,),
         "[B, heads, M, width]", "add the axes")  # fmt: skip
    lists = row_blockmask
    later, earlier = lists[..., 1:], lists[..., :-1]
    bad = (((later >= earlier) & (earlier != -1)) | ((earlier == -1) & (later != -1))).nonzero()
    if len(bad):
        b, h, row, slot = bad[0].tolist()
        raise _fail(
            "list does not descend",
            f"row_blockmask[b={b}, h={h}, row={row}, slot={slot + 1}]",
            int(later[b, h, row, slot]),
            f"less than {int(earlier[b, h, row, slot])}, or -1 to the end",
            "pass row_blockmask as convert_blockmask_row_reverse makes it",
        )
    counts = (lists != -1).sum(dim=-1)
    size = (BLOCK, BLOCK)
    return from_block_lists(counts, lists, seqlen_q, seqlen_k, block_size=size, sort=True)


def to_row_lists(plan: Plan, *, superset: bool = False) -> Tensor:
    """Descending lists of a plan, int32 [B, heads, M, N], padded with -1.

    Raises:
        PlanError: if a block is kept in part and `superset` is False.
    """
    where = "Block-Sparse-Attention row_blockmask"
    mask = block_mask_of(whole_blocks(plan, (BLOCK, BLOCK), where, superset=superset))
    numbers = torch.arange(mask.shape[-1], dtype=torch.int32).expand(mask.shape)
    return numbers.masked_fill(~mask, -1).sort(dim=-1, descending=True).values.contiguous()
