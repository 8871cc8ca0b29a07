"""Video sparse attention's q2k lists, as FlashInfer and FastVideo take them.

Source: FastVideo, `fastvideo-kernel` (`block_sparse_fwd`: q2k_block_sparse_index and _num,
kv_block_size); FlashInfer's VSA, where the rows of a packed group of query heads repeat.
"""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.block_lists import from_block_lists
from maskplan.build.host import Integers, index_tensor, int_array, rank
from maskplan.build.slices import boxes, plan_of_slices
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.interop.whole_blocks import whole_blocks
from maskplan.plan import Plan
from maskplan.provenance import Provenance


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
        PlanError: as `maskplan.from_block_lists`, or if repeated rows disagree or counts
            do not have the shape of the lists.
    """
    repeat = integer(repeat, "repeat", low=1)
    rank(index_tensor(q2k_index, "q2k_index"), "q2k_index", (4,), "[batch, heads, rows, width]",
         "add the axes")  # fmt: skip
    rank(index_tensor(q2k_num, "q2k_num"), "q2k_num", (3,), "[batch, heads, rows]", "add the axes")
    if q2k_num.shape != q2k_index.shape[:3]:
        raise PlanError(
            sentence(
                what="counts do not fit the lists",
                where="q2k_num",
                got=f"shape {list(q2k_num.shape)}",
                wanted=f"{list(q2k_index.shape[:3])}, one for each list",
                remedy="pass the counts that came with q2k_index",
            )
        )
    beyond = torch.arange(q2k_index.shape[-1]) >= q2k_num[..., None]
    clean = q2k_index.masked_fill(beyond, -1)
    first, num = clean[:, :, ::repeat], q2k_num[:, :, ::repeat]
    same = (first.repeat_interleave(repeat, dim=2)[:, :, : clean.shape[2]] == clean).all(dim=-1)
    same &= num.repeat_interleave(repeat, dim=2)[:, :, : clean.shape[2]] == q2k_num
    if not bool(same.all()):
        b, h, row = (~same).nonzero()[0].tolist()
        raise PlanError(
            sentence(
                what="repeated lists disagree",
                where=f"q2k_index[b={b}, h={h}, row={row}]",
                got=f"{int(q2k_num[b, h, row])} blocks, {clean[b, h, row].tolist()[:8]}",
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


def to_q2k(
    plan: Plan,
    block_size: tuple[int, int],
    *,
    repeat: int = 1,
    superset: bool = False,
) -> tuple[Tensor, Tensor]:
    """(q2k_index int32 [batch, heads, M * repeat, width], q2k_num [batch, heads, M * repeat]).

    Lists ascend and hold -1 past their count; the width is the longest list, at least 1.

    Args:
        plan: the plan, in any block size.
        block_size: (bq, bk) of the kernel, in tokens.
        repeat: rows that each Q block's list takes.
        superset: keep whole blocks where the plan keeps a part of one.

    Raises:
        PlanError: if a block is kept in part and `superset` is False.
    """
    repeat = integer(repeat, "repeat", low=1)
    lists = whole_blocks(plan, block_size, "q2k lists", superset=superset).block_sparse_tensors()
    index = lists.full_block_idx.repeat_interleave(repeat, dim=2)
    return index, lists.full_block_cnt.repeat_interleave(repeat, dim=2)
