"""Formats of one mask in an array: block masks, token masks, and those of two projects."""

from pathlib import Path

import torch
from torch import Tensor

from maskplan.build import from_block_mask, from_token_mask
from maskplan.cli.arrays import read_array, read_arrays, write_array, write_arrays
from maskplan.cli.formats.answers import Answers, need
from maskplan.errors import PlanError, sentence
from maskplan.interop import block_sparse_attention, sparge
from maskplan.interop.whole_blocks import block_mask_of, whole_blocks
from maskplan.plan import Plan

MAX_BYTES = 2**31  # of an array that is made


def read_block_mask(path: Path, answers: Answers) -> Plan:
    """Bools [.., M, N]."""
    mask = read_array(path, "b", None)
    return from_block_mask(
        mask, need(answers.seqlen_q), need(answers.seqlen_k), block_size=need(answers.block_size)
    )


def write_block_mask(plan: Plan, path: Path, answers: Answers) -> None:
    """Bools [batch, heads, M, N]."""
    size = answers.block_size or plan.block_size
    whole = whole_blocks(plan, size, "block mask", superset=bool(answers.superset))
    bounded(plan.batch * plan.heads * whole.axes.rows * whole.axes.cols, path)
    write_array(path, block_mask_of(whole))


def read_token_mask(path: Path, answers: Answers) -> Plan:
    """Bools [.., SQ, SK]."""
    return from_token_mask(read_array(path, "b", None), block_size=answers.block)


def write_token_mask(plan: Plan, path: Path, _: Answers) -> None:
    """Bools [batch, heads, SQ, SK]."""
    bounded(plan.batch * plan.heads * plan.seqlen_q * plan.seqlen_k, path)
    write_array(path, plan.to_dense())


def read_sparge_mask(path: Path, answers: Answers) -> Plan:
    """SpargeAttn's mask_id, 0 or 1 [batch, heads, M, N]."""
    mask = read_array(path, "biu", 4)
    lengths = need(answers.seqlen_q), need(answers.seqlen_k)
    return sparge.from_mask_id(mask, *lengths, arch=need(answers.arch))


def write_sparge_mask(plan: Plan, path: Path, answers: Answers) -> None:
    """SpargeAttn's mask_id, int8."""
    write_array(path, _sparge(plan, path, answers).mask_id)


def read_sparge_lut(path: Path, answers: Answers) -> Plan:
    """SpargeAttn's delta-coded lists."""
    arrays = read_arrays(path, {"lut": "iu", "valid_block_num": "iu"})
    lengths = need(answers.seqlen_q), need(answers.seqlen_k)
    return sparge.from_lut(
        arrays["lut"], arrays["valid_block_num"], *lengths, arch=need(answers.arch)
    )


def write_sparge_lut(plan: Plan, path: Path, answers: Answers) -> None:
    """SpargeAttn's delta-coded lists."""
    found = _sparge(plan, path, answers)
    write_arrays(path, {"lut": found.lut, "valid_block_num": found.valid_block_num})


def _sparge(plan: Plan, path: Path, answers: Answers) -> sparge.SpargeTensors:
    bq, bk = sparge.block_size_of(need(answers.arch))
    blocks = -(-plan.seqlen_q // bq) * -(-plan.seqlen_k // bk)
    bounded(4 * plan.batch * plan.heads * blocks, path)
    return sparge.to_sparge(plan, need(answers.arch), superset=bool(answers.superset))


def read_bsa(path: Path, answers: Answers) -> Plan:
    """MIT Block-Sparse-Attention's mask of dense, sparse and streaming heads."""
    optional = {"base_blockmask": "b", "streaming_info": "iu"}
    arrays = read_arrays(path, {"head_mask_type": "iu"}, optional)
    return block_sparse_attention.from_head_masks(
        arrays.get("base_blockmask"),
        arrays["head_mask_type"],
        arrays.get("streaming_info"),
        need(answers.seqlen_q),
        need(answers.seqlen_k),
        causal=need(answers.causal),
    )


def write_bsa(plan: Plan, path: Path, answers: Answers) -> None:
    """MIT Block-Sparse-Attention's mask."""
    base, kinds = block_sparse_attention.to_head_masks(
        plan, causal=need(answers.causal), superset=bool(answers.superset)
    )
    arrays: dict[str, Tensor] = {"head_mask_type": kinds.to(torch.int32)}
    write_arrays(path, arrays | ({"base_blockmask": base} if base.shape[1] else {}))


def bounded(size: int, path: Path) -> None:
    """Refuse an array that is too large to make.

    Raises:
        PlanError: if it takes more than `MAX_BYTES` bytes.
    """
    if size > MAX_BYTES:
        raise PlanError(
            sentence(
                what="plan is too large for this format",
                where=str(path),
                got=f"{size} bytes",
                wanted=f"at most {MAX_BYTES}",
                remedy="name a format of blocks, or cut the plan into parts",
            )
        )
