"""LoopK over listed tokens: K and V gathered by row, dK and dV added to rows that lie apart.

All else is backward_loopk.py's: a step is a chunk of 128 slots of the token table instead of a
block of 128 keys, and thread `i` of the warps that add owns slot `i`. A slot without a token, -1 or
past the chunk's count, is loaded as zeros, has no bit, and is added nowhere.

NOTE [Rows on their way]: by `TMA_1D` a thread writes 32 columns of its own row to shared memory
and has a bulk reduction of 128 bytes add them; rows are 144 bytes apart there, so that the 16-byte
stores of eight lanes meet no bank twice. Nobody else touches the row: its thread waits for its own
copies, and no barrier is needed. Beside the tiles of D = 128 there is room for one such buffer, of
D = 64 for two. By `ATOMIC_ADD` rows go from registers, four elements an instruction.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import tcgen05

from kernels_sm100.backward import (
    CHUNK,
    DV_COLUMN,
    LOAD_WARP,
    VECTOR,
    Maps,
    Products,
    Shared,
)
from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.backward_fakes import compact
from kernels_sm100.backward_loopk import K_STAGES, Barriers, LoopK
from kernels_sm100.backward_loopk import fake_arguments as fake_arguments_of_blocks
from kernels_sm100.barriers import arrive_warp_tmem, next_slot, wait_tmem
from kernels_sm100.bulk import add_bulk, add_four
from kernels_sm100.gather import (
    LANES,
    NONE,
    ROW_BYTES,
    SPAN,
    arrive_copied,
    copy_rows,
    fetch,
    gather_rows,
    numbers_of,
    place,
    row_map,
    stage,
)
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode
from kernels_sm100.walk import SKIP, Walk, entry_of, tile_of, work_item

GATHER_WARP = LOAD_WARP + 1  # the first of them
WORKERS = 2
PITCH = CHUNK + VECTOR  # float32 from a row to the next, see NOTE [Rows on their way]


def token_tables(walk: Walk) -> tuple[Any, Any]:
    """(tokens, keys) of a walk that has them."""
    return walk.tokens, walk.keys


class GatheredLoopK(LoopK):
    """The kernel of one configuration whose `inner_load` gathers."""

    def __init__(self, config: BackwardConfig) -> None:
        super().__init__(config)
        self.by_tma = config.inner_load is InnerLoadMode.TMA_GATHER4
        self.fills = WORKERS if self.by_tma else WORKERS * LANES
        self.fenced = not self.by_tma
        self.atomics = config.inner_store is InnerStoreMode.ATOMIC_ADD
        self.buffers = 1 if config.head_dim > SPAN else 2
        self.sum_slots = VECTOR if self.atomics else TILE * PITCH * self.buffers

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        do: cute.Tensor,
        bias: cute.Tensor,
        delta: cute.Tensor,
        dq: cute.Tensor,
        dk_sums: cute.Tensor,
        dv_sums: cute.Tensor,
        pattern_id: cute.Tensor,
        row_ptr: cute.Tensor,
        col: cute.Tensor,
        tile_id: cute.Tensor,
        tiles: cute.Tensor,
        order: cute.Tensor,
        tokens: cute.Tensor,
        keys: cute.Tensor,
        rows: Int32,
        scale: Float32,
        scale_log2: Float32,
        ctas: Int32,
        stream: Any,
    ) -> None:
        """Launch the kernel.

        Args:
            q: [B, SQ, HQ, D].
            k: [B, SK, HK, D].
            v: likewise.
            do: [B, SQ, HQ, D], the gradient of O.
            bias: float32 [B, HQ / G, M * 128], of the preprocess; G is 1 without PackGQA.
            delta: likewise.
            dq: [B, SQ, HQ, D], written.
            dk_sums: float32 [B, HK, SK, D], added to: dK without the softmax scale.
            dv_sums: likewise, dV.
            pattern_id: int32 [B or 1, heads].
            row_ptr: int64 [patterns * rows + 1].
            col: int32 [entries]: chunks of `tokens`.
            tile_id: int32 [entries, 1].
            tiles: int32 [T, 128, 4], bits of S^T: of a slot, a bit a packed row.
            order: int32 [pattern_id's batches * heads * rows].
            tokens: int32 [chunks, 128], -1 where a slot has none.
            keys: int32 [entries]: slots of each entry's chunk that may have a token.
            rows: Q tiles of a head.
            scale: of the scores.
            scale_log2: scale times log2(e).
            ctas: CTAs to launch at most.
            stream: CUDA stream.
        """
        tables = (pattern_id, row_ptr, col, tile_id, tiles, order)
        given, sums = (q, k, v, do, bias, delta), (dk_sums, dv_sums)
        self.start(given, dq, sums, tables, rows, scale, scale_log2, ctas, stream, tokens, keys)

    def stream_of(
        self, tensor: cute.Tensor, layout: Any, mma: Products, walk: Walk
    ) -> tuple[Any, Any]:
        """K or V: (tensor map, matrix of rows) for TMA gathers, (None, tensor) for cp.async."""
        del layout, mma
        if const_expr(self.by_tma):
            rows = row_map(tensor, token_tables(walk)[0])
            return rows.atom, rows
        return None, tensor

    @cute.jit
    def load(
        self,
        maps: Maps,
        bias: cute.Tensor,
        delta: cute.Tensor,
        shared: Shared,
        mma: Products,
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Load an item's queries; `assist` loads the rest."""
        q_phase = Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            steps = Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                if tile_of(walk, item.begin + e, 0, 1) != SKIP:
                    if steps == 0:
                        cute.arch.mbarrier_wait(barriers.q_empty, q_phase)
                        q_phase ^= 1
                        self.load_queries(maps, bias, delta, shared, mma, item, barriers.q_full)
                    steps += 1
            index += cute.arch.grid_dim()[0]
        cute.arch.mbarrier_wait(barriers.q_empty, q_phase)

    @cute.jit
    def assist(self, maps: Maps, storage: Any, walk: Walk, barriers: Barriers) -> None:
        """Warps 14 and 15: gather K and V of each step, half of a chunk a warp."""
        lane = cute.arch.lane_idx()
        worker = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - GATHER_WARP
        share = TILE // WORKERS
        buffer = storage.tokens.data_ptr() + worker * share
        k_begin = storage.k.data_ptr().toint() + worker * (share * ROW_BYTES)
        v_begin = storage.v.data_ptr().toint() + worker * (share * ROW_BYTES)
        ahead = cute.make_rmem_tensor(share // LANES, Int32)
        now = cute.make_rmem_tensor(share // LANES, Int32)
        place = worker * LANES + lane
        slot, phase, v_slot, v_phase = Int32(0), Int32(1), Int32(0), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            kv_head = item.head // self.heads_per_kv
            k, v = (self.head_of(x, item.batch, kv_head) for x in (maps.k, maps.v))
            if item.count > 0:
                first = entry_of(item, Int32(0), self.config.descending)
                fetch(walk.tokens, walk.col[first], place, ahead)
            for e in cutlass.range(item.count, unroll=1):
                now.store(ahead.load())
                if e + 1 < item.count:
                    after = entry_of(item, e + 1, self.config.descending)
                    fetch(walk.tokens, walk.col[after], place, ahead)
                if tile_of(walk, entry_of(item, e, self.config.descending), 0, 1) != SKIP:
                    cute.arch.mbarrier_wait(barriers.k_empty + slot, phase)
                    target, full = k_begin + slot * self.tile_bytes, barriers.k_full + slot
                    self.load_chunk(k, True, now, buffer, target, full)
                    slot, phase = next_slot(slot, phase, K_STAGES)
                    cute.arch.mbarrier_wait(barriers.v_empty + v_slot, v_phase)
                    target, full = v_begin + v_slot * self.tile_bytes, barriers.v_full + v_slot
                    self.load_chunk(v, False, now, buffer, target, full)
                    v_slot, v_phase = next_slot(v_slot, v_phase, self.stages)
            index += cute.arch.grid_dim()[0]
        self.drain(slot, phase, v_slot, v_phase, barriers)

    def head_of(self, source: Any, batch: Int32, head: Int32) -> Any:
        """A (batch, head) of K or V, as `load_chunk` takes it."""
        if const_expr(self.by_tma):
            return place(source, batch, head)
        return source[batch, None, head, None]

    @cute.jit
    def load_chunk(
        self,
        source: Any,
        first: cutlass.Constexpr[bool],
        now: cute.Tensor,
        buffer: cute.Pointer,
        target: Int32,
        full: cute.Pointer,
    ) -> None:
        """A warp's half of a chunk of K (`first`) or V to `target`; `now` has a lane's tokens."""
        lane = cute.arch.lane_idx()
        spans = self.head_dim // SPAN
        if const_expr(self.by_tma):
            numbers = cute.make_rmem_tensor(cute.size(now), Int32)
            numbers_of(now, source.row, numbers)
            stage(numbers, buffer, lane)
            gather_rows(source, buffer, target, full, WORKERS, spans)
        else:
            if const_expr(first):
                stage(now, buffer, lane)
            copy_rows(source, buffer, target, WORKERS, spans)
            arrive_copied(full)

    @cute.jit
    def sums(
        self,
        mma: Products,
        tmem: cute.Pointer,
        shared: Shared,
        sums: Any,
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Add dV and dK of each step to their tokens' rows."""
        dk_sums, dv_sums = sums
        tokens, keys = token_tables(walk)
        thread = cute.arch.thread_idx()[0] % TILE
        acc_dv = self.accumulator(mma.dv, self.gradient_tile, tmem, DV_COLUMN)
        acc_dk = self.accumulator(mma.dk, self.gradient_tile, tmem, self.sum_column)
        buffers = cute.make_tensor(
            shared.chunks.iterator + thread * PITCH,
            cute.make_layout((CHUNK, self.buffers), stride=(1, TILE * PITCH)),
        )
        phase = Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            kv_head = item.head // self.heads_per_kv
            for e in cutlass.range(item.count, unroll=1):
                entry = entry_of(item, e, self.config.descending)
                if tile_of(walk, entry, 0, 1) != SKIP:
                    token = Int32(NONE)
                    if thread < keys[entry]:
                        token = tokens[walk.col[entry], thread]
                    for acc, total, full, empty in (
                        (acc_dv, dv_sums, barriers.dv_full, barriers.dv_empty),
                        (acc_dk, dk_sums, barriers.dk_full, barriers.dk_empty),
                    ):
                        wait_tmem(full, phase)
                        self.add_row(
                            acc[(None, None), 0, 0],
                            buffers,
                            total[item.batch, kv_head, None, None].iterator,
                            token,
                            thread,
                            empty,
                        )
                    phase ^= 1
            index += cute.arch.grid_dim()[0]
        if const_expr(not self.atomics):
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def add_row(
        self,
        acc: cute.Tensor,
        buffers: cute.Tensor,
        target: cute.Pointer,
        token: Int32,
        thread: Int32,
        empty: cute.Pointer,
    ) -> None:
        """Add a row of an accumulator to its token's; see NOTE [Rows on their way].

        Args:
            acc: [128, D] in tensor memory, released at `empty` once it is in registers.
            buffers: [32, buffers] of shared memory, the thread's own.
            target: row of token 0 in global memory, float32 [SK, D].
            token: the row's, or NONE.
            thread: the row.
            empty: barrier to tell that `acc` has been read.
        """
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        load = tcgen05.make_tmem_copy(load, acc).get_slice(thread)
        shape = load.partition_D(cute.make_identity_tensor((TILE, self.head_dim))).shape
        values = cute.make_rmem_tensor(shape, Float32)
        cute.copy(load, load.partition_S(acc), values)
        cute.arch.fence_view_async_tmem_load()
        arrive_warp_tmem(empty)
        row = target + cute.assume(Int64(token) * self.head_dim, divby=self.head_dim)
        fours = cute.make_tensor(
            values.iterator, cute.make_layout((VECTOR, self.head_dim // VECTOR))
        )
        if const_expr(self.atomics):
            if token >= 0:
                for i in cutlass.range_constexpr(self.head_dim // VECTOR):
                    four = fours[None, i]
                    add_four(row + VECTOR * i, four[0], four[1], four[2], four[3])
        else:
            for c in cutlass.range_constexpr(self.head_dim // CHUNK):
                buffer = buffers[None, c % self.buffers]
                cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                if token >= 0:
                    lines = cute.logical_divide(buffer, cute.make_layout(VECTOR))
                    for j in cutlass.range_constexpr(CHUNK // VECTOR):
                        cute.autovec_copy(fours[None, c * (CHUNK // VECTOR) + j], lines[None, j])
                    cute.arch.fence_view_async_shared()
                    add_bulk(buffer.iterator, row + CHUNK * c, CHUNK * 4)
                cute.arch.cp_async_bulk_commit_group()


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `GatheredLoopK.__call__` by name, without storage."""
    arguments = fake_arguments_of_blocks(config)
    batch, kv_heads = arguments["k"].shape[0], arguments["k"].shape[2]
    seqlen_k = arguments["k"].shape[1]
    for name in ("dk_sums", "dv_sums"):
        arguments[name] = compact(Float32, batch, kv_heads, seqlen_k, config.head_dim, align=16)
    last = {name: arguments.pop(name) for name in ("rows", "scale", "scale_log2", "ctas", "stream")}
    tokens = compact(Int32, cute.sym_int(), TILE, align=16)
    return arguments | {"tokens": tokens, "keys": compact(Int32, cute.sym_int())} | last
