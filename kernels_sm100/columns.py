"""The walk of LoopQ: KV blocks, each with the coarse Q blocks that visit it.

NOTE [Steps]: a CTA owns a KV block of a KV head. It loops over the query heads of the group, over
the entries of each head's list, and over the parts of an entry, the Q tiles of 128 queries; a part
that an entry skips is no step. Every warp role runs these three loops over the same tables, so that
all count the same steps.

NOTE [Turns]: with deterministic sums, a CTA adds to a dQ tile only when those before it in the
plan's write order have. Work items are then taken in the order of KV blocks, not longest first:
whoever is waited for has been taken earlier, and the earliest that is not done waits for nobody.
All CTAs of the grid have to be resident.
"""

from typing import Any, NamedTuple

from cutlass import Int32, Int64, const_expr, cute


class Columns(NamedTuple):
    """Tables and sizes of the walk, as kernel parameters.

    Attributes:
        pattern_id: int32 [PB, PH]: the pattern of a (batch, query head); either size may be 1.
        row_ptr: int64 [patterns * rows + 1].
        col: int32 [entries]: coarse Q blocks.
        tile_id: int32 [entries, parts].
        write_order: int32 [entries, parts]: turns, or -1 where a part skips.
        tiles: int32 [T, 128, 4]: keep-bits of S^T.
        order: int32 [PB * owners * rows]: (plan batch, owner, row), row fastest, longest first.
        rows: KV blocks. This and the next four divide, by multiplication.
        owners: heads of `order`: the smaller of PH and the KV heads.
        heads: KV heads an owner.
        batches: batches per plan batch.
        pattern_heads: query heads per head of `pattern_id`.
        columns: work items per KV block.
        items: work items of the launch.
    """

    pattern_id: cute.Tensor
    row_ptr: cute.Tensor
    col: cute.Tensor
    tile_id: cute.Tensor
    write_order: cute.Tensor
    tiles: cute.Tensor
    order: cute.Tensor
    rows: cute.FastDivmodDivisorV2
    owners: cute.FastDivmodDivisorV2
    heads: cute.FastDivmodDivisorV2
    batches: cute.FastDivmodDivisorV2
    pattern_heads: cute.FastDivmodDivisorV2
    columns: cute.FastDivmodDivisorV2
    items: Int32


class Column(NamedTuple):
    """What a CTA works on: a KV block of a KV head."""

    batch: Int32
    head: Int32
    block: Int32
    plan_batch: Int32


@cute.jit
def column(walk: Columns, index: Int32, in_turns: Any, descending: Any) -> Column:
    """Work item `index`: longest first, or in the order of turns."""
    block, plan_batch, owner = Int32(0), Int32(0), Int32(0)
    if const_expr(in_turns):
        block, index = divmod(index, walk.columns)
        if const_expr(descending):
            block = walk.rows.divisor - 1 - block
    index, head_of = divmod(index, walk.heads)
    index, batch_of = divmod(index, walk.batches)
    if const_expr(in_turns):
        plan_batch, owner = divmod(index, walk.owners)
    else:
        index, block = divmod(walk.order[index], walk.rows)
        plan_batch, owner = divmod(index, walk.owners)
    return Column(
        batch=plan_batch * walk.batches.divisor + batch_of,
        head=owner * walk.heads.divisor + head_of,
        block=block,
        plan_batch=plan_batch,
    )


@cute.jit
def column_list(walk: Columns, item: Column, query_head: Int32) -> tuple[Int64, Int32]:
    """(first entry, entries) of a query head's list for the item's KV block."""
    plan_head, _ = divmod(query_head, walk.pattern_heads)
    line = Int64(walk.pattern_id[item.plan_batch, plan_head]) * walk.rows.divisor + item.block
    begin = walk.row_ptr[line]
    return begin, Int32(walk.row_ptr[line + 1] - begin)
