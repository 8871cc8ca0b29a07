"""LoopK: the backward in which a CTA owns a Q tile and loops over the KV blocks that it sees.

dQ stays in tensor memory and is stored once, the same bits in every run; dK and dV are added to
float32 sums in global memory (NOTE [Accumulators]), in any order: there are no turns here.

NOTE [Warp roles]:

    warps 0-3    sums      dV and dK of a step: tensor memory -> shared memory -> global memory
    warps 4-11   compute   S, dP -> P, dS; at the end each group stores half of dQ
    warp  12     MMA       owns tensor memory
    warp  13     load      Q, dO, bias, delta of an item; K and V of each step
    warps 14-15  idle      over listed tokens they gather K and V

NOTE [Order of MMAs]: step t issues S(t), dQ(t-1), dK(t-1), dP(t), dV(t): LoopQ's order with the
gradients exchanged.

NOTE [Tensor memory]: every range, who writes it, who reads it, and what its next writer waits for.

    columns   holds  written by   read by      rewritten once
    0-127     S      S(t)         compute      P over it: each warp has read what it overwrites
              P      compute      dV(t)        S(t+1): is issued behind dV(t)
    128-      dV     dV(t)        sums         dv_empty, before every dV(t+1)
    256-383   dP     dP(t)        compute      dK(t) over it: ds_full says that all have read dP
              dK     dK(t)        sums         dk_empty, before dP(t+1)
    384-      dQ     dQ(t)        compute      ds_full of an item's first step: each warp has
                                               stored dQ of the item before

With D = 64, dK has columns 192-255 of its own, and dk_empty is waited for before dK(t+1); dP(t+1)
is issued behind the wait for ds_full that dQ(t) needs. dS is in shared memory, not over dP, so that
dK may be.

NOTE [Barriers]: as in the forward: "full" is arrived at by who fills, "empty" by who has read.

    q_full, q_empty      load -> MMA, compute  Q, dO, bias, delta; empty by the last dK, behind
                                               the last dV
    k_full, k_empty      load -> MMA           K; empty by dQ
    v_full, v_empty      load -> MMA           V; empty by dP
    s_full, dp_full      MMA -> compute
    p_full, ds_full      compute -> MMA        dS in shared memory is free once dp_full of the next
                                               step says that dQ and dK are done
    dv_full, dv_empty    MMA -> sums
    dk_full, dk_empty    MMA -> sums
    dq_full              MMA -> compute        dQ of an item; "empty" is the next ds_full
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from kernels_sm100.backward import (
    ALIGN,
    CHUNK,
    CHUNK_BUFFERS,
    COMPUTE_REGISTERS,
    COMPUTE_WARP,
    COMPUTE_WARPS,
    DV_COLUMN,
    GROUP_WARPS,
    LAST_COLUMN,
    LOAD_WARP,
    MMA_WARP,
    OTHER_REGISTERS,
    SUM_REGISTERS,
    THREADS,
    Backward,
    Maps,
    Operands,
    Products,
    Shared,
    buffer,
)
from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.backward_fakes import BackwardFakes, scalars
from kernels_sm100.barriers import commit, init_all, next_slot, wait_tmem
from kernels_sm100.config import TMEM_COLUMNS
from kernels_sm100.mask import keep_half
from kernels_sm100.mma import gemm
from kernels_sm100.walk import SKIP, Walk, WorkItem, entry_of, keys_left, tile_of, work_item

K_STAGES = 2


class Barriers(NamedTuple):
    """First barrier of each kind, see NOTE [Barriers]."""

    q_full: cute.Pointer
    q_empty: cute.Pointer
    k_full: cute.Pointer
    k_empty: cute.Pointer
    v_full: cute.Pointer
    v_empty: cute.Pointer
    s_full: cute.Pointer
    p_full: cute.Pointer
    dp_full: cute.Pointer
    ds_full: cute.Pointer
    dv_full: cute.Pointer
    dv_empty: cute.Pointer
    dk_full: cute.Pointer
    dk_empty: cute.Pointer
    dq_full: cute.Pointer


class LoopK(Backward):
    """The kernel of one configuration; `cute.compile` takes an instance."""

    fills = 1  # arrivals that fill a buffer of K or V
    fenced = False  # whether MMAs on it need a fence first
    sum_slots = TILE * CHUNK * CHUNK_BUFFERS  # float32 of a sum on its way, in shared memory

    def __init__(self, config: BackwardConfig) -> None:
        super().__init__(config)
        self.heads_per_kv = config.group // config.rows_per_token

    def stream_of(
        self, tensor: cute.Tensor, layout: Any, mma: Products, walk: Walk
    ) -> tuple[Any, Any]:
        """K or V as the load role takes it: (copy atom, tensor of coordinates)."""
        del walk
        return self.keys_map(tensor, layout, mma)

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
            dk_sums: float32 [B, HK, N, D / 4, 128, 4], added to: dK without the softmax scale.
            dv_sums: likewise, dV.
            pattern_id: int32 [B or 1, heads]: 1, HK or (not packed) HQ heads.
            row_ptr: int64 [patterns * rows + 1].
            col: int32 [entries], KV blocks.
            tile_id: int32 [entries, 1].
            tiles: int32 [T, 128, words], bits of S^T, a bit a token.
            order: int32 [pattern_id's batches * heads * rows].
            rows: Q tiles of a head.
            scale: of the scores.
            scale_log2: scale times log2(e).
            ctas: CTAs to launch at most.
            stream: CUDA stream.
        """
        tables = (pattern_id, row_ptr, col, tile_id, tiles, order)
        given, sums = (q, k, v, do, bias, delta), (dk_sums, dv_sums)
        self.start(given, dq, sums, tables, rows, scale, scale_log2, ctas, stream)

    @cute.jit
    def start(
        self,
        given: Any,
        dq: cute.Tensor,
        sums: Any,
        tables: Any,
        rows: Int32,
        scale: Float32,
        scale_log2: Float32,
        ctas: Int32,
        stream: Any,
        tokens: cute.Tensor | None = None,
        keys: cute.Tensor | None = None,
    ) -> None:
        """Launch with what `__call__` was given, and the tokens of a gathered walk."""
        q, k, v, do, bias, delta = given
        pattern_id, row_ptr, col, tile_id, tiles, order = tables
        divisor = cute.FastDivmodDivisorV2
        heads_each = q.shape[2] // self.pack // pattern_id.shape[1]
        batches_each = q.shape[0] // pattern_id.shape[0]
        walk = Walk(
            pattern_id=pattern_id,
            row_ptr=row_ptr,
            col=col,
            tile_id=tile_id,
            tiles=tiles,
            order=order,
            rows=divisor(rows),
            heads=divisor(Int32(heads_each)),
            batches=divisor(Int32(batches_each)),
            tiles_per_row=divisor(Int32(1)),
            plan_heads=divisor(Int32(pattern_id.shape[1])),
            items=Int32(order.shape[0] * heads_each * batches_each),
            tokens=tokens,
            keys=keys,
        )
        mma = self.products()
        one = self.layouts(mma, K_STAGES, 1)
        other = self.layouts(mma, self.stages, 1)
        k_atom, k_map = self.stream_of(k, one.keys, mma, walk)
        v_atom, v_map = self.stream_of(v, other.keys, mma, walk)
        q_atom, q_map = self.queries_map(q, one.queries, mma)
        do_atom, do_map = self.queries_map(do, one.queries, mma)
        maps = Maps(k_atom, v_atom, q_atom, do_atom, k_map, v_map, q_map, do_map)
        dtype, stages = self.dtype, self.stages
        token_slots, sum_slots = TILE if self.config.gathered else 0, self.sum_slots

        @cute.struct
        class Storage:
            q_full: cute.struct.MemRange[Int64, 1]
            q_empty: cute.struct.MemRange[Int64, 1]
            k_full: cute.struct.MemRange[Int64, K_STAGES]
            k_empty: cute.struct.MemRange[Int64, K_STAGES]
            v_full: cute.struct.MemRange[Int64, stages]
            v_empty: cute.struct.MemRange[Int64, stages]
            s_full: cute.struct.MemRange[Int64, 1]
            p_full: cute.struct.MemRange[Int64, 1]
            dp_full: cute.struct.MemRange[Int64, 1]
            ds_full: cute.struct.MemRange[Int64, 1]
            dv_full: cute.struct.MemRange[Int64, 1]
            dv_empty: cute.struct.MemRange[Int64, 1]
            dk_full: cute.struct.MemRange[Int64, 1]
            dk_empty: cute.struct.MemRange[Int64, 1]
            dq_full: cute.struct.MemRange[Int64, 1]
            tmem: Int32
            bias: cute.struct.Align[cute.struct.MemRange[Float32, TILE], 128]
            delta: cute.struct.Align[cute.struct.MemRange[Float32, TILE], 128]
            tokens: cute.struct.Align[cute.struct.MemRange[Int32, token_slots], 16]
            k: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.keys)], ALIGN]
            v: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(other.keys)], ALIGN]
            q: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.queries)], ALIGN]
            do: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.queries)], ALIGN]
            ds: cute.struct.Align[cute.struct.MemRange[dtype, TILE * TILE], ALIGN]
            chunks: cute.struct.Align[cute.struct.MemRange[Float32, sum_slots], 128]

        self.storage = Storage
        self.kernel(
            maps,
            mma,
            one,
            other,
            bias,
            delta,
            self.packed(dq),
            sums,
            walk,
            scale,
            scale_log2,
            Int32(k.shape[1]),
        ).launch(
            grid=(cutlass.min(ctas, walk.items), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        maps: Maps,
        mma: Products,
        one: Any,
        other: Any,
        bias: cute.Tensor,
        delta: cute.Tensor,
        dq: cute.Tensor,
        sums: Any,
        walk: Walk,
        scale: Float32,
        scale_log2: Float32,
        seqlen_k: Int32,
    ) -> None:
        """Set up what the roles share, then become one of them."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = SmemAllocator().allocate(self.storage)
        barriers = Barriers(*(getattr(storage, name).data_ptr() for name in Barriers._fields))
        if warp == LOAD_WARP:
            for atom in maps[:4]:
                if const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                self.init_barriers(barriers)
            cute.arch.mbarrier_init_fence()
        if warp == MMA_WARP:
            cute.arch.alloc_tmem(TMEM_COLUMNS, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tmem.ptr)
        shared = self.shared(storage, one, other, one, one, 1)

        if warp == LOAD_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            self.load(maps, bias, delta, shared, mma, walk, barriers)
        if warp == MMA_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            self.mma(mma, one, shared, tmem, walk, barriers)
        if warp > LOAD_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            self.assist(maps, storage, walk, barriers)
        if warp < COMPUTE_WARP:
            cute.arch.setmaxregister_increase(SUM_REGISTERS)
            self.sums(mma, tmem, shared, sums, walk, barriers)
        if warp >= COMPUTE_WARP and warp < MMA_WARP:
            cute.arch.setmaxregister_increase(COMPUTE_REGISTERS)
            self.compute(mma, tmem, shared, dq, walk, scale, scale_log2, seqlen_k, barriers)
        cute.arch.sync_threads()
        if warp == MMA_WARP:
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)

    @cute.jit
    def init_barriers(self, barriers: Barriers) -> None:
        """Arrivals that each barrier waits for, by one thread."""
        names = ("q_full", "q_empty", "s_full", "dp_full", "dv_full", "dk_full", "dq_full")
        for name in names:
            init_all(getattr(barriers, name), 1, 1)
        for empty, full, stages in (
            (barriers.k_empty, barriers.k_full, K_STAGES),
            (barriers.v_empty, barriers.v_full, self.stages),
        ):
            init_all(empty, stages, 1)
            init_all(full, stages, self.fills)
        for name in ("p_full", "ds_full"):
            init_all(getattr(barriers, name), 1, COMPUTE_WARPS)
        for name in ("dv_empty", "dk_empty"):
            init_all(getattr(barriers, name), 1, GROUP_WARPS)

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
        """Load an item's queries before its first step, and K and V of each step."""
        part = mma.pair.get_slice(0)
        slot, phase, v_slot, v_phase = Int32(0), Int32(1), Int32(0), Int32(1)
        q_phase = Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            kv_head = item.head // self.heads_per_kv
            k_of = part.partition_A(self.tiles_of(maps.k, kv_head, item.batch))
            v_of = part.partition_A(self.tiles_of(maps.v, kv_head, item.batch))
            s_k, g_k = self.tma_parts(maps.k_atom, shared.k, k_of)
            s_v, g_v = self.tma_parts(maps.v_atom, shared.v, v_of)
            steps = Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                entry = entry_of(item, e, self.config.descending)
                if tile_of(walk, entry, 0, 1) != SKIP:
                    block = walk.col[entry]
                    if steps == 0:
                        cute.arch.mbarrier_wait(barriers.q_empty, q_phase)
                        q_phase ^= 1
                        self.load_queries(maps, bias, delta, shared, mma, item, barriers.q_full)
                    cute.arch.mbarrier_wait(barriers.k_empty + slot, phase)
                    full = barriers.k_full + slot
                    self.load_tile(maps.k_atom, g_k[None, block], s_k[None, slot], full)
                    slot, phase = next_slot(slot, phase, K_STAGES)
                    cute.arch.mbarrier_wait(barriers.v_empty + v_slot, v_phase)
                    full = barriers.v_full + v_slot
                    self.load_tile(maps.v_atom, g_v[None, block], s_v[None, v_slot], full)
                    v_slot, v_phase = next_slot(v_slot, v_phase, self.stages)
                    steps += 1
            index += cute.arch.grid_dim()[0]
        self.drain(slot, phase, v_slot, v_phase, barriers)
        cute.arch.mbarrier_wait(barriers.q_empty, q_phase)

    @cute.jit
    def assist(self, maps: Maps, storage: Any, walk: Walk, barriers: Barriers) -> None:
        """Warps 14 and 15: nothing, where TMA loads."""

    @cute.jit
    def load_queries(
        self,
        maps: Maps,
        bias: cute.Tensor,
        delta: cute.Tensor,
        shared: Shared,
        mma: Products,
        item: WorkItem,
        full: cute.Pointer,
    ) -> None:
        """Load Q, dO, bias and delta of an item; `full` counts all of them."""
        part = mma.pair.get_slice(0)
        self.expect(full, 2, rows=2)
        self.load_rows(bias, delta, shared, (item.batch, item.head, item.tile), 0, full)
        for atom, tensor, target in (
            (maps.q_atom, maps.q, shared.q),
            (maps.do_atom, maps.do, shared.do),
        ):
            tiles = part.partition_B(self.tiles_of(tensor, item.head, item.batch))
            to, of = self.tma_parts(atom, target, tiles)
            cute.copy(atom, of[None, item.tile], to[None, 0], tma_bar_ptr=full)

    @cute.jit
    def drain(
        self, slot: Int32, phase: Int32, v_slot: Int32, v_phase: Int32, barriers: Barriers
    ) -> None:
        """Wait for commits: the CTA must not end while one is still to arrive at its barriers."""
        for _ in cutlass.range(K_STAGES, unroll=1):
            cute.arch.mbarrier_wait(barriers.k_empty + slot, phase)
            slot, phase = next_slot(slot, phase, K_STAGES)
        for _ in cutlass.range(self.stages, unroll=1):
            cute.arch.mbarrier_wait(barriers.v_empty + v_slot, v_phase)
            v_slot, v_phase = next_slot(v_slot, v_phase, self.stages)

    @cute.jit
    def wait_filled(self, barrier: cute.Pointer, phase: Int32) -> None:
        """Wait, as the MMA warp, for a buffer of K or V."""
        cute.arch.mbarrier_wait(barrier, phase)
        if const_expr(self.fenced):
            cute.arch.fence_view_async_shared()  # what cp.async wrote, for MMAs

    @cute.jit
    def mma(
        self,
        mma: Products,
        layouts: Any,
        shared: Shared,
        tmem: cute.Pointer,
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Issue the products, see NOTE [Order of MMAs]."""
        of = self.operands(mma, layouts, shared, tmem, (self.sum_column, LAST_COLUMN))
        half_steps = cute.size(of.p[0].shape[2]) // 2
        slot, phase, v_slot, v_phase = Int32(0), Int32(0), Int32(0), Int32(0)
        q_phase, step_phase, dk_phase, dv_phase = Int32(0), Int32(0), Int32(1), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            steps, before = Int32(0), Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                entry = entry_of(item, e, self.config.descending)
                if tile_of(walk, entry, 0, 1) != SKIP:
                    if steps == 0:
                        cute.arch.mbarrier_wait(barriers.q_full, q_phase)
                        q_phase ^= 1
                    self.wait_filled(barriers.k_full + slot, phase)
                    pair = (buffer(of.k, slot), buffer(of.q, 0))
                    gemm(mma.pair, of.s, *pair, False, bit=step_phase)
                    commit(barriers.s_full)
                    if steps > 0:
                        dk_phase = self.dq_and_dk(
                            mma, of, before, steps, step_phase, dk_phase, barriers
                        )
                    self.wait_filled(barriers.v_full + v_slot, v_phase)
                    if const_expr(self.shares_dp):
                        wait_tmem(barriers.dk_empty, dk_phase)
                        dk_phase ^= 1
                    pair = (buffer(of.v, v_slot), buffer(of.do, 0))
                    gemm(mma.pair, of.dp, *pair, False, bit=step_phase)
                    commit(barriers.dp_full)
                    commit(barriers.v_empty + v_slot)
                    cute.arch.mbarrier_wait(barriers.p_full, step_phase)
                    wait_tmem(barriers.dv_empty, dv_phase)
                    dv_phase ^= 1
                    dv, do_t = (mma.dv, of.dv), buffer(of.do_t, 0)
                    gemm(*dv, of.p[0], do_t, False, last=half_steps, bit=step_phase)
                    gemm(*dv, of.p[1], do_t, True, first=half_steps, bit=step_phase)
                    commit(barriers.dv_full)
                    before = slot
                    slot, phase = next_slot(slot, phase, K_STAGES)
                    v_slot, v_phase = next_slot(v_slot, v_phase, self.stages)
                    step_phase ^= 1
                    steps += 1
            if steps > 0:
                dk_phase = self.dq_and_dk(
                    mma, of, before, steps, step_phase, dk_phase, barriers, last=True
                )
                commit(barriers.q_empty)
            index += cute.arch.grid_dim()[0]

    @cute.jit
    def dq_and_dk(
        self,
        mma: Products,
        of: Operands,
        slot: Int32,
        steps: Int32,
        step_phase: Int32,
        dk_phase: Int32,
        barriers: Barriers,
        last: cutlass.Constexpr[bool] = False,
    ) -> Int32:
        """Issue the two products that take dS of the step before; returns dK's next phase.

        Args:
            mma: the products.
            of: their operands.
            slot: of that step's K.
            steps: of this item that are behind, that step among them.
            step_phase: of the next step.
            dk_phase: of dk_empty.
            barriers: all of them.
            last: whether dQ is whole.
        """
        wait_tmem(barriers.ds_full, step_phase ^ 1)
        pair = (buffer(of.ds, 0), buffer(of.k_t, slot))
        gemm(mma.dq, of.dq, *pair, steps > 1, bit=step_phase)
        commit(barriers.k_empty + slot)
        if const_expr(last):
            commit(barriers.dq_full)
        if const_expr(not self.shares_dp):
            wait_tmem(barriers.dk_empty, dk_phase)
            dk_phase ^= 1
        pair = (buffer(of.ds_t, 0), buffer(of.q_t, 0))
        gemm(mma.dk, of.dk, *pair, False, bit=step_phase)
        commit(barriers.dk_full)
        return dk_phase

    @cute.jit
    def compute(
        self,
        mma: Products,
        tmem: cute.Pointer,
        shared: Shared,
        dq: cute.Tensor,
        walk: Walk,
        scale: Float32,
        scale_log2: Float32,
        seqlen_k: Int32,
        barriers: Barriers,
    ) -> None:
        """P and dS of each step; at the end of an item half of dQ."""
        thread = cute.arch.thread_idx()[0] % TILE
        half = cute.arch.make_warp_uniform(cute.arch.warp_idx() // GROUP_WARPS - 1)
        lanes = self.accumulator(mma.pair, self.pair_tile, tmem, 0)[(None, None), 0, 0].layout
        width = self.head_dim // 2
        columns = cute.composition(lanes, cute.make_layout((TILE, width)))
        acc = cute.make_tensor(tmem + LAST_COLUMN + width * half, columns)
        part = self.half_of(tmem, lanes, half)
        ds = self.ds_line(shared.ds_t.iterator, thread, half)
        step_phase, item_phase = Int32(0), Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            steps = Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                entry = entry_of(item, e, self.config.descending)
                tile = tile_of(walk, entry, 0, 1)
                if tile != SKIP:
                    keys = keys_left(walk, entry, seqlen_k)
                    words = keep_half(walk, tile, thread, half, self.config.rows_per_bit)
                    if thread >= keys:
                        words.fill(0)
                    if steps == 0:  # S says so too, but not what copies wrote for this proxy
                        cute.arch.mbarrier_wait(barriers.q_full, item_phase)
                    masked = tile >= 0 or keys < TILE
                    p = self.probabilities(
                        part, masked, words, shared.bias[None, 0], scale_log2, step_phase,
                        barriers.s_full, barriers.p_full,
                    )  # fmt: skip
                    self.gradients(
                        part, p, shared.delta[None, 0], ds, step_phase, barriers.dp_full,
                        barriers.ds_full,
                    )  # fmt: skip
                    step_phase ^= 1
                    steps += 1
            row = item.tile * TILE + thread
            target = cute.logical_divide(
                dq[row, None, item.head, item.batch], cute.make_layout(width)
            )
            if steps > 0:
                wait_tmem(barriers.dq_full, item_phase)
            self.store_rows(
                acc,
                target[None, half],
                thread,
                row < cute.size(dq, mode=[0]),
                steps > 0,
                scale,
                width,
            )
            if steps > 0:
                item_phase ^= 1
            index += cute.arch.grid_dim()[0]

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
        """Add dV and dK of each step to their block's sums."""
        dk_sums, dv_sums = sums
        thread = cute.arch.thread_idx()[0] % TILE
        acc_dv = self.accumulator(mma.dv, self.gradient_tile, tmem, DV_COLUMN)
        acc_dk = self.accumulator(mma.dk, self.gradient_tile, tmem, self.sum_column)
        phase = Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            kv_head = item.head // self.heads_per_kv
            for e in cutlass.range(item.count, unroll=1):
                entry = entry_of(item, e, self.config.descending)
                if tile_of(walk, entry, 0, 1) != SKIP:
                    block = walk.col[entry]
                    for acc, total, full, empty in (
                        (acc_dv, dv_sums, barriers.dv_full, barriers.dv_empty),
                        (acc_dk, dk_sums, barriers.dk_full, barriers.dk_empty),
                    ):
                        wait_tmem(full, phase)
                        self.add_tile(
                            acc[(None, None), 0, 0],
                            shared.chunks,
                            total[item.batch, kv_head, block, None, None, None],
                            thread,
                            empty,
                            None,
                            None,
                        )
                    phase ^= 1
            index += cute.arch.grid_dim()[0]
        if thread == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `LoopK.__call__` by name, without storage."""
    fakes, blocks = BackwardFakes(config), cute.sym_int()
    return {
        **fakes.inputs(),
        "dq": fakes.of_queries(),
        "dk_sums": fakes.sums(fakes.kv_heads, blocks),
        "dv_sums": fakes.sums(fakes.kv_heads, blocks),
        **fakes.tables(write_order=False),
        "rows": Int32(0),
        **scalars(),
    }
