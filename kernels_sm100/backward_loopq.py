"""LoopQ: the backward in which a CTA owns a KV block and loops over the queries that see it.

dK and dV stay in tensor memory over all query heads of the group and are stored once, or with
`head_split` added once (NOTE [Head split]); dQ is added to float32 sums in global memory (NOTE
[Accumulators]), in any order, or in turns (NOTE [Turns]).

NOTE [Warp roles]:

    warps 0-3    sums      dQ of a step: tensor memory -> shared memory -> added to global memory;
                           with head_split dV and dK of an item too
    warps 4-11   compute   S, dP -> P, dS; without head_split 4-7 store dV and 8-11 dK at the end
    warp  12     MMA       owns tensor memory
    warp  13     load      K, V of an item; Q, bias, delta and dO of each step
    warps 14-15  idle

NOTE [Order of MMAs]: step t issues S(t), dK(t-1), dQ(t-1), dP(t), dV(t), so that softmax of a step
runs under the products of the one before.

NOTE [Tensor memory]: every range, who writes it, who reads it, and what its next writer waits for.

    columns   holds  written by   read by      rewritten once
    0-127     S      S(t)         compute      P over it: each warp has read what it overwrites
              P      compute      dV(t)        S(t+1): is issued behind dV(t)
    128-      dV     dV(t)        warps 4-7    p_full of the next item, at its first dV
    256-383   dP     dP(t)        compute      dQ(t) over it: ds_full says that all have read dP
              dQ     dQ(t)        sums         dq_empty, before dP(t+1)
    384-      dK     dK(t)        warps 8-11   ds_full of the next item, at its first dK

With D = 64, dQ has columns 192-255 of its own, and dq_empty is waited for before dQ(t+1). Warps
that store dV or dK arrive at p_full and ds_full of the next item afterwards. With head_split warps
0-3 read dV and dK behind the item's last dQ, and dv_empty and dk_empty say so.

NOTE [Barriers]: as in the forward: "full" is arrived at by who fills, "empty" by who has read.

    kv_full, kv_empty    load -> MMA           K and V of the item; empty by the last dQ
    q_full, q_empty      load -> MMA, compute  Q, bias, delta; empty by dK, which waits for ds_full
    do_full, do_empty    load -> MMA           dO; empty by dV
    s_full, dp_full      MMA -> compute
    p_full, ds_full      compute -> MMA        dS in shared memory is free once dp_full of the next
                                               step says that dQ and dK are done
    dq_full, dq_empty    MMA -> sums
    dv_full, dk_full     MMA -> warps 4-7, 8-11   without head_split
    dv_empty, dk_empty   warps 0-3 -> MMA         with head_split
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, const_expr, cute
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
from kernels_sm100.backward_fakes import BackwardFakes, compact, scalars
from kernels_sm100.barriers import commit, init_all, next_slot, wait_tmem
from kernels_sm100.columns import (
    Column,
    Columns,
    Step,
    column,
    first_step,
    next_step,
    q_tile,
)
from kernels_sm100.config import TMEM_COLUMNS
from kernels_sm100.mask import keep_half
from kernels_sm100.mma import gemm

Q_STAGES = 2


class Barriers(NamedTuple):
    """First barrier of each kind, see NOTE [Barriers]."""

    kv_full: cute.Pointer
    kv_empty: cute.Pointer
    q_full: cute.Pointer
    q_empty: cute.Pointer
    do_full: cute.Pointer
    do_empty: cute.Pointer
    s_full: cute.Pointer
    p_full: cute.Pointer
    dp_full: cute.Pointer
    ds_full: cute.Pointer
    dq_full: cute.Pointer
    dq_empty: cute.Pointer
    dv_full: cute.Pointer
    dv_empty: cute.Pointer
    dk_full: cute.Pointer
    dk_empty: cute.Pointer


class LoopQ(Backward):
    """The kernel of one configuration; `cute.compile` takes an instance."""

    @property
    def splits(self) -> bool:
        """Whether dK and dV are added to sums, see NOTE [Head split]."""
        return self.config.head_split > 1

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        do: cute.Tensor,
        bias: cute.Tensor,
        delta: cute.Tensor,
        dq_sums: cute.Tensor,
        dk: cute.Tensor,
        dv: cute.Tensor,
        semaphores: cute.Tensor,
        pattern_id: cute.Tensor,
        row_ptr: cute.Tensor,
        col: cute.Tensor,
        tile_id: cute.Tensor,
        write_order: cute.Tensor,
        tiles: cute.Tensor,
        order: cute.Tensor,
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
            dq_sums: float32 [B, HQ / G, M, D / 4, 128, 4], added to.
            dk: [B, SK, HK, D], written; with head_split float32 [B, HK, N, D / 4, 128, 4], added
                to: dK without the softmax scale.
            dv: likewise, dV.
            semaphores: int32 [B, HQ / G, M], zero; used if deterministic.
            pattern_id: int32 [B or 1, heads]: 1, HK or (not packed) HQ heads.
            row_ptr: int64 [patterns * KV blocks + 1].
            col: int32 [entries].
            tile_id: int32 [entries, parts].
            write_order: int32 [entries, parts]; read if deterministic.
            tiles: int32 [T, 128, words], bits of S^T, a bit a token of a part.
            order: int32 [batches * owners * KV blocks], unread if deterministic.
            scale: of the scores.
            scale_log2: scale times log2(e).
            ctas: CTAs to launch at most; if deterministic, no more than are resident at once.
            stream: CUDA stream.
        """
        kv_heads, plan_heads, plan_batches = k.shape[2], pattern_id.shape[1], pattern_id.shape[0]
        blocks = cute.ceil_div(k.shape[1], TILE)
        owners = cutlass.min(Int32(plan_heads), Int32(kv_heads))
        columns = Int32(k.shape[0]) * kv_heads
        divisor = cute.FastDivmodDivisorV2
        walk = Columns(
            pattern_id=pattern_id,
            row_ptr=row_ptr,
            col=col,
            tile_id=tile_id,
            write_order=write_order,
            tiles=tiles,
            order=order,
            rows=divisor(Int32(blocks)),
            owners=divisor(owners),
            heads=divisor(Int32(kv_heads) // owners),
            batches=divisor(Int32(k.shape[0]) // Int32(plan_batches)),
            pattern_heads=divisor(Int32(q.shape[2]) // self.pack // Int32(plan_heads)),
            columns=divisor(columns),
            items=columns * blocks * self.config.head_split,
        )
        mma = self.products()
        one = self.layouts(mma, 1, Q_STAGES)
        other = self.layouts(mma, 1, self.stages)
        k_atom, k_map = self.keys_map(k, one.keys, mma)
        v_atom, v_map = self.keys_map(v, one.keys, mma)
        q_atom, q_map = self.queries_map(q, one.queries, mma)
        do_atom, do_map = self.queries_map(do, other.queries, mma)
        maps = Maps(k_atom, v_atom, q_atom, do_atom, k_map, v_map, q_map, do_map)
        dtype, stages = self.dtype, self.stages

        @cute.struct
        class Storage:
            kv_full: cute.struct.MemRange[Int64, 1]
            kv_empty: cute.struct.MemRange[Int64, 1]
            q_full: cute.struct.MemRange[Int64, Q_STAGES]
            q_empty: cute.struct.MemRange[Int64, Q_STAGES]
            do_full: cute.struct.MemRange[Int64, stages]
            do_empty: cute.struct.MemRange[Int64, stages]
            s_full: cute.struct.MemRange[Int64, 1]
            p_full: cute.struct.MemRange[Int64, 1]
            dp_full: cute.struct.MemRange[Int64, 1]
            ds_full: cute.struct.MemRange[Int64, 1]
            dq_full: cute.struct.MemRange[Int64, 1]
            dq_empty: cute.struct.MemRange[Int64, 1]
            dv_full: cute.struct.MemRange[Int64, 1]
            dv_empty: cute.struct.MemRange[Int64, 1]
            dk_full: cute.struct.MemRange[Int64, 1]
            dk_empty: cute.struct.MemRange[Int64, 1]
            tmem: Int32
            bias: cute.struct.Align[cute.struct.MemRange[Float32, TILE * Q_STAGES], 128]
            delta: cute.struct.Align[cute.struct.MemRange[Float32, TILE * Q_STAGES], 128]
            k: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.keys)], ALIGN]
            v: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.keys)], ALIGN]
            q: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(one.queries)], ALIGN]
            do: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(other.queries)], ALIGN]
            ds: cute.struct.Align[cute.struct.MemRange[dtype, TILE * TILE], ALIGN]
            chunks: cute.struct.Align[
                cute.struct.MemRange[Float32, TILE * CHUNK * CHUNK_BUFFERS], ALIGN
            ]

        self.storage = Storage
        self.kernel(
            maps,
            mma,
            one,
            other,
            bias,
            delta,
            dq_sums,
            dk if const_expr(self.splits) else self.rows_first(dk),
            dv if const_expr(self.splits) else self.rows_first(dv),
            semaphores,
            walk,
            k.shape[1],
            scale,
            scale_log2,
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
        dq_sums: cute.Tensor,
        dk: cute.Tensor,
        dv: cute.Tensor,
        semaphores: cute.Tensor,
        walk: Columns,
        seqlen_k: Int32,
        scale: Float32,
        scale_log2: Float32,
    ) -> None:
        """Set up what the roles share, then become one of them."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = SmemAllocator().allocate(self.storage)
        barriers = Barriers(*(getattr(storage, name).data_ptr() for name in Barriers._fields))
        if warp == LOAD_WARP:
            for atom in maps[:4]:
                cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                self.init_barriers(barriers)
            cute.arch.mbarrier_init_fence()
        if warp == MMA_WARP:
            cute.arch.alloc_tmem(TMEM_COLUMNS, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tmem.ptr)
        shared = self.shared(storage, one, one, one, other, Q_STAGES)

        if warp == LOAD_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            self.load(maps, bias, delta, shared, mma, walk, barriers)
        if warp == MMA_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            self.mma(mma, one, shared, tmem, walk, barriers)
        if warp > LOAD_WARP:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp < COMPUTE_WARP:
            cute.arch.setmaxregister_increase(SUM_REGISTERS)
            self.sums(mma, tmem, shared, dq_sums, dk, dv, semaphores, walk, barriers)
        if warp >= COMPUTE_WARP and warp < MMA_WARP:
            cute.arch.setmaxregister_increase(COMPUTE_REGISTERS)
            self.compute(mma, tmem, shared, dk, dv, walk, seqlen_k, scale, scale_log2, barriers)
        cute.arch.sync_threads()
        if warp == MMA_WARP:
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)

    @cute.jit
    def init_barriers(self, barriers: Barriers) -> None:
        """Arrivals that each barrier waits for, by one thread."""
        for name in ("kv_full", "kv_empty", "s_full", "dp_full", "dq_full"):
            init_all(getattr(barriers, name), 1, 1)
        for name in ("q_full", "q_empty"):
            init_all(getattr(barriers, name), Q_STAGES, 1)
        for name in ("do_full", "do_empty"):
            init_all(getattr(barriers, name), self.stages, 1)
        for name in ("p_full", "ds_full"):
            init_all(getattr(barriers, name), 1, COMPUTE_WARPS)
        init_all(barriers.dq_empty, 1, GROUP_WARPS)
        if const_expr(self.splits):
            for name in ("dv_empty", "dk_empty"):
                init_all(getattr(barriers, name), 1, GROUP_WARPS)
        else:
            for name in ("dv_full", "dk_full"):
                init_all(getattr(barriers, name), 1, 1)

    def item(self, walk: Columns, index: Int32) -> Column:
        """Work item `index` in this configuration's order."""
        return column(walk, index, self.config)

    def first(self, walk: Columns, item: Column, head: Int32) -> Step:
        """The first step of a query head of an item."""
        return first_step(walk, item, head, self.config)

    def following(self, walk: Columns, step: Step) -> Step:
        """The step after `step`, of the same head."""
        return next_step(walk, step, self.config)

    @cute.jit
    def load(
        self,
        maps: Maps,
        bias: cute.Tensor,
        delta: cute.Tensor,
        shared: Shared,
        mma: Products,
        walk: Columns,
        barriers: Barriers,
    ) -> None:
        """Load K and V before an item's first step, and what each step streams."""
        part = mma.pair.get_slice(0)
        slot, phase, do_slot, do_phase = Int32(0), Int32(1), Int32(0), Int32(1)
        kv_phase = Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = self.item(walk, index)
            steps = Int32(0)
            for head in cutlass.range(item.first, item.last, unroll=1):
                step = self.first(walk, item, head)
                q_of = part.partition_B(self.tiles_of(maps.q, head, item.batch))
                do_of = part.partition_B(self.tiles_of(maps.do, head, item.batch))
                s_q, g_q = self.tma_parts(maps.q_atom, shared.q, q_of)
                s_do, g_do = self.tma_parts(maps.do_atom, shared.do, do_of)
                while step.more:
                    tile = q_tile(walk, step, self.config)
                    if steps == 0:
                        cute.arch.mbarrier_wait(barriers.kv_empty, kv_phase)
                        kv_phase ^= 1
                        self.load_keys(maps, shared, mma, item, barriers.kv_full)
                    cute.arch.mbarrier_wait(barriers.q_empty + slot, phase)
                    full = barriers.q_full + slot
                    self.load_tile(maps.q_atom, g_q[None, tile], s_q[None, slot], full, rows=2)
                    self.load_rows(bias, delta, shared, (item.batch, head, tile), slot, full)
                    slot, phase = next_slot(slot, phase, Q_STAGES)
                    cute.arch.mbarrier_wait(barriers.do_empty + do_slot, do_phase)
                    full = barriers.do_full + do_slot
                    self.load_tile(maps.do_atom, g_do[None, tile], s_do[None, do_slot], full)
                    do_slot, do_phase = next_slot(do_slot, do_phase, self.stages)
                    steps += 1
                    step = self.following(walk, step)
            index += cute.arch.grid_dim()[0]
        # The CTA must not end while a commit is still to arrive at its barriers; this is the last.
        cute.arch.mbarrier_wait(barriers.kv_empty, kv_phase)

    @cute.jit
    def load_keys(
        self, maps: Maps, shared: Shared, mma: Products, item: Column, full: cute.Pointer
    ) -> None:
        """Load K and V of an item; `full` counts both."""
        part = mma.pair.get_slice(0)
        self.expect(full, 2)
        for atom, tensor, target in (
            (maps.k_atom, maps.k, shared.k),
            (maps.v_atom, maps.v, shared.v),
        ):
            tiles = part.partition_A(self.tiles_of(tensor, item.head, item.batch))
            to, of = self.tma_parts(atom, target, tiles)
            cute.copy(atom, of[None, item.block], to[None, 0], tma_bar_ptr=full)

    @cute.jit
    def mma(
        self,
        mma: Products,
        layouts: Any,
        shared: Shared,
        tmem: cute.Pointer,
        walk: Columns,
        barriers: Barriers,
    ) -> None:
        """Issue the products, see NOTE [Order of MMAs]."""
        of = self.operands(mma, layouts, shared, tmem, (LAST_COLUMN, self.sum_column))
        half_steps = cute.size(of.p[0].shape[2]) // 2
        slot, phase, do_slot, do_phase = Int32(0), Int32(0), Int32(0), Int32(0)
        kv_phase, step_phase, dq_phase, empty_phase = Int32(0), Int32(0), Int32(1), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = self.item(walk, index)
            steps, before = Int32(0), Int32(0)
            for head in cutlass.range(item.first, item.last, unroll=1):
                step = self.first(walk, item, head)
                while step.more:
                    if steps == 0:
                        cute.arch.mbarrier_wait(barriers.kv_full, kv_phase)
                        kv_phase ^= 1
                    cute.arch.mbarrier_wait(barriers.q_full + slot, phase)
                    pair = (buffer(of.k, 0), buffer(of.q, slot))
                    gemm(mma.pair, of.s, *pair, False, bit=step_phase)
                    commit(barriers.s_full)
                    if steps > 0:
                        dq_phase = self.dk_and_dq(
                            mma, of, before, steps, step_phase, dq_phase, empty_phase, barriers
                        )
                    cute.arch.mbarrier_wait(barriers.do_full + do_slot, do_phase)
                    if const_expr(self.shares_dp):
                        wait_tmem(barriers.dq_empty, dq_phase)
                        dq_phase ^= 1
                    pair = (buffer(of.v, 0), buffer(of.do, do_slot))
                    gemm(mma.pair, of.dp, *pair, False, bit=step_phase)
                    commit(barriers.dp_full)
                    wait_tmem(barriers.p_full, step_phase)
                    if const_expr(self.splits):
                        self.wait_where(steps == 0, barriers.dv_empty, empty_phase)
                    dv, do_t = (mma.dv, of.dv), buffer(of.do_t, do_slot)
                    gemm(*dv, of.p[0], do_t, steps > 0, last=half_steps, bit=step_phase)
                    gemm(*dv, of.p[1], do_t, True, first=half_steps, bit=step_phase)
                    commit(barriers.do_empty + do_slot)
                    before = slot
                    slot, phase = next_slot(slot, phase, Q_STAGES)
                    do_slot, do_phase = next_slot(do_slot, do_phase, self.stages)
                    step_phase ^= 1
                    steps += 1
                    step = self.following(walk, step)
            if steps > 0:
                if const_expr(not self.splits):
                    commit(barriers.dv_full)
                dq_phase = self.dk_and_dq(
                    mma, of, before, steps, step_phase, dq_phase, empty_phase, barriers,
                    last=not self.splits,
                )  # fmt: skip
                commit(barriers.kv_empty)
                empty_phase ^= 1
            index += cute.arch.grid_dim()[0]

    @cute.jit
    def wait_where(self, condition: Any, barrier: cute.Pointer, phase: Int32) -> None:
        """`wait_tmem`, if `condition` holds."""
        if condition:
            wait_tmem(barrier, phase)

    @cute.jit
    def dk_and_dq(
        self,
        mma: Products,
        of: Operands,
        slot: Int32,
        steps: Int32,
        step_phase: Int32,
        dq_phase: Int32,
        empty_phase: Int32,
        barriers: Barriers,
        last: cutlass.Constexpr[bool] = False,
    ) -> Int32:
        """Issue the two products that take dS of the step before; returns dQ's next phase.

        Args:
            mma: the products.
            of: their operands.
            slot: of that step's Q.
            steps: of this item that are behind, that step among them.
            step_phase: of the next step.
            dq_phase: of dq_empty.
            empty_phase: of dk_empty.
            barriers: all of them.
            last: whether dK is whole, and somebody waits for it.
        """
        wait_tmem(barriers.ds_full, step_phase ^ 1)
        if const_expr(self.splits):
            self.wait_where(steps == 1, barriers.dk_empty, empty_phase)
        pair = (buffer(of.ds_t, 0), buffer(of.q_t, slot))
        gemm(mma.dk, of.dk, *pair, steps > 1, bit=step_phase)
        commit(barriers.q_empty + slot)
        if const_expr(last):
            commit(barriers.dk_full)
        if const_expr(not self.shares_dp):
            wait_tmem(barriers.dq_empty, dq_phase)
            dq_phase ^= 1
        pair = (buffer(of.ds, 0), buffer(of.k_t, 0))
        gemm(mma.dq, of.dq, *pair, False, bit=step_phase)
        commit(barriers.dq_full)
        return dq_phase

    @cute.jit
    def compute(
        self,
        mma: Products,
        tmem: cute.Pointer,
        shared: Shared,
        dk: cute.Tensor,
        dv: cute.Tensor,
        walk: Columns,
        seqlen_k: Int32,
        scale: Float32,
        scale_log2: Float32,
        barriers: Barriers,
    ) -> None:
        """P and dS of each step; at the end of an item dV and dK."""
        thread = cute.arch.thread_idx()[0] % TILE
        half = cute.arch.make_warp_uniform(cute.arch.warp_idx() // GROUP_WARPS - 1)
        lanes = self.accumulator(mma.pair, self.pair_tile, tmem, 0)[(None, None), 0, 0].layout
        part = self.half_of(tmem, lanes, half)
        ds = self.ds_line(shared.ds_t.iterator, thread, half)
        slot, phase, step_phase, full_phase = Int32(0), Int32(0), Int32(0), Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = self.item(walk, index)
            key = item.block * TILE + thread
            ragged = (item.block + 1) * TILE > seqlen_k
            visited = Boolean(False)
            for head in cutlass.range(item.first, item.last, unroll=1):
                step = self.first(walk, item, head)
                visited |= step.more
                while step.more:
                    words = keep_half(walk, step.tile, thread, half, self.pack)
                    if key >= seqlen_k:
                        words.fill(0)
                    masked = step.tile >= 0 or ragged
                    # S says so too, but not what copies wrote for this proxy
                    cute.arch.mbarrier_wait(barriers.q_full + slot, phase)
                    p = self.probabilities(
                        part, masked, words, shared.bias[None, slot], scale_log2, step_phase,
                        barriers.s_full, barriers.p_full,
                    )  # fmt: skip
                    step = self.following(walk, step)  # is read while dP is on its way
                    self.gradients(
                        part, p, shared.delta[None, slot], ds, step_phase, barriers.dp_full,
                        barriers.ds_full,
                    )  # fmt: skip
                    slot, phase = next_slot(slot, phase, Q_STAGES)
                    step_phase ^= 1
            if const_expr(not self.splits):
                if half == 0:
                    self.store(
                        self.accumulator(mma.dv, self.gradient_tile, tmem, DV_COLUMN), dv, item,
                        thread, visited, Float32(1.0), barriers.dv_full, full_phase,
                    )  # fmt: skip
                else:
                    self.store(
                        self.accumulator(mma.dk, self.gradient_tile, tmem, LAST_COLUMN), dk, item,
                        thread, visited, scale, barriers.dk_full, full_phase,
                    )  # fmt: skip
            if visited:
                full_phase ^= 1
            index += cute.arch.grid_dim()[0]

    @cute.jit
    def store(
        self,
        acc: cute.Tensor,
        target: cute.Tensor,
        item: Column,
        thread: Int32,
        visited: Any,
        factor: Float32,
        full: cute.Pointer,
        phase: Int32,
    ) -> None:
        """DK or dV of an item; zeros where no query sees its keys."""
        if visited:
            wait_tmem(full, phase)
        row = item.block * TILE + thread
        inside = row < target.shape[0]
        self.store_rows(
            acc[(None, None), 0, 0],
            target[row, None, item.head, item.batch],
            thread,
            inside,
            visited,
            factor,
            self.head_dim,
        )

    @cute.jit
    def sums(
        self,
        mma: Products,
        tmem: cute.Pointer,
        shared: Shared,
        dq_sums: cute.Tensor,
        dk: cute.Tensor,
        dv: cute.Tensor,
        semaphores: cute.Tensor,
        walk: Columns,
        barriers: Barriers,
    ) -> None:
        """Add dQ of each step to its tile's sum; with head_split, dV and dK of each item."""
        thread = cute.arch.thread_idx()[0] % TILE
        acc = self.accumulator(mma.dq, self.gradient_tile, tmem, self.sum_column)
        phase = Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = self.item(walk, index)
            visited = Boolean(False)
            for head in cutlass.range(item.first, item.last, unroll=1):
                step = self.first(walk, item, head)
                visited |= step.more
                while step.more:
                    tile = q_tile(walk, step, self.config)
                    semaphore, turn = None, None
                    if const_expr(self.config.deterministic):
                        semaphore = semaphores[item.batch, head, None].iterator + tile
                        turn = walk.write_order[step.entry, step.part]
                    wait_tmem(barriers.dq_full, phase)
                    phase ^= 1
                    self.add_tile(
                        acc[(None, None), 0, 0],
                        shared.chunks,
                        dq_sums[item.batch, head, tile, None, None, None],
                        thread,
                        barriers.dq_empty,
                        semaphore,
                        turn,
                    )
                    step = self.following(walk, step)
            if const_expr(self.splits):
                self.add_item(mma, tmem, shared, dk, dv, item, thread, visited, barriers)
            index += cute.arch.grid_dim()[0]
        if const_expr(not self.config.deterministic):  # a turn ends when all has been added
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def add_item(
        self,
        mma: Products,
        tmem: cute.Pointer,
        shared: Shared,
        dk_sums: cute.Tensor,
        dv_sums: cute.Tensor,
        item: Column,
        thread: Int32,
        visited: Any,
        barriers: Barriers,
    ) -> None:
        """Add dV and dK of a visited item to their sums; both are behind its last dQ."""
        if visited:
            for atom, column_of, sums, empty in (
                (mma.dv, DV_COLUMN, dv_sums, barriers.dv_empty),
                (mma.dk, LAST_COLUMN, dk_sums, barriers.dk_empty),
            ):
                acc = self.accumulator(atom, self.gradient_tile, tmem, column_of)
                target = sums[item.batch, item.head, item.block, None, None, None]
                self.add_tile(
                    acc[(None, None), 0, 0], shared.chunks, target, thread, empty, None, None
                )


def fake_arguments(config: BackwardConfig) -> dict[str, Any]:
    """Arguments of `LoopQ.__call__` by name, without storage."""
    fakes = BackwardFakes(config)

    def of_keys() -> Any:
        if config.head_split == 1:
            return fakes.of_keys()
        return fakes.sums(fakes.kv_heads, cute.sym_int())

    return {
        **fakes.inputs(),
        "dq_sums": fakes.sums(fakes.row_heads, fakes.row_tiles),
        "dk": of_keys(),
        "dv": of_keys(),
        "semaphores": compact(Int32, fakes.batch, fakes.row_heads, fakes.row_tiles),
        **fakes.tables(write_order=True),
        **scalars(),
    }
