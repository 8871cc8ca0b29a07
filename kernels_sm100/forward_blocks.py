"""The forward over listed blocks of 128 keys, which TMA loads whole."""

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from kernels_sm100.barriers import next_slot
from kernels_sm100.config import TILE_K
from kernels_sm100.forward import Barriers, Forward, Tiles
from kernels_sm100.walk import Walk, work_item


class Blocks(NamedTuple):
    """Listed blocks of K and V: tensor maps, and the coordinates that go with them."""

    atom_k: cute.CopyAtom
    k: cute.Tensor
    atom_v: cute.CopyAtom
    v: cute.Tensor


class BlockForward(Forward):
    """The kernel of one configuration; `cute.compile` takes an instance."""

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
            pattern_id: int32 [B or 1, heads]: 1, HK or (not packed) HQ heads.
            row_ptr: int64 [patterns * rows + 1].
            col: int32 [entries].
            tile_id: int32 [entries, parts].
            tiles: int32 [T, part rows, 4].
            order: int32 [pattern_id's batches * heads * rows].
            rows: list rows of a pattern.
            scale_log2: softmax scale times log2(e), positive.
            ctas: CTAs to launch at most.
            stream: CUDA stream.
        """
        tables = (pattern_id, row_ptr, col, tile_id, tiles, order)
        self.start(q, k, v, o, lse, tables, rows, scale_log2, ctas, stream)

    def stream_of(
        self, k: cute.Tensor, v: cute.Tensor, layouts: Any, products: Any, walk: Walk
    ) -> Blocks:
        """Tensor maps of K and V."""
        del walk
        k = cute.make_tensor(k.iterator, cute.select(k.layout, mode=[1, 3, 2, 0]))
        v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[3, 1, 2, 0]))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        made = []
        for tensor, layout, mma, tile in zip(
            (k, v), layouts, products, (self.qk_tile, self.pv_tile), strict=True
        ):
            cluster = cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma.thr_id.shape,)).shape
            stage = cute.select(layout, mode=[0, 1, 2])
            made += cute.nvgpu.make_tiled_tma_atom_B(load, tensor, stage, tile, mma, cluster)
        return Blocks(*made)

    def atoms_of(self, kv: Any) -> tuple[cute.CopyAtom, ...]:
        """The tensor maps of K and V."""
        return kv.atom_k, kv.atom_v

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
        """Load Q of a work item once, then the blocks of each entry, K and V."""
        thr_qk, thr_pv = products
        bytes_k = TILE_K * self.head_dim * 2
        bytes_v = TILE_K * self.head_dim_v * 2
        slot, phase, q_phase = Int32(0), Int32(1), Int32(1)
        index = cute.arch.block_idx()[0]
        while index < walk.items:
            item = work_item(walk, index)
            kv_head = item.head // self.per_kv_head
            k_of = cute.local_tile(
                kv.k[None, None, kv_head, item.batch], (TILE_K, self.head_dim), (None, 0)
            )
            v_of = cute.local_tile(
                kv.v[None, None, kv_head, item.batch], (self.head_dim_v, TILE_K), (0, None)
            )
            s_k_of, g_k = self.tma_parts(kv.atom_k, shared.k, thr_qk.partition_B(k_of))
            s_v_of, g_v = self.tma_parts(kv.atom_v, shared.v, thr_pv.partition_B(v_of))
            if item.count > 0:
                self.load_q(atom_q, q, shared.q, thr_qk, item, q_phase, barriers)
                q_phase ^= 1
                for e in cutlass.range(item.count, unroll=1):
                    block = walk.col[item.begin + e]
                    cute.arch.mbarrier_wait(barriers.kv_empty + slot, phase)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(barriers.kv_full + slot, bytes_k)
                    cute.copy(
                        kv.atom_k,
                        g_k[None, block],
                        s_k_of[None, slot],
                        tma_bar_ptr=barriers.kv_full + slot,
                    )
                    slot, phase = next_slot(slot, phase, self.stages)
                    cute.arch.mbarrier_wait(barriers.kv_empty + slot, phase)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(barriers.kv_full + slot, bytes_v)
                    cute.copy(
                        kv.atom_v,
                        g_v[None, block],
                        s_v_of[None, slot],
                        tma_bar_ptr=barriers.kv_full + slot,
                    )
                    slot, phase = next_slot(slot, phase, self.stages)
            index += cute.arch.grid_dim()[0]
        self.drain(slot, phase, q_phase, barriers)
