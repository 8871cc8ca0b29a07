"""`BlockSparseTensors`: padded block lists, the form in which kernels exchange plans."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from maskplan.device.status import raise_faults
from maskplan.errors import PlanError, sentence
from maskplan.lower.target import Target
from maskplan.untransformed import untransformed

FILL = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BlockSparseTensors:
    """Padded lists of full and of mask blocks, every entry past its count -1.

    R is the number of Q blocks (forward, LoopK) or KV blocks (LoopQ), W the width of a list; the
    two widths may differ. Lists ascend. Field names are those of flash-attn-4.

    Attributes:
        mask_block_cnt: int32 [batch, heads, R].
        mask_block_idx: int32 [batch, heads, R, W].
        full_block_cnt: int32 [batch, heads, R].
        full_block_idx: int32 [batch, heads, R, W].
        mask_tile_id: int32, as mask_block_idx: the row of `tiles` with that block's bits.
        tiles: int32 [T, rows of a block, words]; of S^T for LoopQ.
        block_size: (packed rows of a Q block, tokens of a KV block).
        dq_write_order: LoopQ: int32, as mask_block_idx: rank of this KV block among those, mask or
            full, that add to that Q block's dQ.
        dq_write_order_full: LoopQ: the same for full_block_idx.
        spt: LoopQ: whether ranks descend with the KV block; None for the other directions.
        status: int32 [1] of lists that `from_topk` made on a GPU, whose bits record what it had to
            drop: see `maskplan.device.status`. Else None; those of a device plan are recorded in
            the plan's.
    """

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor
    full_block_idx: Tensor
    mask_tile_id: Tensor
    tiles: Tensor
    block_size: tuple[int, int]
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
    spt: bool | None = None
    status: Tensor | None = None

    @staticmethod
    @untransformed
    def from_topk(
        indices: Tensor,
        seqlen_k: int,
        target: Target | str | None = None,
        *,
        block_size: tuple[int, int] = (128, 128),
        rows: str = "token",
        unit: str = "token",
        base: str = "local",
        lengths: Tensor | None = None,
        seqlen_q: int | None = None,
        whole: bool = False,
        direction: str = "forward",
        width: str | int = "compact",
    ) -> "BlockSparseTensors":
        """Forward lists straight from lists of selected keys, with no plan in between.

        They are what `maskplan.from_topk(...).block_sparse_tensors(...)` makes. On a GPU the plan's
        own lists are neither written nor kept, which saves up to two fifths of the bytes written;
        the lists are made without waiting for it, and can be captured in a CUDA graph. What was
        wrong with the indices, or did not fit in `width`, is recorded in `status`.

        Args:
            indices: int32 or int64 [batch, heads, rows, topk], any strides, on the CPU or a GPU.
            seqlen_k: SK, in tokens.
            target: the kernel they are for, whose legal tiles are checked: from
                `maskplan.target`, or an architecture's name, for head_dim 128 and group 1; None
                checks nothing.
            block_size: (bq, bk), in tokens.
            rows: "token" or "block": see `maskplan.from_topk`, as for the next five.
            unit: "token" or "block".
            base: "local" or "global".
            lengths: int32 or int64 [batch, heads, rows]: leading lanes of each list that hold.
            seqlen_q: SQ, in tokens.
            whole: say that every listed block is full.
            direction: "forward", or "loop_k" for the backward that streams K and V.
            width: "compact", the longest list; "dense", the number of KV blocks; or a number of
                slots. On a GPU "dense" or a number.

        Raises:
            PlanTypeError: as `maskplan.from_topk`.
            PlanError: as `maskplan.from_topk`, and for a block size, direction or width that does
                not fit: see `Plan.block_sparse_tensors`.
            UnsupportedError: if the target has no such direction.
        """
        from maskplan.lower.topk_tensors import of_topk

        return of_topk(
            indices, seqlen_k, target, whole=whole, direction=direction, width=width,
            block_size=block_size, rows=rows, unit=unit, base=base, lengths=lengths,
            seqlen_q=seqlen_q,
        )  # fmt: skip

    @untransformed
    def validate(self) -> None:
        """Raise for what a GPU recorded while `from_topk` made the lists, and waits for it.

        Raises:
            PlanError: if an index or a length was out of range, a block was not whole, or a list
                did not fit.
        """
        if self.status is not None:
            raise_faults(self.status, "lists'")

    def __repr__(self) -> str:
        batch, heads, rows, width = self.mask_block_idx.shape
        bq, bk = self.block_size
        orders = "" if self.dq_write_order is None else "with dQ write order, "
        return (
            f"BlockSparseTensors(batch={batch}, heads={heads}, {rows} rows of up to {width} mask "
            f"and {self.full_block_idx.shape[3]} full blocks of {bq} x {bk}, "
            f"{self.tiles.shape[0]} bit tiles, {orders}on {self.tiles.device})"
        )

    def fa4(self, *, mask_mod: object = None) -> dict[str, Any]:
        """The keywords of flash-attn-4's `BlockSparseTensorsTorch`.

        Without a `mask_mod` it reads how many mask blocks there are, and waits for a GPU to do so.

        Args:
            mask_mod: the mask function that will be passed along with these lists. It is only
                looked at for being there: mask blocks without one would be attended whole.

        Raises:
            PlanError: if there are mask blocks and no `mask_mod`.
        """
        if mask_mod is None and bool((self.mask_block_cnt > 0).any()):
            raise PlanError(
                sentence(
                    what="mask blocks without a mask",
                    where="BlockSparseTensors.fa4",
                    got=f"{int(self.mask_block_cnt.sum())} mask blocks and mask_mod=None",
                    wanted="a mask_mod that keeps their pairs apart",
                    remedy="pass mask_mod, or ask for more pairs by name with "
                    "plan.reblock(plan.block_size, superset=True)",
                )
            )
        return {
            "mask_block_cnt": self.mask_block_cnt,
            "mask_block_idx": self.mask_block_idx,
            "full_block_cnt": self.full_block_cnt,
            "full_block_idx": self.full_block_idx,
            "block_size": self.block_size,
            "dq_write_order": self.dq_write_order,
            "dq_write_order_full": self.dq_write_order_full,
            "spt": self.spt,
        }
