"""FlashInfer: BSR with masks, and blocks of variable size.

Source: FlashInfer, `flashinfer/sparse.py` (`BlockSparseAttentionWrapper.plan`,
`VariableBlockSparseAttentionWrapper.plan`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maskplan.bits import pack
from maskplan.build.block_lists import from_bsr
from maskplan.build.host import Integers, bool_tensor, index_tensor, int_array, rank
from maskplan.build.slices import boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import MAX_SEQLEN, Geometry
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
        PlanError: if shapes differ, a size is negative or no length, there are no heads, or
            they differ in length.
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
        # Sums of int64 wrap: sizes that no sequence has are refused before they are added.
        unfit = not heads or ((array < 0) | (array > MAX_SEQLEN)).any()
        totals = array.sum(axis=1)
        if unfit or (totals != totals[:1]).any():
            raise PlanError(
                sentence(
                    what="block sizes do not make one length",
                    where=name,
                    got=f"sums {totals.tolist()}, smallest size {array.min(initial=0)}, "
                    f"largest {array.max(initial=0)}",
                    wanted=f"sizes from 0 to {MAX_SEQLEN}, the same sum for every head, and a head",
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
