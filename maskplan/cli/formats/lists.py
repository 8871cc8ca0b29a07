"""Formats of lists: the tokens or blocks that each query or Q block selects."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskplan.build import from_topk
from maskplan.cli.arrays import read_array, read_arrays, write_array, write_arrays
from maskplan.cli.formats.answers import Answers, need
from maskplan.cli.formats.masks import bounded
from maskplan.errors import PlanError, sentence
from maskplan.interop import block_sparse_attention, fa4, fla_nsa, flashmla, q2k
from maskplan.interop.whole_blocks import whole_blocks
from maskplan.plan import Plan

_FA4 = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")


def read_topk(path: Path, answers: Answers) -> Plan:
    """Keys of each query, [batch, heads, SQ, topk], -1 padded."""
    indices = read_array(path, "iu", 4)
    return from_topk(indices, need(answers.seqlen_k), block_size=answers.block)


def write_topk(plan: Plan, path: Path, _: Answers) -> None:
    """Keys of each query."""
    _bounded_tokens(plan, path)
    indices, _lengths = flashmla.to_indices(plan)
    write_array(path, indices.transpose(0, 1)[None].contiguous())


def read_flashmla(path: Path, answers: Answers) -> Plan:
    """FlashMLA's indices [s_q, h_kv, topk]; in an .npz with topk_length."""
    if path.suffix == ".npz":
        arrays = read_arrays(path, {"indices": "iu"}, {"topk_length": "iu"})
    else:
        arrays = {"indices": read_array(path, "iu", 3)}
    return flashmla.from_indices(
        arrays["indices"],
        need(answers.seqlen_k),
        topk_length=arrays.get("topk_length"),
        block_size=answers.block,
    )


def write_flashmla(plan: Plan, path: Path, _: Answers) -> None:
    """FlashMLA's indices; in an .npz with topk_length."""
    _bounded_tokens(plan, path)
    indices, lengths = flashmla.to_indices(plan)
    if path.suffix == ".npz":
        write_arrays(path, {"indices": indices, "topk_length": lengths})
    else:
        write_array(path, indices)


def read_q2k(path: Path, answers: Answers) -> Plan:
    """FastVideo's and FlashInfer's q2k lists."""
    names = {"q2k_index": "iu", "q2k_num": "iu"}
    arrays = read_arrays(path, names, {"kv_block_sizes": "iu"})
    return q2k.from_q2k(
        arrays["q2k_index"],
        arrays["q2k_num"],
        need(answers.seqlen_q),
        need(answers.seqlen_k),
        block_size=need(answers.block_size),
        repeat=1 if answers.repeat is None else answers.repeat,
        kv_block_sizes=arrays.get("kv_block_sizes"),
    )


def write_q2k(plan: Plan, path: Path, answers: Answers) -> None:
    """FastVideo's and FlashInfer's q2k lists."""
    size = answers.block_size or plan.block_size
    index, num = q2k.to_q2k(
        plan,
        size,
        repeat=1 if answers.repeat is None else answers.repeat,
        superset=bool(answers.superset),
    )
    write_arrays(path, {"q2k_index": index, "q2k_num": num})


def read_nsa(path: Path, answers: Answers) -> Plan:
    """Selected block_indices of fla, [B, T, H, S]; in an .npz with block_counts."""
    if path.suffix == ".npz":
        arrays = read_arrays(path, {"block_indices": "iu"}, {"block_counts": "iu"})
    else:
        arrays = {"block_indices": read_array(path, "iu", 4)}
    return fla_nsa.from_block_indices(
        arrays["block_indices"],
        arrays.get("block_counts"),
        select_block=need(answers.select_block),
        block_size=answers.block,
    )


def write_nsa(plan: Plan, path: Path, answers: Answers) -> None:
    """Selected block_indices of fla; in an .npz with block_counts."""
    width = _longest(plan) // max(need(answers.select_block), 1) + 2
    bounded(8 * plan.batch * plan.heads * plan.seqlen_q * width, path)
    indices, counts = fla_nsa.to_block_indices(plan, select_block=need(answers.select_block))
    if path.suffix == ".npz":
        write_arrays(path, {"block_indices": indices, "block_counts": counts})
    else:
        write_array(path, indices)


def read_bsa_rows(path: Path, answers: Answers) -> Plan:
    """MIT Block-Sparse-Attention's descending lists [B, heads, M, width]."""
    lists = read_array(path, "iu", 4)
    lengths = need(answers.seqlen_q), need(answers.seqlen_k)
    return block_sparse_attention.from_row_lists(lists, *lengths)


def write_bsa_rows(plan: Plan, path: Path, answers: Answers) -> None:
    """MIT Block-Sparse-Attention's descending lists."""
    bounded(4 * plan.batch * plan.heads * -(-plan.seqlen_q // 128) * -(-plan.seqlen_k // 128), path)
    lists = block_sparse_attention.to_row_lists(plan, superset=bool(answers.superset))
    write_array(path, lists)


def read_fa4(path: Path, answers: Answers) -> Plan:
    """flash-attn-4's lists of full blocks; a file has no mask function for partial ones."""
    wanted = dict.fromkeys(_FA4, "iu")
    arrays: dict[str, Tensor] = read_arrays(path, wanted)
    if bool((arrays["mask_block_cnt"] > 0).any()):
        raise PlanError(
            sentence(
                what="mask blocks come without their mask function",
                where=f"mask_block_cnt of {path}",
                got=f"{int(arrays['mask_block_cnt'].sum())} mask blocks",
                wanted="full blocks alone",
                remedy="call maskplan.interop.fa4.from_fa4 with mask_fn: a file holds no function",
            )
        )
    lengths = need(answers.seqlen_q), need(answers.seqlen_k)
    return fa4.from_fa4(arrays, *lengths, block_size=need(answers.block_size))


def write_fa4(plan: Plan, path: Path, answers: Answers) -> None:
    """flash-attn-4's lists of full blocks."""
    size = answers.block_size or plan.block_size
    whole = whole_blocks(plan, size, "flash-attn-4 lists", superset=bool(answers.superset))
    fields: dict[str, Any] = fa4.to_fa4(whole)
    write_arrays(path, {name: fields[name].to(torch.int32) for name in _FA4})


def _longest(plan: Plan) -> int:
    """Most keys that a query may see, by the blocks of its row."""
    return int(plan.row_ptr.diff().max()) * plan.block_size[1] if len(plan.row_ptr) > 1 else 0


def _bounded_tokens(plan: Plan, path: Path) -> None:
    """Refuse lists of keys that are too large: padded to the longest, and each pair while made."""
    padded = 4 * plan.batch * plan.heads * plan.seqlen_q * _longest(plan)
    bounded(max(padded, 16 * plan.stats().pairs), path)
