"""Plans from block masks: which KV blocks each Q block visits, whole."""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.build.host import bool_tensor
from maskplan.build.pattern_axes import distinct, with_heads_axes
from maskplan.device.block_mask import mask_plan
from maskplan.device.move import on_gpu
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.threads import run_ranges
from maskplan.untransformed import untransformed


@untransformed
def from_block_mask(
    mask: Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    capacity: int | None = None,
) -> Plan:
    """The plan that keeps every in-range pair of the blocks marked.

    Axes that `expand` broadcast over batch or heads are planned once. A mask on a GPU becomes a
    device plan, without waiting for the device.

    Args:
        mask: bool [M, N], [heads, M, N] or [batch, heads, M, N], any strides, on the CPU or a GPU.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens; M = ceil(SQ / bq), N = ceil(SK / bk).
        capacity: room for blocks in a device plan, by default for all; blocks beyond it are dropped
            and recorded. Of no consequence on the CPU.

    Raises:
        PlanTypeError: if `mask` is not a bool tensor of 2 to 4 axes.
        PlanError: if M or N do not fit the lengths.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    full = with_heads_axes(bool_tensor(mask, "mask", or_gpu=True), "mask", "M, N")
    wanted = (geometry.num_q_blocks, geometry.num_k_blocks)
    if tuple(full.shape[2:]) != wanted:
        raise PlanError(
            sentence(
                what="block mask does not fit the lengths",
                where="mask, last two axes",
                got=f"{full.shape[2]} x {full.shape[3]} blocks",
                wanted=f"{wanted[0]} x {wanted[1]}, for {geometry}",
                remedy="pass the lengths and block_size that the mask was made for",
            )
        )
    pattern_id, (own,) = distinct(full)
    provenance = Provenance(builder="from_block_mask")
    room = None if capacity is None else integer(capacity, "capacity")
    if on_gpu(mask):
        return mask_plan(own, geometry, pattern_id, provenance, room)
    row_ptr, col = _lists(own)
    return assemble(geometry, pattern_id, row_ptr, col, None, None, provenance)


def _lists(masks: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr int64 [b * h * M + 1], col int32) of bool [b, h, M, N]."""
    from maskplan.build.block_mask_kernel import count_rows, list_rows

    heads, rows = masks.shape[1:3]
    patterns = masks.shape[0] * heads

    def lines(pattern: int) -> np.ndarray:
        return masks[divmod(pattern, heads)].contiguous().view(torch.uint8).numpy()

    counts = np.zeros((patterns, rows), dtype=np.int64)

    def count(start: int, stop: int) -> None:
        for pattern in range(start, stop):
            count_rows(lines(pattern), counts[pattern])

    run_ranges(count, patterns)
    row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    col = np.empty(row_ptr[-1], dtype=np.int32)

    def write(start: int, stop: int) -> None:
        for pattern in range(start, stop):
            own_ptr = row_ptr[pattern * rows : (pattern + 1) * rows + 1]
            list_rows(lines(pattern), own_ptr, col)

    run_ranges(write, patterns)
    return row_ptr, col
