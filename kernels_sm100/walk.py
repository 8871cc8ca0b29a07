"""The walk of block lists, written once for every warp role.

Load, MMA, softmax, correction and store warps all ask the same questions: what is work item `i`,
how many entries does its row have, and what does an entry mean to a Q tile. They ask here, from
tables that none of them changes, so that they cannot disagree; where they did, the kernel would
hang.

NOTE [One merged list]: a row lists full blocks and mask blocks together, ascending, and an entry
carries a tile id for each Q tile of the CTA: FULL, SKIP, or a row of the bit tiles. One loop visits
them, so the loop's body exists once. A tile that skips an entry does nothing for it, in any role.

NOTE [Gathered walk]: where a row lists tokens, an entry is a chunk of 128 slots of the token
table instead of a KV block, and `keys` says how many of them, from the first on, hold a token. The
rest of the chunk is -1, for which the loads write zeros. Everything else about a walk stays the
same, and so does every role but the one that loads.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, const_expr, cute

from kernels_sm100.config import TILE_K

FULL = -1
SKIP = -2


class Walk(NamedTuple):
    """Tables and sizes of a walk, as kernel parameters.

    Attributes:
        pattern_id: int32 [PB, PH]: the pattern of a (batch, head); either size may be 1.
        row_ptr: int64 [patterns * rows + 1].
        col: int32 [entries]: KV blocks, or chunks of `tokens`.
        tile_id: int32 [entries, parts].
        tiles: int32 [T, part rows, 4]: keep-bits.
        order: int32 [PB * PH * rows]: list rows, longest first.
        rows: list rows of a pattern. This and the next four divide, by multiplication.
        heads: kernel heads per plan head.
        batches: batches per plan batch.
        tiles_per_row: CTAs that a list row serves.
        plan_heads: PH.
        items: work items of the launch.
        tokens: int32 [chunks, 128], -1 for none, of NOTE [Gathered walk]; else None.
        keys: int32 [entries]: tokens of each entry's chunk, 1 to 128; else None.
    """

    pattern_id: cute.Tensor
    row_ptr: cute.Tensor
    col: cute.Tensor
    tile_id: cute.Tensor
    tiles: cute.Tensor
    order: cute.Tensor
    rows: cute.FastDivmodDivisorV2
    heads: cute.FastDivmodDivisorV2
    batches: cute.FastDivmodDivisorV2
    tiles_per_row: cute.FastDivmodDivisorV2
    plan_heads: cute.FastDivmodDivisorV2
    items: Int32
    tokens: cute.Tensor | None = None
    keys: cute.Tensor | None = None


class WorkItem(NamedTuple):
    """What a CTA works on.

    Attributes:
        batch: of q, k, v.
        head: of the kernel: a query head, or with PackGQA a KV head.
        tile: which stretch of CTA rows of that head.
        begin: first entry of its row in the tables.
        count: entries of its row.
        row_offset: CTA rows of its list row that lie before it.
    """

    batch: Int32
    head: Int32
    tile: Int32
    begin: Int64
    count: Int32
    row_offset: Int32


@cute.jit
def work_item(walk: Walk, index: Int32) -> WorkItem:
    """Work item `index`: the list rows in order, each for its batches, heads and CTAs."""
    index, part = divmod(index, walk.tiles_per_row)
    index, head_of = divmod(index, walk.heads)
    index, batch_of = divmod(index, walk.batches)
    owner, row = divmod(walk.order[index], walk.rows)
    plan_batch, plan_head = divmod(owner, walk.plan_heads)
    line = Int64(walk.pattern_id[plan_batch, plan_head]) * walk.rows.divisor + row
    begin = walk.row_ptr[line]
    return WorkItem(
        batch=plan_batch * walk.batches.divisor + batch_of,
        head=plan_head * walk.heads.divisor + head_of,
        tile=row * walk.tiles_per_row.divisor + part,
        begin=begin,
        count=Int32(walk.row_ptr[line + 1] - begin),
        row_offset=part,
    )


@cute.jit
def tile_of(walk: Walk, entry: Int64, q_tile: Any, parts: cutlass.Constexpr[int]) -> Int32:
    """What `entry` means to a Q tile: FULL, SKIP, or which bit tile."""
    return walk.tile_id[entry, q_tile if const_expr(parts > 1) else 0]


@cute.jit
def entry_of(item: WorkItem, step: Int32, descending: cutlass.Constexpr[bool]) -> Int64:
    """The entry of an item's list that is visited at `step`: from its front, or from its end."""
    if const_expr(descending):
        step = item.count - 1 - step
    return item.begin + step


@cute.jit
def keys_left(walk: Walk, entry: Int64, seqlen_k: Int32) -> Int32:
    """Keys from the entry's first to the end of the sequence, or of its chunk of tokens."""
    keys: Any = walk.keys
    return seqlen_k - walk.col[entry] * TILE_K if const_expr(keys is None) else keys[entry]


@cute.jit
def takes_part(
    walk: Walk, entry: Int64, q_tiles: cutlass.Constexpr[int], parts: cutlass.Constexpr[int]
) -> Int32:
    """Bit h set where Q tile h does not skip `entry`."""
    bits = Int32(0)
    for h in cutlass.range_constexpr(q_tiles):
        if tile_of(walk, entry, h, parts) != SKIP:
            bits |= 1 << h
    return bits
