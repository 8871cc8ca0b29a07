"""FlashInfer: BSR with masks, blocks of variable size, and q2k lists.

Source: FlashInfer, `flashinfer/sparse.py` (`BlockSparseAttentionWrapper.plan`,
`VariableBlockSparseAttentionWrapper.plan`); FastVideo's kernels take the same q2k lists.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maskplan.bits import pack
from maskplan.build.block_lists import from_block_lists, from_bsr
from maskplan.build.host import Integers, bool_tensor, index_tensor, int_array, rank
from maskplan.build.slices import boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.interop.block_bits import block_bits
from maskplan.interop.whole_blocks import block_mask_of, one_pattern, whole_blocks
from maskplan.plan import Plan
from maskplan.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlashInferBsr:
    """Arguments of `BlockSparseAttentionWrapper.plan`, under its names.

    Attributes:
        indptr: int32 [MB + 1].
        indices: int32 [nnz], ascending in a row.
        M: queries.
        N: keys.
        R: queries of a block.
        C: keys of a block.
        mask: bool [nnz, R, C], or None where every block is whole.
    """

    indptr: Tensor
    indices: Tensor
    M: int
    N: int
    R: int
    C: int
    mask: Tensor | None


def to_bsr(plan: Plan, block_size: tuple[int, int] | None = None) -> FlashInferBsr:
    """The BSR matrix of a plan whose heads share one pattern.

    Args:
        plan: the plan.
        block_size: (R, C), the plan's own by default. The kernel wants lengths that they divide.

    Raises:
        PlanError: if heads differ.
    """
    moved = one_pattern(plan, "FlashInfer BSR")
    if block_size is not None:
        moved = moved.reblock(block_size)
    mask = None if moved.tile_id is None else block_bits(moved)
    return FlashInferBsr(
        indptr=moved.row_ptr.to(torch.int32),
        indices=moved.col,
        M=moved.seqlen_q,
        N=moved.seqlen_k,
        R=moved.block_size[0],
        C=moved.block_size[1],
        mask=mask,
    )


def from_flashinfer_bsr(
    indptr: Integers,
    indices: Integers,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int],
    mask: Tensor | None = None,
) -> Plan:
    """The plan of a BSR matrix, with FlashInfer's mask of each block where there is one.

    Args:
        indptr: int [MB + 1].
        indices: int [nnz], in any order within a row.
        seqlen_q: M, in tokens.
        seqlen_k: N, in tokens.
        block_size: (R, C), in tokens.
        mask: bool [nnz, R, C]: kept pairs of each block. Pairs outside (M, N) do not count.

    Raises:
        PlanTypeError: if an array has another type or shape.
        PlanError: as `maskplan.from_bsr`, or if `mask` does not fit the blocks.
    """
    plan = from_bsr(indptr, indices, seqlen_q, seqlen_k, block_size=block_size, sort=True)
    if mask is None:
        return plan
    geometry = plan.geometry
    pointers, blocks = int_array(indptr, "indptr", (None,)), int_array(indices, "indices", (None,))
    wanted = (len(blocks), *geometry.block_size)
    if tuple(bool_tensor(mask, "mask").shape) != wanted:
        raise PlanError(
            sentence(
                what="mask does not fit the blocks",
                where="mask",
                got=f"shape {list(mask.shape)}",
                wanted=f"{list(wanted)}, [nnz, R, C]",
                remedy="pass the mask in the order of indices",
            )
        )
    line = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    order = np.lexsort((blocks, line))
    (bq, bk), col = geometry.block_size, torch.from_numpy(blocks[order])
    top, left = torch.from_numpy(line[order]) * bq, col * bk
    in_range = ((top[:, None] + torch.arange(bq)) < seqlen_q)[:, :, None] & (
        (left[:, None] + torch.arange(bk)) < seqlen_k
    )[:, None, :]
    return Plan(
        geometry=geometry,
        pattern_id=torch.zeros((1, 1), dtype=torch.int32),
        row_ptr=torch.from_numpy(pointers),
        col=col.to(torch.int32),
        tile_id=torch.arange(len(blocks), dtype=torch.int32),
        tiles=pack(mask[torch.from_numpy(order)] & in_range),
        provenance=Provenance(builder="from_flashinfer_bsr"),
    ).canonical()


def from_variable_blocks(
    block_mask_map: Tensor,
    block_row_sz: Tensor,
    block_col_sz: Tensor,
    *,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """The plan of blocks of unequal size, exact by bits in blocks of one size.

    Args:
        block_mask_map: bool [heads, MB, NB]: which blocks are visited.
        block_row_sz: int32 or int64 [heads, MB]: queries of each row of blocks; 0 is allowed.
        block_col_sz: int32 or int64 [heads, NB]: keys of each column.
        block_size: (bq, bk) of the plan, in tokens.

    Returns:
        A plan of `heads` heads (FlashInfer's KV heads), with SQ and SK the sums of the sizes.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: if shapes differ, a size is negative, or heads differ in length.
    """
    rank(bool_tensor(block_mask_map, "block_mask_map"), "block_mask_map", (3,), "[heads, MB, NB]",
         "add the axis of heads")  # fmt: skip
    heads, rows, cols = block_mask_map.shape
    ends = []
    for name, sizes, count in (
        ("block_row_sz", block_row_sz, rows),
        ("block_col_sz", block_col_sz, cols),
    ):
        array = int_array(index_tensor(sizes, name), name, (heads, count))
        totals = array.sum(axis=1)
        if (array < 0).any() or (totals != totals[:1]).any():
            raise PlanError(
                sentence(
                    what="block sizes do not make one length",
                    where=name,
                    got=f"sums {totals.tolist()}, smallest size {array.min(initial=0)}",
                    wanted="sizes from 0 up with the same sum for every head",
                    remedy="pass the sizes of all blocks, in tokens",
                )
            )
        ends.append(np.concatenate([np.zeros((heads, 1), np.int64), array.cumsum(axis=1)], axis=1))
    q_ends, k_ends = ends
    slices = []
    for head in range(heads):
        row, start, stop = _runs(block_mask_map[head].numpy())
        slices.append(
            boxes(q_ends[head, row], q_ends[head, row + 1], k_ends[head, start], k_ends[head, stop])
        )
    geometry = Geometry(
        seqlen_q=int(q_ends[:, -1].max(initial=0)),
        seqlen_k=int(k_ends[:, -1].max(initial=0)),
        block_size=block_size,
    )
    parameters = {"heads": heads, "blocks": [rows, cols]}
    provenance = Provenance(builder="from_variable_blocks", parameters=parameters)
    ids = torch.arange(heads, dtype=torch.int32)[None]
    return plan_of_slices(slices, geometry, provenance, ids)


def _runs(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, first column, one past the last) of each stretch of True."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    row, start = (edges == 1).nonzero()
    return row, start, (edges == -1).nonzero()[1]


def to_variable_blocks(plan: Plan, *, superset: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(block_mask_map bool [heads, M, N], block_row_sz int32 [heads, M], block_col_sz [heads, N]).

    Raises:
        PlanError: if the plan has a batch, or a block kept in part without `superset`.
    """
    where = "FlashInfer block_mask_map"
    moved = whole_blocks(plan, plan.block_size, where, superset=superset)
    if moved.batch != 1:
        raise PlanError(
            sentence(
                what="format has no batch",
                where=where,
                got=f"batch {moved.batch}",
                wanted="batch 1",
                remedy="export each sample by itself",
            )
        )
    sizes = []
    for length, side in zip((plan.seqlen_q, plan.seqlen_k), plan.block_size, strict=True):
        starts = torch.arange(0, length, side, dtype=torch.int32)
        sizes.append((length - starts).clamp(max=side).expand(plan.heads, -1).contiguous())
    return block_mask_of(moved)[0], sizes[0], sizes[1]


def from_q2k(
    q2k_index: Tensor,
    q2k_num: Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int],
    repeat: int = 1,
    kv_block_sizes: Integers | None = None,
) -> Plan:
    """The plan of q2k lists, in any order within a row.

    Args:
        q2k_index: int32 or int64 [batch, heads, M * repeat, width], -1 past the count.
        q2k_num: int32 or int64 [batch, heads, M * repeat].
        seqlen_q: SQ, in tokens, padding included.
        seqlen_k: SK, in tokens, padding included.
        block_size: (bq, bk), in tokens.
        repeat: rows that each Q block's list takes, as packing a group of query heads makes them;
            they have to agree.
        kv_block_sizes: int [N]: the leading keys of each KV block that are no padding, as VSA's
            `variable_block_sizes`; all by default.

    Raises:
        PlanTypeError: if a tensor has another dtype or rank.
        PlanError: as `maskplan.from_block_lists`, or if repeated rows disagree.
    """
    repeat = integer(repeat, "repeat", low=1)
    rank(index_tensor(q2k_index, "q2k_index"), "q2k_index", (4,), "[batch, heads, rows, width]",
         "add the axes")  # fmt: skip
    index_tensor(q2k_num, "q2k_num")
    beyond = torch.arange(q2k_index.shape[-1]) >= q2k_num[..., None]
    clean = q2k_index.masked_fill(beyond, -1)
    first, num = clean[:, :, ::repeat], q2k_num[:, :, ::repeat]
    same = (first.repeat_interleave(repeat, dim=2)[:, :, : clean.shape[2]] == clean).all(dim=-1)
    if not bool(same.all()):
        b, h, row = (~same).nonzero()[0].tolist()
        raise PlanError(
            sentence(
                what="repeated lists disagree",
                where=f"q2k_index[b={b}, h={h}, row={row}]",
                got=clean[b, h, row].tolist()[:8],
                wanted=f"the list of row {row - row % repeat}",
                remedy="pass the number of rows that share a list as repeat",
            )
        )
    plan = from_block_lists(num, first, seqlen_q, seqlen_k, block_size=block_size, sort=True)
    return plan if kv_block_sizes is None else plan & _valid_keys(plan.geometry, kv_block_sizes)


def _valid_keys(geometry: Geometry, sizes: Integers) -> Plan:
    valid = int_array(sizes, "kv_block_sizes", (geometry.num_k_blocks,))
    starts = np.arange(geometry.num_k_blocks) * geometry.block_size[1]
    room = np.minimum(geometry.seqlen_k - starts, geometry.block_size[1])
    bad = (valid < 0) | (valid > room)
    if bad.any():
        at = int(bad.argmax())
        raise PlanError(
            sentence(
                what="valid keys do not fit their block",
                where=f"kv_block_sizes[{at}]",
                got=int(valid[at]),
                wanted=f"0 to {room[at]}",
                remedy="pass the padded seqlen_k that the sizes were made for",
            )
        )
    zero = np.zeros(len(starts), dtype=np.int64)
    slices = boxes(zero, zero + geometry.seqlen_q, starts, starts + valid)
    return plan_of_slices([slices], geometry, Provenance(builder="from_q2k"))
