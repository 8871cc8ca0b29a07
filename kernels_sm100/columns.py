"""The walk of LoopQ: KV blocks, each with the coarse Q blocks that visit it.

NOTE [Steps]: a CTA owns a KV block of a KV head. Its steps are the Q tiles that see the block: of
each query head of the group, of each entry of that head's list, each part that the entry does not
skip. Parts past the end of the queries are skipped by the tables. Load, MMA, compute and sums warps
all ask here for the next step, from tables that none of them changes, so that they cannot disagree;
where they did, the kernel would hang. All have the same two loops, over heads and over the steps of
a head, so that a step does not pay for the change of heads.

NOTE [Head split]: a few KV heads with long groups are too few work items for the device. With
`head_split` a work item is a share of the group's heads, and adds its dK and dV to float32 sums as
others do.

NOTE [Turns]: with deterministic sums, a CTA adds to a dQ tile only when those before it in the
plan's write order have. Work items are then taken in the order of KV blocks, not longest first:
whoever is waited for has been taken earlier, and the earliest that is not done waits for nobody.
All CTAs of the grid have to be resident. The order of an item's own steps does not matter.
"""

from typing import NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, const_expr, cute

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.walk import SKIP


class Columns(NamedTuple):
    """Tables and sizes of the walk, as kernel parameters. Heads are packed ones with PackGQA.

    Attributes:
        pattern_id: int32 [PB, PH]: the pattern of a (batch, query head); either size may be 1.
        row_ptr: int64 [patterns * rows + 1].
        col: int32 [entries]: coarse Q blocks.
        tile_id: int32 [entries, parts].
        write_order: int32 [entries, parts]: turns, or -1 where a part skips.
        tiles: int32 [T, 128, words]: keep-bits of S^T.
        order: int32 [PB * owners * rows]: (plan batch, owner, row), row fastest, longest first.
        rows: KV blocks. This and the next four divide, by multiplication.
        owners: heads of `order`: the smaller of PH and the KV heads.
        heads: KV heads an owner.
        batches: batches per plan batch.
        pattern_heads: query heads per head of `pattern_id`.
        columns: KV heads of all batches.
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
    """What a CTA works on: a KV block of a KV head, and its query heads `first` to `last` - 1."""

    batch: Int32
    head: Int32
    block: Int32
    plan_batch: Int32
    first: Int32
    last: Int32


class Step(NamedTuple):
    """Where a warp is in a query head's list for its item.

    Attributes:
        more: whether there is a step; nothing else means anything if not.
        begin: first entry of the list.
        places: parts of all its entries.
        place: how many of them are behind.
        entry: of the tables.
        part: of the entry.
        tile: its tile id.
    """

    more: Boolean
    begin: Int64
    places: Int32
    place: Int32
    entry: Int64
    part: Int32
    tile: Int32


@cute.jit
def column(walk: Columns, index: Int32, config: cutlass.Constexpr[BackwardConfig]) -> Column:
    """Work item `index`: longest first, or in the order of turns."""
    block, plan_batch, owner = Int32(0), Int32(0), Int32(0)
    share = Int32(0)
    if const_expr(config.head_split > 1):
        share = index % config.head_split
        index = index // config.head_split
    if const_expr(config.deterministic):
        block, index = divmod(index, walk.columns)
        if const_expr(config.spt):
            block = walk.rows.divisor - 1 - block
    index, head_of = divmod(index, walk.heads)
    index, batch_of = divmod(index, walk.batches)
    if const_expr(config.deterministic):
        plan_batch, owner = divmod(index, walk.owners)
    else:
        index, block = divmod(walk.order[index], walk.rows)
        plan_batch, owner = divmod(index, walk.owners)
    head = owner * walk.heads.divisor + head_of
    first = (head * config.head_split + share) * config.heads_each
    return Column(
        batch=plan_batch * walk.batches.divisor + batch_of,
        head=head,
        block=block,
        plan_batch=plan_batch,
        first=first,
        last=first + config.heads_each,
    )


@cute.jit
def first_step(
    walk: Columns, item: Column, head: Int32, config: cutlass.Constexpr[BackwardConfig]
) -> Step:
    """The first step of a query head of an item, if it has one."""
    plan_head, _ = divmod(head, walk.pattern_heads)
    line = Int64(walk.pattern_id[item.plan_batch, plan_head]) * walk.rows.divisor + item.block
    begin = walk.row_ptr[line]
    start = Step(
        more=Boolean(True),
        begin=begin,
        places=Int32(walk.row_ptr[line + 1] - begin) * config.parts,
        place=Int32(-1),
        entry=begin,
        part=Int32(0),
        tile=Int32(SKIP),
    )
    return next_step(walk, start, config)


@cute.jit
def next_step(walk: Columns, step: Step, config: cutlass.Constexpr[BackwardConfig]) -> Step:
    """The step after `step` in the same list, if there is one."""
    more, begin, places, place, entry, part, tile = step
    tile = Int32(SKIP)
    while more and tile == SKIP:
        place += 1
        more = place < places
        if more:
            at = place
            if const_expr(config.descending):
                at = places - 1 - place
            entry, part = begin + at // config.parts, at % config.parts
            tile = walk.tile_id[entry, part]
    return Step(more, begin, places, place, entry, part, tile)


def q_tile(walk: Columns, step: Step, config: BackwardConfig) -> Int32:
    """The Q tile of a step, of its head."""
    return walk.col[step.entry] * config.parts + step.part
