"""FlashMLA and DeepSeek's sparse attention: token indices, and paged ones.

An index that is -1, or at least the number of keys, is no key; so are the lanes from `topk_length`
on, whatever they hold (kernels that looked at them gave wrong results).

Source: FlashMLA's `flash_mla_sparse_fwd` (indices [s_q, h_kv, topk]) and `flash_mla_with_kvcache`
(indices [b, s_q, topk], page * page_size + offset).
"""

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.topk import from_topk
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan


def from_indices(
    indices: Tensor,
    seqlen_k: int,
    *,
    topk_length: Tensor | None = None,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """The plan of prefill indices.

    Args:
        indices: int32 or int64 [s_q, h_kv, topk].
        seqlen_k: s_kv, in tokens.
        topk_length: int32 or int64 [s_q]: leading lanes that hold.
        block_size: (bq, bk), in tokens.

    Returns:
        A plan of h_kv heads.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: if an index is below -1, or a length exceeds topk, or lengths do not
            fit the indices.
    """
    rank(
        index_tensor(indices, "indices"),
        "indices",
        (3,),
        "[s_q, h_kv, topk]",
        "pass indices[:, None] for [s_q, topk], or from_decode_indices for [b, s_q, topk]",
    )
    lengths = None if topk_length is None else _lengths(topk_length, len(indices))[None, None]
    return _plan(indices.transpose(0, 1)[None], seqlen_k, lengths, block_size)


def from_decode_indices(
    indices: Tensor,
    seqlen_k: int,
    *,
    topk_length: Tensor | None = None,
    block_table: Tensor | None = None,
    page_size: int | None = None,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """The plan of decoding indices, of one KV head.

    Args:
        indices: int32 or int64 [b, s_q, topk]: keys of the row's own sequence, or with a
            `block_table` their places in the paged cache, page * page_size + offset.
        seqlen_k: s_kv, in tokens, of the longest sequence.
        topk_length: int32 or int64 [b]: leading lanes that hold, for every query of a sequence.
        block_table: int32 or int64 [b, pages]: the page that holds each sequence's next page_size
            keys; -1 where there is none.
        page_size: keys of a page, with `block_table`.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: if an index is below -1, lies on a page that its sequence does not have, a length
            exceeds topk, lengths do not fit the indices, or `page_size` and `block_table` do not
            come together.
    """
    rank(index_tensor(indices, "indices"), "indices", (3,), "[b, s_q, topk]", "add the axis of b")
    lengths = None
    if topk_length is not None:
        lengths = _lengths(topk_length, len(indices))[:, None, None]
    if (block_table is None) != (page_size is None):
        raise PlanError(
            sentence(
                what="paged indices need a table and a page size",
                where="block_table, page_size",
                got=f"page_size={page_size}, {'no ' if block_table is None else 'a '}block_table",
                wanted="both or neither",
                remedy="say how the cache is paged, or pass keys of the sequence",
            )
        )
    if block_table is not None and page_size is not None:
        held = torch.ones_like(indices, dtype=torch.bool)
        if lengths is not None:
            held &= torch.arange(indices.shape[-1]) < lengths
        indices = _unpaged(indices, held, block_table, integer(page_size, "page_size", low=1))
    return _plan(indices[:, None], seqlen_k, lengths, block_size)


def _plan(
    indices: Tensor, seqlen_k: int, lengths: Tensor | None, block_size: tuple[int, int]
) -> Plan:
    """The plan of indices [batch, heads, SQ, topk] that may run past the keys."""
    local = indices.masked_fill(indices >= seqlen_k, -1)
    return from_topk(local, seqlen_k, block_size=block_size, lengths=lengths)


def _lengths(topk_length: Tensor, rows: int) -> Tensor:
    rank(
        index_tensor(topk_length, "topk_length"), "topk_length", (1,), "one length a row", "flatten"
    )
    if len(topk_length) != rows:
        raise PlanError(
            sentence(
                what="lengths do not fit the indices",
                where="topk_length",
                got=f"{len(topk_length)} lengths",
                wanted=f"{rows}, one for each entry of the first axis of indices",
                remedy="pass the topk_length of these indices",
            )
        )
    return topk_length


def _unpaged(indices: Tensor, held: Tensor, block_table: Tensor, page_size: int) -> Tensor:
    """Places in a paged cache as keys of each row's own sequence, int64."""
    rank(index_tensor(block_table, "block_table"), "block_table", (2,), "[b, pages]", "add b")
    if len(block_table) != len(indices):
        raise PlanError(
            sentence(
                what="table does not fit the batch",
                where="block_table",
                got=f"{len(block_table)} rows",
                wanted=f"{len(indices)}, as indices",
                remedy="pass the pages of every sequence",
            )
        )
    valid = held & (indices >= 0)
    keys = torch.where(held, indices.to(torch.int64), -1)
    for b, pages in enumerate(block_table.tolist()):
        place = {page: number for number, page in enumerate(pages) if page >= 0}
        own = keys[b][valid[b]]
        used, which = torch.unique(own // page_size, return_inverse=True)
        for page in used.tolist():
            if page not in place:
                raise PlanError(
                    sentence(
                        what="index is on a page of another sequence",
                        where=f"indices, b={b}",
                        got=f"page {page}",
                        wanted=f"one of its pages {sorted(place)[:16]}",
                        remedy="pass the block_table that the indices were made with",
                    )
                )
        logical = torch.tensor([place[page] for page in used.tolist()], dtype=torch.int64)
        keys[b][valid[b]] = logical[which] * page_size + own % page_size
    return keys


def to_indices(plan: Plan, *, topk: int | None = None) -> tuple[Tensor, Tensor]:
    """(indices int32 [s_q, h_kv, topk], topk_length int32 [s_q]) of a plan.

    Lists ascend and are padded with -1; a length is the largest over the heads.

    Args:
        plan: of batch 1.
        topk: the width, by default the longest list; kernels want a multiple of 64 or 128.

    Raises:
        PlanError: if the plan has a batch, or a list is longer than `topk`.
    """
    if plan.batch != 1:
        raise PlanError(
            sentence(
                what="format has no batch",
                where="FlashMLA indices",
                got=f"batch {plan.batch}",
                wanted="batch 1",
                remedy="export each sample by itself",
            )
        )
    tokens = plan.reblock((1, 1))
    counts = tokens.row_ptr.diff()
    longest = int(counts.max()) if len(counts) else 0
    width = max(longest, 1) if topk is None else integer(topk, "topk", low=1)
    if longest > width:
        raise PlanError(
            sentence(
                what="list does not fit",
                where="topk",
                got=width,
                wanted=f"at least {longest}, the longest list",
                remedy="pass a larger topk, or none",
            )
        )
    line = torch.repeat_interleave(torch.arange(len(counts)), counts)
    slot = torch.arange(tokens.num_blocks) - tokens.row_ptr[:-1][line]
    lists = torch.full((len(counts), width), -1, dtype=torch.int32)
    lists[line, slot] = tokens.col
    by_head = tokens.pattern_id[0].long()
    rows = plan.seqlen_q
    patterns = len(counts) // rows if rows else 1
    lengths = counts.view(patterns, rows)[by_head].amax(dim=0).to(torch.int32)
    return lists.view(patterns, rows, width)[by_head].transpose(0, 1).contiguous(), lengths
