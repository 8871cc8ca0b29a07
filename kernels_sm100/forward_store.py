"""How O leaves a CTA: the warp that stores what the correction warps left in shared memory.

NOTE [Outer stores]: a Q tile goes out as one box of a tensor map, or row by row: by a bulk copy a
row, each lane four of them, which can stop where a sequence ends within a tile; or by the
correction warps themselves from registers, which spares the shared memory (`output.store_rows`).
"""

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernels_sm100.barriers import arrive_warp
from kernels_sm100.bulk import store_bulk
from kernels_sm100.config import TILE_Q, ForwardConfig
from kernels_sm100.walk import Walk, work_item

LANES = 32


@cute.jit
def store_boxes(
    config: cutlass.Constexpr[ForwardConfig],
    atom_o: cute.CopyAtom,
    o: cute.Tensor,
    s_o: cute.Tensor,
    walk: Walk,
    full: cute.Pointer,
    empty: cute.Pointer,
) -> None:
    """Store O of each Q tile by TMA, from one lane; rows past the end are outside the map."""
    phase = Int32(0)
    index = cute.arch.block_idx()[0]
    while index < walk.items:
        item = work_item(walk, index)
        out = cute.local_tile(
            o[None, None, item.head, item.batch], (TILE_Q, config.head_dim_v), (None, 0)
        )
        source, target = cpasync.tma_partition(
            atom_o,
            0,
            cute.make_layout(1),
            cute.group_modes(s_o, 0, 2),
            cute.group_modes(out, 0, 2),
        )
        for h in cutlass.range_constexpr(config.q_tiles):
            cute.arch.mbarrier_wait(full + h, phase)
            with cute.arch.elect_one():
                cute.copy(atom_o, source[None, h], target[None, item.tile * config.q_tiles + h])
                cute.arch.cp_async_bulk_commit_group()
        for h in cutlass.range_constexpr(config.q_tiles):
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_wait_group(config.q_tiles - 1 - h, read=True)
                cute.arch.mbarrier_arrive(empty + h)
        phase ^= 1
        index += cute.arch.grid_dim()[0]


@cute.jit
def store_row_copies(
    config: cutlass.Constexpr[ForwardConfig],
    o: cute.Tensor,
    s_o: cute.Tensor,
    walk: Walk,
    full: cute.Pointer,
    empty: cute.Pointer,
) -> None:
    """Store O of each Q tile row by row, four rows a lane, those past the end left out."""
    lane = cute.arch.lane_idx()
    phase = Int32(0)
    index = cute.arch.block_idx()[0]
    while index < walk.items:
        item = work_item(walk, index)
        for h in cutlass.range_constexpr(config.q_tiles):
            cute.arch.mbarrier_wait(full + h, phase)
            for i in cutlass.range(TILE_Q // LANES, unroll=1):
                in_tile = i * LANES + lane
                row = (item.tile * config.q_tiles + h) * TILE_Q + in_tile
                if row < cute.size(o.shape[0]):
                    store_bulk(
                        s_o[in_tile, None, h].iterator,
                        o[row, None, item.head, item.batch].iterator,
                        config.head_dim_v * 2,
                    )
            cute.arch.cp_async_bulk_commit_group()
        for h in cutlass.range_constexpr(config.q_tiles):
            cute.arch.cp_async_bulk_wait_group(config.q_tiles - 1 - h, read=True)
            arrive_warp(empty + h)
        phase ^= 1
        index += cute.arch.grid_dim()[0]
