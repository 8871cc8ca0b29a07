"""`Plan` and `TransposedPlan`: which query sees which key, block by block, exact to the token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskplan.block_lists import FULL, BlockLists, require_exact
from maskplan.geometry import Axes
from maskplan.untransformed import untransformed

if TYPE_CHECKING:
    from maskplan.lower.lowered import LoweredPlan
    from maskplan.lower.target import Target
    from maskplan.lower.tensors import BlockSparseTensors
    from maskplan.lower.token_tiles import TokenTiles

__all__ = ["FULL", "BlockLists", "Plan", "TransposedPlan", "require_exact"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Plan(BlockLists):
    """Forward lists: for each Q block, the KV blocks it visits. A frozen value.

    Attributes:
        geometry: SQ, SK and block size (bq, bk), in tokens; M and N blocks.
        pattern_id: int32 [batch, heads]: the pattern of each (batch, head); batch is 1 or B, heads
            are 1, HK or HQ.
        row_ptr: int64 [P * M + 1]: row (pattern, Q block), Q block fastest, lists
            col[row_ptr[row] : row_ptr[row + 1]].
        col: int32 [blocks]: KV blocks.
        tile_id: int32 [blocks], or None when all blocks are full: -1 where every in-range pair of
            the block attends, else its row of `tiles`.
        tiles: int32 [T, bq, ceil(bk / 32)] bit patterns: bit i of word w is key 32 * w + i.
        provenance: how the plan was made; no part of equality or digest.
        status: None of an exact plan; int32 [1] of a device plan, whose bits record what the device
            had to drop: see `maskplan.device.status`.

    A device plan is one made by the device without waiting for it, so nobody knows how many blocks
    it has: `col` and `tile_id` have room to spare, and hold -1 from row_ptr[-1] on. `tiles` has
    room too, tile numbers are in no order, and tiles may be alike. `transpose`, `reblock`, `lower`
    and `block_sparse_tensors` work on it; what needs the numbers takes `plan.cpu()`.

    Invariants, checked by `validate()`:

        1. pattern_id holds at least one entry, each in [0, P).
        2. row_ptr starts at 0, never decreases and ends at the number of blocks.
        3. each col is in [0, N).
        4. cols ascend strictly in a row.
        5. each tile_id is -1 or in [0, T).
        6. tile bits past the block's width, or outside (SQ, SK) where the tile is used, are 0.

    The canonical form, which builders on the CPU return, also has:

        7. no listed block is empty, and a block that is complete in range is -1.
        8. tiles are distinct, and numbered by first use over the rows.
        9. patterns are distinct, and numbered by first use in pattern_id.
       10. tile_id is None when every block is full.

    Together they make a canonical plan a function of (dense mask, block size).

    Raises:
        PlanTypeError: if an array has the wrong dtype, rank or shape.
    """

    @property
    def axes(self) -> Axes:
        """Rows are queries, columns are keys."""
        return self.geometry.axes

    @untransformed
    def __and__(self, other: "Plan") -> "Plan":
        """Pairs kept by both."""
        require_exact(self, "&")
        from maskplan.transform.combine import combine

        return combine(self, other, "&")

    @untransformed
    def __or__(self, other: "Plan") -> "Plan":
        """Pairs kept by either."""
        require_exact(self, "|")
        from maskplan.transform.combine import combine

        return combine(self, other, "|")

    @untransformed
    def __sub__(self, other: "Plan") -> "Plan":
        """Pairs kept here and not in `other`."""
        require_exact(self, "-")
        from maskplan.transform.combine import combine

        return combine(self, other, "-")

    @untransformed
    def transpose(self) -> "TransposedPlan":
        """The same pairs listed per KV block: what LoopQ walks."""
        from maskplan.transform.transpose import transpose_plan

        return transpose_plan(self)

    @untransformed
    def reblock(self, block_size: tuple[int, int], *, superset: bool = False) -> "Plan":
        """The same pairs in blocks of another size, up or down, exact by bits."""
        from maskplan.transform.reblock import reblock

        return reblock(self, block_size, superset=superset)

    @untransformed
    def crop(self, *, q: tuple[int, int] | None = None, k: tuple[int, int] | None = None) -> "Plan":
        """The plan of queries [q[0], q[1]) and keys [k[0], k[1]) alone, renumbered from 0."""
        require_exact(self, "crop")
        from maskplan.transform.crop import crop

        return crop(self, q=q, k=k)

    @untransformed
    def with_heads(self, heads: int) -> "Plan":
        """The plan for `heads` heads: each head here serves heads / self.heads neighbours."""
        from maskplan.transform.heads import with_heads

        return with_heads(self, heads)

    @untransformed
    def shard(self, axis: str, index: int, count: int) -> "Plan":
        """Part `index` of `count` equal parts along "q" (whole Q blocks) or "heads"."""
        require_exact(self, "shard")
        from maskplan.transform.shard import shard

        return shard(self, axis, index, count)

    def lower(self, target: "Target | str", **options: Any) -> "LoweredPlan":
        """Everything one backend needs, forward and backward, as tensors."""
        from maskplan.lower.lowering import lower

        return lower(self, target, **options)

    @untransformed
    def block_sparse_tensors(
        self, target: "Target | str | None" = None, **options: Any
    ) -> "BlockSparseTensors":
        """Padded lists for the forward, or for a LoopK backward."""
        from maskplan.lower.padded_lists import forward_tensors

        return forward_tensors(self, target, **options)

    @untransformed
    def token_tiles(self, target: "Target | str", **options: Any) -> "TokenTiles":
        """The tokens each Q tile gathers: options policy, tile_rows, kv_heads and max_coverage."""
        from maskplan.lower.token_lists import of_plan

        return of_plan(self, target, **options)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TransposedPlan(BlockLists):
    """LoopQ lists: for each KV block, the Q blocks that visit it. A frozen value.

    The fields are those of `Plan` with rows and columns changed over: a row is (pattern, KV block),
    col holds Q blocks, tiles are int32 [T, bk, ceil(bq / 32)] with bit i of word w for query
    32 * w + i. `geometry` and `block_size` stay those of the plan, (bq, bk). The invariants and the
    canonical form are the same ten.
    """

    @property
    def axes(self) -> Axes:
        """Rows are keys, columns are queries."""
        return self.geometry.axes.transposed

    @untransformed
    def transpose(self) -> Plan:
        """The forward lists again."""
        from maskplan.transform.transpose import transpose_back

        return transpose_back(self)

    @untransformed
    def reblock(self, block_size: tuple[int, int], *, superset: bool = False) -> "TransposedPlan":
        """The same pairs in blocks of (bq, bk) tokens, exact by bits."""
        from maskplan.transform.reblock import reblock

        return reblock(self, block_size, superset=superset)

    @untransformed
    def block_sparse_tensors(
        self, target: "Target | str | None" = None, **options: Any
    ) -> "BlockSparseTensors":
        """Padded lists for a LoopQ backward."""
        from maskplan.lower.padded_lists import loop_q_tensors

        return loop_q_tensors(self, target, **options)
