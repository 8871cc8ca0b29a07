"""The forward over listed tokens: the forward of forward.py, with K and V loaded by gather.py."""

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from kernels_sm100.barriers import next_slot
from kernels_sm100.config import TILE_K, ForwardConfig
from kernels_sm100.forward import LOAD_WARP, Barriers, Forward, Tiles
from kernels_sm100.forward import fake_arguments as fake_arguments_of_blocks
from kernels_sm100.gather import (
    LANES,
    ROW_BYTES,
    SPAN,
    RowMap,
    arrive_copied,
    copy_rows,
    fetch,
    gather_rows,
    numbers_of,
    place,
    row_map,
    stage,
)
from kernels_sm100.modes import InnerLoadMode
from kernels_sm100.walk import Walk, work_item

WORKERS = 2  # warps that share a chunk


class Rows(NamedTuple):
    """K and V, [B, SK, HK, D] and [.., DV], for cp.async."""

    k: cute.Tensor
    v: cute.Tensor


class RowMaps(NamedTuple):
    """K and V for TMA gathers."""

    k: RowMap
    v: RowMap


class GatheredForward(Forward):
    """The kernel of one configuration whose `inner_load` gathers."""

    load_warps = WORKERS

    def __init__(self, config: ForwardConfig) -> None:
        super().__init__(config)
        self.by_tma = config.inner_load is InnerLoadMode.TMA_GATHER4
        self.fills = WORKERS if self.by_tma else WORKERS * LANES
        self.spans = (config.head_dim // SPAN, config.head_dim_v // SPAN)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        pattern_id: cute.Tensor,
        row_ptr: cute.Tensor,
        col: cute.Tensor,
        tile_id: cute.Tensor,
        tiles: cute.Tensor,
        order: cute.Tensor,
        tokens: cute.Tensor,
        keys: cute.Tensor,
        rows: Int32,
        scale_log2: Float32,
        ctas: Int32,
        stream: Any,
    ) -> None:
        """Launch the kernel.

        Args:
            q: [B, SQ, HQ, D].
            k: [B, SK, HK, D].
            v: [B, SK, HK, DV].
            o: [B, SQ, HQ, DV], written.
            lse: float32 [B, HQ, SQ], written: natural log.
            pattern_id: int32 [B or 1, heads].
            row_ptr: int64 [patterns * rows + 1].
            col: int32 [entries]: chunks of `tokens`.
            tile_id: int32 [entries, parts].
            tiles: int32 [T, 128 packed rows, 4].
            order: int32 [pattern_id's batches * heads * rows].
            tokens: int32 [chunks, 128].
            keys: int32 [entries]: tokens in each entry's chunk.
            rows: list rows of a pattern.
            scale_log2: softmax scale times log2(e), positive.
            ctas: CTAs to launch at most.
            stream: CUDA stream.
        """
        tables = (pattern_id, row_ptr, col, tile_id, tiles, order)
        self.start(q, k, v, o, lse, tables, rows, scale_log2, ctas, stream, tokens, keys)

    def stream_of(
        self, k: cute.Tensor, v: cute.Tensor, layouts: Any, products: Any, walk: Walk
    ) -> Rows | RowMaps:
        """K and V, or their tensor maps."""
        del layouts, products
        if const_expr(self.by_tma):
            return RowMaps(row_map(k, walk.tokens), row_map(v, walk.tokens))
        return Rows(k, v)

    def atoms_of(self, kv: Any) -> tuple[cute.CopyAtom, ...]:
        """The tensor maps of K and V; cp.async needs none."""
        return (kv.k.atom, kv.v.atom) if self.by_tma else ()

    @cute.jit
    def load(
        self,
        atom_q: cute.CopyAtom,
        q: cute.Tensor,
        kv: Any,
        shared: Tiles,
        products: Any,
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Load Q of a work item once, then the tokens of each chunk, K and V."""
        lane = cute.arch.lane_idx()
        worker = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - LOAD_WARP
        share = TILE_K // WORKERS
        share_bytes = share * ROW_BYTES
        buffer = shared.tokens + worker * share
        ahead = cute.make_rmem_tensor(share // LANES, Int32)
        now = cute.make_rmem_tensor(share // LANES, Int32)
        place_of_lane = worker * LANES + lane
        slot, phase, q_phase = Int32(0), Int32(1), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            if item.count > 0:
                fetch(walk.tokens, walk.col[item.begin], place_of_lane, ahead)
                if worker == 0:
                    self.load_q(atom_q, q, shared.q, products[0], item, q_phase, barriers)
                q_phase ^= 1
                kv_head = item.head // self.per_kv_head
                for e in cutlass.range(item.count, unroll=1):
                    now.store(ahead.load())
                    if e + 1 < item.count:
                        fetch(walk.tokens, walk.col[item.begin + e + 1], place_of_lane, ahead)
                    for part in cutlass.range_constexpr(2):
                        cute.arch.mbarrier_wait(barriers.kv_empty + slot, phase)
                        self.load_chunk(
                            kv[part],
                            part,
                            item.batch,
                            kv_head,
                            now,
                            buffer,
                            shared.ring.toint()
                            + slot * self.config.stage_bytes
                            + worker * share_bytes,
                            barriers.kv_full + slot,
                        )
                        slot, phase = next_slot(slot, phase, self.stages)
            index += cute.arch.grid_dim()[0]
        if worker == 0:
            self.drain(slot, phase, q_phase, barriers)

    @cute.jit
    def load_chunk(
        self,
        source: Any,
        part: cutlass.Constexpr[int],
        batch: Int32,
        head: Int32,
        now: cute.Tensor,
        buffer: cute.Pointer,
        target: Int32,
        barrier: cute.Pointer,
    ) -> None:
        """A chunk of K (`part` 0) or V to `target`; `now` has a lane's share of its tokens."""
        lane = cute.arch.lane_idx()
        if const_expr(self.by_tma):
            where = place(source, batch, head)
            numbers = cute.make_rmem_tensor(cute.size(now), Int32)
            numbers_of(now, where.row, numbers)
            stage(numbers, buffer, lane)
            gather_rows(where, buffer, target, barrier, WORKERS, self.spans[part])
        else:
            if const_expr(part == 0):
                stage(now, buffer, lane)
            rows = source[batch, None, head, None]
            copy_rows(rows, buffer, target, WORKERS, self.spans[part])
            arrive_copied(barrier)


def fake_arguments(config: ForwardConfig) -> dict[str, Any]:
    """Arguments of `GatheredForward.__call__` by name, without storage."""
    arguments = fake_arguments_of_blocks(config)
    last = {name: arguments.pop(name) for name in ("rows", "scale_log2", "ctas", "stream")}
    tokens = make_fake_compact_tensor(
        Int32, (cute.sym_int(), TILE_K), stride_order=(1, 0), assumed_align=16
    )
    keys = make_fake_compact_tensor(Int32, (cute.sym_int(),))
    return arguments | {"tokens": tokens, "keys": keys} | last
