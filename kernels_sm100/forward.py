"""Block-sparse attention forward for SM100: O and LSE from a walk of block lists.

NOTE [Warp roles]: a CTA of 16 warps works on one or two tiles of 128 packed query rows at a time.

    warps  0-3   softmax of Q tile 0     S -> P, row maximum and sum
    warps  4-7   softmax of Q tile 1     (idle with one Q tile)
    warps  8-11  correction              O *= factor; at the end O / sum -> shared memory, LSE
    warp   12    MMA                     S = Q K^T, O += P V; owns tensor memory
    warp   13    store                   O by TMA
    warp   14    load                    Q, K, V by TMA
    warp   15    idle

Each role runs the same two loops, over work items and over the entries of an item's row, and reads
the same tables (walk.py).

NOTE [Barriers]: all are mbarriers, one per Q tile or per stage. "full" is arrived at by who fills,
"empty" by who is done reading. Arrivals are per warp, MMA's by tcgen05.commit.

    q_full, q_empty      load -> MMA       Q tile h in shared memory; all Q tiles done with
    kv_full, kv_empty    load -> MMA       stage s of the ring that K and V share: K0 V0 K1 V1 ..
    s_full               MMA -> softmax    S of tile h in tensor memory
    p_full               softmax and correction -> MMA: three quarters of P of tile h written, and O
                         of tile h rescaled
    p_rest               softmax -> MMA    the last quarter, so that P V starts before it is there
    scale_full, _empty   softmax -> correction: the factor of a step, or at the end of the row its
                         sum and maximum, in shared memory
    o_full               MMA -> correction the last P V of tile h is done
    out_full, out_empty  correction -> store: O of tile h in shared memory

S needs no "empty" barrier: P overwrites part of S once all of S is in registers, MMA waits for P
before it issues P V, and S of the tile's next entry is issued behind that. O needs none: correction
arrives at p_full for a row's first entry only after it has read the row before.

NOTE [Tensor memory]: 512 columns of 128 lanes. S of tile h at 128 h, P over the upper half of its
S, O of tile h at 256 + 128 h.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import cutlass
import cutlass.utils.blackwell_helpers as sm100
from cutlass import BFloat16, Float16, Float32, Int32, Int64, const_expr, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

from kernels_sm100.barriers import (
    arrive_warp,
    arrive_warp_tmem,
    bit,
    commit,
    has,
    init_all,
    next_slot,
    wait_tmem,
)
from kernels_sm100.config import MASK_WORDS, TILE_K, TILE_Q, TMEM_COLUMNS, ForwardConfig
from kernels_sm100.forward_store import store_boxes, store_row_copies
from kernels_sm100.mask import apply, keep_words
from kernels_sm100.mma import gemm
from kernels_sm100.modes import InnerLoadMode, OuterStoreMode
from kernels_sm100.output import rescale, store_rows, write_rows
from kernels_sm100.softmax import (
    exponentials,
    log_sum_exp,
    next_maximum,
    row_maximum,
    row_total,
)
from kernels_sm100.walk import (
    SKIP,
    Walk,
    WorkItem,
    keys_left,
    takes_part,
    tile_of,
    work_item,
)

WARPS = 16
THREADS = 32 * WARPS
CORRECTION_WARP, MMA_WARP, STORE_WARP, LOAD_WARP = 8, 12, 13, 14
GROUP_WARPS = 4  # warps that share a tile's 128 rows
O_COLUMN = 256
P_COLUMN = TILE_K // 2
CHUNK = 32  # columns of S that a thread turns into P at a time
P_EARLY = 96  # keys of P that P V starts with
MMA_K = 16  # inner dimension of one MMA
ALIGN = 1024  # of tiles in shared memory, for the 128-byte swizzle
DTYPE = {"bfloat16": BFloat16, "float16": Float16}


class Barriers(NamedTuple):
    """First barrier of each kind, see NOTE [Barriers]."""

    q_full: cute.Pointer
    q_empty: cute.Pointer
    kv_full: cute.Pointer
    kv_empty: cute.Pointer
    s_full: cute.Pointer
    p_full: cute.Pointer
    p_rest: cute.Pointer
    scale_full: cute.Pointer
    scale_empty: cute.Pointer
    o_full: cute.Pointer
    out_full: cute.Pointer
    out_empty: cute.Pointer


class Tiles(NamedTuple):
    """What loads fill in shared memory.

    Attributes:
        q: Q tiles.
        k: stages of the ring, as K.
        v: the same, as V.
        ring: where they begin.
        tokens: room for those of a chunk, if K and V are gathered.
    """

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    ring: cute.Pointer
    tokens: cute.Pointer


class Forward(ABC):
    """What forward kernels have in common: all but where K and V come from.

    A subclass has `__call__`, which `cute.compile` takes and which ends in `start`.

    Args:
        config: what to compile.

    Attributes:
        load_warps: warps from LOAD_WARP on that run `load`.
        fills: arrivals that a stage of K or V waits for.
    """

    load_warps = 1
    fills = 1

    def __init__(self, config: ForwardConfig) -> None:
        self.config = config
        self.q_tiles = config.q_tiles
        self.stages = config.kv_stages
        self.dtype = DTYPE[config.dtype]
        self.head_dim = config.head_dim
        self.head_dim_v = config.head_dim_v
        self.pack = config.rows_per_token
        self.per_kv_head = 1 if config.pack_gqa else config.group
        self.qk_tile = (TILE_Q, TILE_K, config.head_dim)
        self.pv_tile = (TILE_Q, config.head_dim_v, TILE_K)

    def packed(self, tensor: cute.Tensor) -> cute.Tensor:
        """[B, S, H, D] as ((G, S), D, H / G, B) with PackGQA, else (S, D, H, B): a view."""
        b, s, h, d = tensor.shape
        sb, ss, sh, sd = tensor.stride
        if const_expr(self.pack == 1):
            layout = cute.make_layout((s, d, h, b), stride=(ss, sd, sh, sb))
        else:
            layout = cute.make_layout(
                ((self.pack, s), d, h // self.pack, b), stride=((sh, ss), sd, sh * self.pack, sb)
            )
        return cute.make_tensor(tensor.iterator, layout)

    def start(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        tables: tuple[cute.Tensor, ...],
        rows: Int32,
        scale_log2: Float32,
        ctas: Int32,
        stream: Any,
        tokens: cute.Tensor | None = None,
        keys: cute.Tensor | None = None,
    ) -> None:
        """What `__call__` does; `tables` are those of `forward_host.TABLES`."""
        pattern_id, row_ptr, col, tile_id, tiles, order = tables
        seqlen_k = k.shape[1]
        heads = q.shape[2] // self.pack
        part_rows = tiles.shape[1] * self.config.rows_per_bit_row
        tiles_per_row = part_rows * self.config.parts // self.config.cta_rows
        heads_each = heads // pattern_id.shape[1]
        batches_each = q.shape[0] // pattern_id.shape[0]
        items = order.shape[0] * heads_each * batches_each * tiles_per_row
        walk = Walk(
            pattern_id=pattern_id,
            row_ptr=row_ptr,
            col=col,
            tile_id=tile_id,
            tiles=tiles,
            order=order,
            rows=cute.FastDivmodDivisorV2(rows),
            heads=cute.FastDivmodDivisorV2(Int32(heads_each)),
            batches=cute.FastDivmodDivisorV2(Int32(batches_each)),
            tiles_per_row=cute.FastDivmodDivisorV2(Int32(tiles_per_row)),
            plan_heads=cute.FastDivmodDivisorV2(Int32(pattern_id.shape[1])),
            items=Int32(items),
            tokens=tokens,
            keys=keys,
        )
        lse_rows = self.packed_lse(lse)
        q, o = self.packed(q), self.packed(o)

        one = tcgen05.CtaGroup.ONE
        mma_qk = sm100.make_trivial_tiled_mma(
            self.dtype,
            self.dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            one,
            self.qk_tile[:2],
        )
        mma_pv = sm100.make_trivial_tiled_mma(
            self.dtype,
            self.dtype,
            OperandMajorMode.K,
            OperandMajorMode.MN,
            Float32,
            one,
            self.pv_tile[:2],
            tcgen05.OperandSource.TMEM,
        )
        q_layout = sm100.make_smem_layout_a(mma_qk, self.qk_tile, self.dtype, self.q_tiles)
        k_layout = self.ring(
            sm100.make_smem_layout_b(mma_qk, self.qk_tile, self.dtype, self.stages)
        )
        v_layout = self.ring(
            sm100.make_smem_layout_b(mma_pv, self.pv_tile, self.dtype, self.stages)
        )
        p_layout = sm100.make_smem_layout_a(mma_pv, self.pv_tile, self.dtype, 1)
        o_layout, atom_o = self.out_layout(), None

        load = cpasync.CopyBulkTensorTileG2SOp(one)
        cluster = cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma_qk.thr_id.shape,)).shape
        per_stage = partial(cute.select, mode=[0, 1, 2])
        atom_q, q = cute.nvgpu.make_tiled_tma_atom_A(
            load, q, per_stage(q_layout), self.qk_tile, mma_qk, cluster
        )
        kv = self.stream_of(k, v, (k_layout, v_layout), (mma_qk, mma_pv), walk)
        if const_expr(self.config.outer_store is OuterStoreMode.TMA):
            atom_o, o = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(),
                o,
                cute.select(o_layout, mode=[0, 1]),
                (TILE_Q, self.head_dim_v),
            )

        stages, tiles_q, dtype = self.stages, self.q_tiles, self.dtype
        token_slots = TILE_K if self.config.gathered else 0
        kv_size = self.stages * self.config.stage_bytes // 2
        o_size = self.config.out_bytes // 2

        @cute.struct
        class Storage:
            q_full: cute.struct.MemRange[Int64, tiles_q]
            q_empty: cute.struct.MemRange[Int64, 1]
            kv_full: cute.struct.MemRange[Int64, stages]
            kv_empty: cute.struct.MemRange[Int64, stages]
            s_full: cute.struct.MemRange[Int64, tiles_q]
            p_full: cute.struct.MemRange[Int64, tiles_q]
            p_rest: cute.struct.MemRange[Int64, tiles_q]
            scale_full: cute.struct.MemRange[Int64, tiles_q]
            scale_empty: cute.struct.MemRange[Int64, tiles_q]
            o_full: cute.struct.MemRange[Int64, tiles_q]
            out_full: cute.struct.MemRange[Int64, tiles_q]
            out_empty: cute.struct.MemRange[Int64, tiles_q]
            tmem: Int32
            scale: cute.struct.MemRange[Float32, tiles_q * TILE_Q]
            maximum: cute.struct.MemRange[Float32, tiles_q * TILE_Q]
            tokens: cute.struct.Align[cute.struct.MemRange[Int32, token_slots], 16]
            o: cute.struct.Align[cute.struct.MemRange[dtype, o_size], ALIGN]
            q: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(q_layout)], ALIGN]
            kv: cute.struct.Align[cute.struct.MemRange[dtype, kv_size], ALIGN]

        self.storage = Storage
        self.kernel(
            atom_q,
            atom_o,
            q,
            kv,
            o,
            lse_rows,
            walk,
            scale_log2,
            Int32(seqlen_k),
            mma_qk,
            mma_pv,
            q_layout,
            k_layout,
            v_layout,
            p_layout,
            o_layout,
        ).launch(
            grid=(cutlass.min(ctas, walk.items), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @abstractmethod
    def stream_of(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        layouts: tuple[cute.ComposedLayout, cute.ComposedLayout],
        products: tuple[cute.TiledMma, cute.TiledMma],
        walk: Walk,
    ) -> Any:
        """What the load warps take K and V from; on the host.

        Args:
            k: [B, SK, HK, D].
            v: [B, SK, HK, DV].
            layouts: of the ring, for K and V.
            products: those that read them.
            walk: the tables.
        """

    @abstractmethod
    def atoms_of(self, kv: Any) -> tuple[cute.CopyAtom, ...]:
        """The tensor maps in what `stream_of` made."""

    @abstractmethod
    def load(
        self,
        atom_q: cute.CopyAtom,
        q: cute.Tensor,
        kv: Any,
        shared: Tiles,
        products: tuple[cute.ThrMma, cute.ThrMma],
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Load Q of a work item once, then K and V of each entry.

        Args:
            atom_q: holds the tensor map of Q.
            q: its coordinates.
            kv: what `stream_of` made.
            shared: where they go.
            products: this CTA's part of Q K^T and of P V.
            walk: the tables.
            barriers: of the CTA.
        """

    def out_layout(self) -> cute.ComposedLayout:
        """O of each Q tile in shared memory: swizzled for a box, plain for copies of rows."""
        tile = (TILE_Q, self.head_dim_v)
        if const_expr(self.config.outer_store is OuterStoreMode.TMA):
            return sm100.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, tile, self.q_tiles)
        rows = cute.make_ordered_layout((*tile, self.q_tiles), order=(1, 0, 2))
        return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, rows)

    def packed_lse(self, lse: cute.Tensor) -> cute.Tensor:
        """[B, H, S] as (rows, heads, B), rows packed as those of O."""
        b, h, s = lse.shape
        sb, sh, ss = lse.stride
        if const_expr(self.pack == 1):
            layout = cute.make_layout((s, h, b), stride=(ss, sh, sb))
        else:
            layout = cute.make_layout(
                ((self.pack, s), h // self.pack, b), stride=((sh, ss), sh * self.pack, sb)
            )
        return cute.make_tensor(lse.iterator, layout)

    def ring(self, layout: cute.ComposedLayout) -> cute.ComposedLayout:
        """`layout` of K or V with the stage stride that both share."""
        outer = layout.outer
        stride = self.config.stage_bytes // 2
        return cute.make_composed_layout(
            layout.inner,
            0,
            cute.make_layout(outer.shape, stride=(*outer.stride[:-1], stride)),
        )

    @cute.kernel
    def kernel(
        self,
        atom_q: cute.CopyAtom,
        atom_o: cute.CopyAtom,
        q: cute.Tensor,
        kv: Any,
        o: cute.Tensor,
        lse: cute.Tensor,
        walk: Walk,
        scale_log2: Float32,
        seqlen_k: Int32,
        mma_qk: cute.TiledMma,
        mma_pv: cute.TiledMma,
        q_layout: cute.ComposedLayout,
        k_layout: cute.ComposedLayout,
        v_layout: cute.ComposedLayout,
        p_layout: cute.ComposedLayout,
        o_layout: cute.ComposedLayout,
    ) -> None:
        """Set up what the roles share, then become one of them."""
        for_softmax, for_correction, for_others = self.config.registers
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = SmemAllocator().allocate(self.storage)
        barriers = Barriers(*(getattr(storage, name).data_ptr() for name in Barriers._fields))
        if warp == LOAD_WARP:
            for atom in (atom_q, atom_o, *self.atoms_of(kv)):
                if const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                self.init_barriers(barriers)
            cute.arch.mbarrier_init_fence()
        if warp == MMA_WARP:
            cute.arch.alloc_tmem(TMEM_COLUMNS, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        # Read by each role for itself: a register kept from here to there would be spilled.
        tmem = partial(cute.arch.retrieve_tmem_ptr, Float32, 16, storage.tmem.ptr)

        s_q = storage.q.get_tensor(q_layout.outer, swizzle=q_layout.inner)
        s_k = storage.kv.get_tensor(k_layout.outer, swizzle=k_layout.inner)
        s_v = cute.make_tensor(cute.recast_ptr(s_k.iterator, v_layout.inner), v_layout.outer)
        s_o = None
        if const_expr(self.config.out_bytes > 0):
            s_o = storage.o.get_tensor(o_layout.outer, swizzle=o_layout.inner)
        scale = storage.scale.get_tensor(cute.make_layout((TILE_Q, self.q_tiles)))
        maximum = storage.maximum.get_tensor(cute.make_layout((TILE_Q, self.q_tiles)))
        thr_qk, thr_pv = mma_qk.get_slice(0), mma_pv.get_slice(0)
        acc_s = thr_qk.make_fragment_C(thr_qk.partition_shape_C(self.qk_tile[:2]))
        acc_o = thr_pv.make_fragment_C(thr_pv.partition_shape_C(self.pv_tile[:2]))

        if warp >= LOAD_WARP and warp < LOAD_WARP + self.load_warps:
            cute.arch.setmaxregister_decrease(for_others)
            shared = Tiles(s_q, s_k, s_v, storage.kv.data_ptr(), storage.tokens.data_ptr())
            self.load(atom_q, q, kv, shared, (thr_qk, thr_pv), walk, barriers)
        if warp == MMA_WARP:
            cute.arch.setmaxregister_decrease(for_others)
            p_smem = cute.make_tensor(acc_s.iterator, p_layout.outer)
            frag_p = thr_pv.make_fragment_A(p_smem)[None, None, None, 0]
            self.mma(
                mma_qk,
                mma_pv,
                s_q,
                s_k,
                s_v,
                frag_p.layout,
                acc_s.layout,
                acc_o.layout,
                tmem(),
                walk,
                barriers,
            )
        if warp == STORE_WARP:
            cute.arch.setmaxregister_decrease(for_others)
            ends = (walk, barriers.out_full, barriers.out_empty)
            if const_expr(self.config.outer_store is OuterStoreMode.TMA):
                store_boxes(self.config, atom_o, o, s_o, *ends)
            if const_expr(self.config.outer_store is OuterStoreMode.TMA_1D):
                store_row_copies(self.config, o, s_o, *ends)
        if warp >= LOAD_WARP + self.load_warps:
            cute.arch.setmaxregister_decrease(for_others)
        if warp < CORRECTION_WARP:
            cute.arch.setmaxregister_increase(for_softmax)
            if warp < GROUP_WARPS * self.q_tiles:
                self.softmax(
                    acc_s.layout,
                    tmem(),
                    scale,
                    maximum,
                    walk,
                    scale_log2,
                    seqlen_k,
                    thr_qk,
                    barriers,
                )
        if warp >= CORRECTION_WARP and warp < MMA_WARP:
            cute.arch.setmaxregister_decrease(for_correction)
            self.correction(
                acc_o.layout, tmem(), scale, maximum, s_o, o, lse, walk, scale_log2, barriers
            )
        cute.arch.sync_threads()
        if warp == MMA_WARP:
            cute.arch.dealloc_tmem(tmem(), TMEM_COLUMNS)

    @cute.jit
    def init_barriers(self, barriers: Barriers) -> None:
        """Arrivals that each barrier waits for, by one thread."""
        h, s = self.q_tiles, self.stages
        init_all(barriers.q_full, h, 1)
        init_all(barriers.q_empty, 1, 1)
        init_all(barriers.kv_full, s, self.fills)
        init_all(barriers.kv_empty, s, 1)
        init_all(barriers.s_full, h, 1)
        init_all(barriers.p_full, h, 2 * GROUP_WARPS)
        init_all(barriers.p_rest, h, GROUP_WARPS)
        init_all(barriers.scale_full, h, GROUP_WARPS)
        init_all(barriers.scale_empty, h, GROUP_WARPS)
        init_all(barriers.o_full, h, 1)
        init_all(barriers.out_full, h, GROUP_WARPS)
        init_all(barriers.out_empty, h, 1)

    @cute.jit
    def load_q(
        self,
        atom_q: cute.CopyAtom,
        q: cute.Tensor,
        s_q: cute.Tensor,
        thr_qk: cute.ThrMma,
        item: WorkItem,
        phase: Int32,
        barriers: Barriers,
    ) -> None:
        """Load the Q tiles of a work item, once nobody reads those of the last one."""
        q_of = cute.local_tile(
            q[None, None, item.head, item.batch], (TILE_Q, self.head_dim), (None, 0)
        )
        s_q_of, g_q = self.tma_parts(atom_q, s_q, thr_qk.partition_A(q_of))
        cute.arch.mbarrier_wait(barriers.q_empty, phase)
        for h in cutlass.range_constexpr(self.q_tiles):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(
                    barriers.q_full + h, TILE_Q * self.head_dim * 2
                )
            cute.copy(
                atom_q,
                g_q[None, item.tile * self.q_tiles + h],
                s_q_of[None, h],
                tma_bar_ptr=barriers.q_full + h,
            )

    @cute.jit
    def drain(self, slot: Int32, phase: Int32, q_phase: Int32, barriers: Barriers) -> None:
        """The CTA must not end while a commit is still to arrive at its barriers."""
        for _ in cutlass.range(self.stages, unroll=1):
            cute.arch.mbarrier_wait(barriers.kv_empty + slot, phase)
            slot, phase = next_slot(slot, phase, self.stages)
        cute.arch.mbarrier_wait(barriers.q_empty, q_phase)

    def tma_parts(
        self, atom: cute.CopyAtom, shared: cute.Tensor, source: cute.Tensor
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """(shared memory by stage, global memory by block) as a TMA copy takes them."""
        return cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 3),
            cute.group_modes(source, 0, 3),
        )

    @cute.jit
    def mma(
        self,
        mma_qk: cute.TiledMma,
        mma_pv: cute.TiledMma,
        s_q: cute.Tensor,
        s_k: cute.Tensor,
        s_v: cute.Tensor,
        layout_p: cute.Layout,
        layout_s: cute.Layout,
        layout_o: cute.Layout,
        tmem: cute.Pointer,
        walk: Walk,
        barriers: Barriers,
    ) -> None:
        """Issue S of an entry behind P V of the one before.

        Step e of a row issues P V of entry e - 1 and S of entry e, tile by tile, so that softmax of
        one tile runs under the MMAs of the other.
        """
        frag_q = mma_qk.get_slice(0).make_fragment_A(s_q)
        frag_k = mma_qk.get_slice(0).make_fragment_B(s_k)
        frag_v = mma_pv.get_slice(0).make_fragment_B(s_v)
        half_words = Float32.width // self.dtype.width
        acc_s = [cute.make_tensor(tmem + TILE_K * h, layout_s) for h in range(self.q_tiles)]
        acc_o = [
            cute.make_tensor(tmem + (O_COLUMN + TILE_Q * h), layout_o) for h in range(self.q_tiles)
        ]
        p_base = cute.recast_ptr(tmem, dtype=self.dtype)
        frag_p = [
            cute.make_tensor(p_base + (TILE_K * h + P_COLUMN) * half_words, layout_p)
            for h in range(self.q_tiles)
        ]
        slot, phase = Int32(0), Int32(0)
        q_phase, p_phase = Int32(0), Int32(0)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            before, seen = Int32(0), Int32(0)
            for e in cutlass.range(item.count + 1, unroll=1):
                now = Int32(0)
                if e < item.count:
                    now = takes_part(walk, item.begin + e, self.q_tiles, self.config.parts)
                v_slot = slot
                if e > 0:
                    self.wait_kv(barriers.kv_full + slot, phase)
                    slot, phase = next_slot(slot, phase, self.stages)
                for h in cutlass.range_constexpr(self.q_tiles):
                    if has(before, h):
                        p_v = (mma_pv, acc_o[h], frag_p[h], frag_v[None, None, None, v_slot])
                        wait_tmem(barriers.p_full + h, bit(p_phase, h))
                        gemm(*p_v, has(seen, h), last=P_EARLY // MMA_K)
                        wait_tmem(barriers.p_rest + h, bit(p_phase, h))
                        gemm(*p_v, True, first=P_EARLY // MMA_K)
                        p_phase ^= 1 << h
                        seen |= 1 << h
                    if e == item.count and has(seen, h):
                        commit(barriers.o_full + h)
                    if const_expr(h == self.q_tiles - 1):
                        if e > 0:
                            commit(barriers.kv_empty + v_slot)
                    if e < item.count:
                        if e == 0:
                            cute.arch.mbarrier_wait(barriers.q_full + h, q_phase)
                        if const_expr(h == 0):
                            self.wait_kv(barriers.kv_full + slot, phase)
                        if has(now, h):
                            gemm(
                                mma_qk,
                                acc_s[h],
                                frag_q[None, None, None, h],
                                frag_k[None, None, None, slot],
                                False,
                            )
                            commit(barriers.s_full + h)
                if e < item.count:
                    commit(barriers.kv_empty + slot)
                    slot, phase = next_slot(slot, phase, self.stages)
                    if e == item.count - 1:
                        commit(barriers.q_empty)
                before = now
            if item.count > 0:
                q_phase ^= 1
            index += cute.arch.grid_dim()[0]

    @cute.jit
    def wait_kv(self, barrier: cute.Pointer, phase: Int32) -> None:
        """Wait for K or V, and see it as MMAs do where cp.async has written it."""
        cute.arch.mbarrier_wait(barrier, phase)
        if const_expr(self.config.inner_load is InnerLoadMode.CP_ASYNC):
            cute.arch.fence_view_async_shared()

    @cute.jit
    def softmax(
        self,
        layout_s: cute.Layout,
        tmem: cute.Pointer,
        scale: cute.Tensor,
        maximum: cute.Tensor,
        walk: Walk,
        scale_log2: Float32,
        seqlen_k: Int32,
        thr_qk: cute.ThrMma,
        barriers: Barriers,
    ) -> None:
        """Turn S of one Q tile into P, entry by entry; a thread owns a row."""
        thread = cute.arch.thread_idx()[0] % TILE_Q
        tile_index = cute.arch.make_warp_uniform(cute.arch.warp_idx() // GROUP_WARPS)
        acc = cute.make_tensor(tmem + TILE_K * tile_index, layout_s)[(None, None), 0, 0]
        acc_p = cute.make_tensor(
            tmem + (TILE_K * tile_index + P_COLUMN),
            cute.composition(acc.layout, cute.make_layout((TILE_Q, TILE_K // 2))),
        )
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        save = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(CHUNK // 2)), Float32)
        load = tcgen05.make_tmem_copy(load, acc).get_slice(thread)
        save = tcgen05.make_tmem_copy(save, acc_p).get_slice(thread)
        coordinates = thr_qk.partition_C(cute.make_identity_tensor(self.qk_tile[:2]))
        shape_s = load.partition_D(coordinates[(None, None), 0, 0]).shape
        shape_p = save.partition_S(cute.make_identity_tensor((TILE_Q, TILE_K // 2))).shape
        source, target = load.partition_S(acc), save.partition_D(acc_p)

        s_phase, empty_phase = Int32(0), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            row = item.row_offset * self.config.cta_rows + thread
            if const_expr(self.config.parts != self.q_tiles):
                row += tile_index * TILE_Q
            row = row // self.config.rows_per_bit_row
            row_max, row_sum, steps = -Float32.inf, Float32(0.0), Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                tile = tile_of(walk, item.begin + e, tile_index, self.config.parts)
                if tile != SKIP:
                    left = keys_left(walk, item.begin + e, seqlen_k)
                    words = keep_words(walk, tile, row)
                    wait_tmem(barriers.s_full + tile_index, s_phase)
                    s_phase ^= 1
                    scores = cute.make_rmem_tensor(shape_s, Float32)
                    # Loading in both branches, not before them, saves 128 moves a step: each branch
                    # then puts S where the code behind them wants it.
                    if tile >= 0 or left < TILE_K:
                        cute.copy(load, source, scores)
                        cute.arch.fence_view_async_tmem_load()
                        apply(scores, words, left)
                    else:
                        cute.copy(load, source, scores)
                        cute.arch.fence_view_async_tmem_load()
                    found = row_maximum(scores, row_max)
                    row_max, safe, factor = next_maximum(
                        row_max, found, scale_log2, self.config.rescale_log2
                    )
                    cute.arch.mbarrier_wait(barriers.scale_empty + tile_index, empty_phase)
                    empty_phase ^= 1
                    scale[thread, tile_index] = factor
                    arrive_warp(barriers.scale_full + tile_index)
                    self.probabilities(
                        scores,
                        shape_p,
                        save,
                        target,
                        scale_log2,
                        -safe * scale_log2,
                        barriers.p_full + tile_index,
                    )
                    cute.arch.fence_view_async_tmem_store()
                    arrive_warp_tmem(barriers.p_rest + tile_index)
                    row_sum = row_total(scores, row_sum * factor)
                    steps += 1
            if steps > 0:
                cute.arch.mbarrier_wait(barriers.scale_empty + tile_index, empty_phase)
                empty_phase ^= 1
                scale[thread, tile_index] = row_sum
                maximum[thread, tile_index] = row_max
                arrive_warp(barriers.scale_full + tile_index)
            index += cute.arch.grid_dim()[0]

    @cute.jit
    def probabilities(
        self,
        scores: cute.Tensor,
        shape_p: cute.Shape,
        save: cute.TiledCopy,
        target: cute.Tensor,
        scale_log2: Float32,
        bias: Float32,
        early: cute.Pointer,
    ) -> None:
        """P of a row into tensor memory, a chunk at a time, so that few registers hold it.

        Arrives at `early` once the first P_EARLY keys are there.
        """
        words = cute.make_rmem_tensor(shape_p, Float32)
        halves = cute.make_tensor(
            cute.recast_ptr(words.iterator, dtype=self.dtype), cute.make_layout(TILE_K)
        )
        by_chunk = cute.logical_divide(
            cute.make_tensor(scores.iterator, cute.make_layout(TILE_K)), cute.make_layout(CHUNK)
        )
        halves = cute.logical_divide(halves, cute.make_layout(CHUNK))
        for i in cutlass.range_constexpr(TILE_K // CHUNK):
            exponentials(by_chunk[None, i], scale_log2, bias)
            halves[None, i].store(by_chunk[None, i].load().to(self.dtype))
            cute.copy(save, words[None, None, i], target[None, None, i])
            if const_expr((i + 1) * CHUNK == P_EARLY):
                cute.arch.fence_view_async_tmem_store()
                arrive_warp_tmem(early)

    @cute.jit
    def correction(
        self,
        layout_o: cute.Layout,
        tmem: cute.Pointer,
        scale: cute.Tensor,
        maximum: cute.Tensor,
        s_o: Any,
        o: cute.Tensor,
        lse: cute.Tensor,
        walk: Walk,
        scale_log2: Float32,
        barriers: Barriers,
    ) -> None:
        """Rescale O where a row's maximum has moved; at the end normalise and hand over O."""
        thread = cute.arch.thread_idx()[0] % TILE_Q
        acc_o = [
            cute.make_tensor(tmem + (O_COLUMN + TILE_Q * h), layout_o)[(None, None), 0, 0]
            for h in range(self.q_tiles)
        ]
        scale_phase, o_phase, out_phase = Int32(0), Int32(0), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            seen = Int32(0)
            for e in cutlass.range(item.count, unroll=1):
                now = takes_part(walk, item.begin + e, self.q_tiles, self.config.parts)
                for h in cutlass.range_constexpr(self.q_tiles):
                    if has(now, h):
                        # Orders O behind P V of the entry before, which softmax has seen complete.
                        wait_tmem(barriers.scale_full + h, bit(scale_phase, h))
                        factor = scale[thread, h]
                        arrive_warp(barriers.scale_empty + h)
                        if has(seen, h):
                            rescale(acc_o[h], thread, factor, self.config.lazy_rescale)
                        arrive_warp_tmem(barriers.p_full + h)
                scale_phase ^= now
                seen |= now
            for h in cutlass.range_constexpr(self.q_tiles):
                total, largest = Float32(0.0), -Float32.inf
                if has(seen, h):
                    cute.arch.mbarrier_wait(barriers.scale_full + h, bit(scale_phase, h))
                    total, largest = scale[thread, h], maximum[thread, h]
                    arrive_warp(barriers.scale_empty + h)
                    wait_tmem(barriers.o_full + h, bit(o_phase, h))
                row = (item.tile * self.q_tiles + h) * TILE_Q + thread
                inside = row < cute.size(lse.shape[0])
                if const_expr(self.config.outer_store is OuterStoreMode.STG):
                    out = o[row, None, item.head, item.batch]
                    store_rows(acc_o[h], out, thread, total, has(seen, h), inside)
                else:
                    cute.arch.mbarrier_wait(barriers.out_empty + h, out_phase)
                    write_rows(acc_o[h], s_o[None, None, h], thread, total, has(seen, h))
                    cute.arch.fence_view_async_shared()
                    arrive_warp(barriers.out_full + h)
                if inside:
                    lse[row, item.head, item.batch] = log_sum_exp(largest, total, scale_log2)
            scale_phase ^= seen
            o_phase ^= seen
            out_phase ^= 1
            index += cute.arch.grid_dim()[0]


def fake_arguments(config: ForwardConfig) -> dict[str, Any]:
    """Arguments of `Forward.__call__` by name, without storage: every size and stride dynamic."""
    dtype = DTYPE[config.dtype]
    batch, seqlen_q, seqlen_k, heads, kv_heads = (cute.sym_int() for _ in range(5))

    def activation(seqlen: Any, heads: Any, width: int) -> Any:
        strides = (cute.sym_int64(divisibility=8) for _ in range(3))
        return make_fake_tensor(
            dtype, (batch, seqlen, heads, width), (*strides, 1), assumed_align=16
        )

    def table(kind: Any, *shape: Any, align: int | None = None) -> Any:
        order = tuple(range(len(shape)))[::-1]  # compact, the last size fastest
        return make_fake_compact_tensor(kind, shape, stride_order=order, assumed_align=align)

    return {
        "q": activation(seqlen_q, heads, config.head_dim),
        "k": activation(seqlen_k, kv_heads, config.head_dim),
        "v": activation(seqlen_k, kv_heads, config.head_dim_v),
        "o": activation(seqlen_q, heads, config.head_dim_v),
        "lse": table(Float32, batch, heads, seqlen_q),
        "pattern_id": table(Int32, cute.sym_int(), cute.sym_int()),
        "row_ptr": table(Int64, cute.sym_int()),
        "col": table(Int32, cute.sym_int()),
        "tile_id": table(Int32, cute.sym_int(), config.parts),
        "tiles": table(Int32, cute.sym_int(), cute.sym_int(), MASK_WORDS, align=16),
        "order": table(Int32, cute.sym_int()),
        "rows": Int32(0),
        "scale_log2": Float32(0.0),
        "ctas": Int32(0),
        "stream": make_fake_stream(use_tvm_ffi_env_stream=True),
    }
