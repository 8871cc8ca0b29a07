"""What both backward kernels share: products, shared memory, a block pair's P and dS, sums.

NOTE [Transposed tiles]: both kernels compute S^T = K Q^T and dP^T = V dO^T, 128 keys by 128
queries. A thread owns a key, whose lane of tensor memory and row of a bit tile are its own, and
half of the queries; bias and delta of a query it reads from shared memory, the same for all lanes.
P^T goes over S^T in tensor memory, where dV takes it from; dS^T goes to shared memory, where dQ
reads it as [queries, keys] and dK as [keys, queries]: the same bytes under two layouts.

NOTE [Halves]: two groups of four warps share the lanes of a tile, one the first 64 queries, one the
others. A group's P lies over the first half of the columns that the group itself has read, so
neither waits for the other, and dV takes P from two places.

NOTE [Lines of dS]: half a row of dS^T, 64 values of two bytes, is a line of 128 bytes in shared
memory: eight pieces of 16 bytes, which the MMAs' layout swaps by the number of the line, modulo
eight. Lines start at multiples of 128 bytes, so that piece `i` is at the address of the line's
first, exclusive-or 16 i: an instruction a piece, of one register.

NOTE [Pipe order]: MMAs of a CTA run in the order of issue, and a commit tracks all before it. So
that dP of a step is complete says that dQ and dK of the step before are, and their dS may be
overwritten; and S of the next step may be issued behind the dV that reads P.
"""

from typing import Any, NamedTuple

import cutlass
import cutlass.utils.blackwell_helpers as sm100
from cutlass import BFloat16, Float16, Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.barriers import arrive_warp_tmem, wait_tmem
from kernels_sm100.bulk import add_bulk, add_release, load_bulk, wait_for_turn
from kernels_sm100.mask import apply_repeated

WARP = 32
WARPS = 16
THREADS = WARP * WARPS
COMPUTE_WARP, MMA_WARP, LOAD_WARP = 4, 12, 13
GROUP_WARPS = 4  # warps that share a tile's 128 lanes
COMPUTE_WARPS = 8
SUM_REGISTERS, COMPUTE_REGISTERS, OTHER_REGISTERS = 152, 136, 88
HALF = TILE // 2
CHUNK = 32  # columns of a sum in shared memory at a time
CHUNK_BUFFERS = 2
CHUNK_BYTES = TILE * CHUNK * 4
VECTOR = 4  # float32 of a 16-byte load
SUM_BARRIER = 1  # named barrier of the warps that add
ROW_BYTES = TILE * 4  # of bias or delta of a tile
LINE_BYTES, PIECES, PIECE, PIECE_BYTES = 128, 8, 8, 16  # see NOTE [Lines of dS]
ALIGN = 1024
S_COLUMN, DV_COLUMN, DP_COLUMN, LAST_COLUMN = 0, 128, 256, 384
DTYPE = {"bfloat16": BFloat16, "float16": Float16}


class Products(NamedTuple):
    """Tiled MMAs: `pair` is both S^T and dP^T."""

    pair: cute.TiledMma
    dv: cute.TiledMma
    dk: cute.TiledMma
    dq: cute.TiledMma


class Layouts(NamedTuple):
    """Layouts in shared memory, by operand; the transposed are views of the same bytes."""

    keys: cute.ComposedLayout
    keys_t: cute.ComposedLayout
    queries: cute.ComposedLayout
    queries_t: cute.ComposedLayout
    ds: cute.ComposedLayout
    ds_t: cute.ComposedLayout
    p: cute.ComposedLayout


class Shared(NamedTuple):
    """Tensors in shared memory; a name with _t is the same bytes, transposed."""

    k: cute.Tensor
    k_t: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    q_t: cute.Tensor
    do: cute.Tensor
    do_t: cute.Tensor
    ds: cute.Tensor
    ds_t: cute.Tensor
    bias: cute.Tensor
    delta: cute.Tensor
    chunks: cute.Tensor


class Operands(NamedTuple):
    """Operands and accumulators of the products; a name with _t is the same bytes, transposed.

    Operands in shared memory have one more mode, of their buffers: see `buffer`.
    """

    k: cute.Tensor
    k_t: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    q_t: cute.Tensor
    do: cute.Tensor
    do_t: cute.Tensor
    ds: cute.Tensor
    ds_t: cute.Tensor
    p: list[Any]
    s: cute.Tensor
    dp: cute.Tensor
    dv: cute.Tensor
    dk: cute.Tensor
    dq: cute.Tensor


class Half(NamedTuple):
    """A thread's copies of S, dP and P, those tensors, and its first vector of bias and delta."""

    load: Any
    save: Any
    s: cute.Tensor
    dp: cute.Tensor
    p: cute.Tensor
    vector: Int32


class Maps(NamedTuple):
    """TMA atoms and coordinates."""

    k_atom: cute.CopyAtom
    v_atom: cute.CopyAtom
    q_atom: cute.CopyAtom
    do_atom: cute.CopyAtom
    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor


def buffer(fragment: cute.Tensor, number: Any) -> cute.Tensor:
    """The descriptors of one buffer of an operand."""
    return fragment[None, None, None, number]


class Backward:
    """Shared parts of a kernel of one configuration."""

    def __init__(self, config: BackwardConfig) -> None:
        self.config = config
        self.dtype = DTYPE[config.dtype]
        self.head_dim = config.head_dim
        self.stages = config.stages
        self.pack = config.rows_per_token
        self.pair_tile = (TILE, TILE, config.head_dim)
        self.gradient_tile = (TILE, config.head_dim, TILE)
        # See NOTE [Tensor memory] of either kernel.
        self.sum_column = DP_COLUMN if self.shares_dp else DV_COLUMN + HALF
        self.tile_bytes = TILE * config.head_dim * 2

    @property
    def shares_dp(self) -> bool:
        """Whether what is added to global memory lies over dP."""
        return self.head_dim > HALF

    def products(self) -> Products:
        """The MMAs."""

        def make(a_major: Any, b_major: Any, tile: Any, *source: Any) -> cute.TiledMma:
            return sm100.make_trivial_tiled_mma(
                self.dtype,
                self.dtype,
                a_major,
                b_major,
                Float32,
                tcgen05.CtaGroup.ONE,
                tile[:2],
                *source,
            )

        inner, outer = OperandMajorMode.K, OperandMajorMode.MN
        return Products(
            pair=make(inner, inner, self.pair_tile),
            dv=make(inner, outer, self.gradient_tile, tcgen05.OperandSource.TMEM),
            dk=make(inner, outer, self.gradient_tile),
            dq=make(outer, outer, self.gradient_tile),
        )

    def layouts(self, mma: Products, key_stages: int, query_stages: int) -> Layouts:
        """Of tiles with this many buffers."""
        a, b = sm100.make_smem_layout_a, sm100.make_smem_layout_b
        return Layouts(
            keys=a(mma.pair, self.pair_tile, self.dtype, key_stages),
            keys_t=b(mma.dq, self.gradient_tile, self.dtype, key_stages),
            queries=b(mma.pair, self.pair_tile, self.dtype, query_stages),
            queries_t=b(mma.dk, self.gradient_tile, self.dtype, query_stages),
            ds=a(mma.dq, self.gradient_tile, self.dtype, 1),
            ds_t=a(mma.dk, self.gradient_tile, self.dtype, 1),
            p=a(mma.dv, self.gradient_tile, self.dtype, 1),
        )

    def rows_first(self, tensor: cute.Tensor) -> cute.Tensor:
        """[B, S, H, D] as (S, D, H, B): a view."""
        return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[1, 3, 2, 0]))

    def packed(self, tensor: cute.Tensor) -> cute.Tensor:
        """[B, S, H, D] as ((G, S), D, H / G, B) with PackGQA, else as `rows_first`: a view."""
        if const_expr(self.pack == 1):
            return self.rows_first(tensor)
        b, s, h, d = tensor.shape
        sb, ss, sh, sd = tensor.stride
        shape = ((self.pack, s), d, h // self.pack, b)
        layout = cute.make_layout(shape, stride=((sh, ss), sd, sh * self.pack, sb))
        return cute.make_tensor(tensor.iterator, layout)

    def keys_map(self, tensor: cute.Tensor, layout: Any, mma: Products) -> tuple[Any, Any]:
        """TMA of tiles that are the A operand of `pair`: K, V."""
        make = cute.nvgpu.make_tiled_tma_atom_A
        return self.tensor_map(make, self.rows_first(tensor), layout, mma)

    def queries_map(self, tensor: cute.Tensor, layout: Any, mma: Products) -> tuple[Any, Any]:
        """TMA of tiles that are its B operand: Q, dO."""
        make = cute.nvgpu.make_tiled_tma_atom_B
        return self.tensor_map(make, self.packed(tensor), layout, mma)

    def tensor_map(self, make: Any, tensor: Any, layout: Any, mma: Products) -> tuple[Any, Any]:
        """(copy atom, tensor of coordinates)."""
        cluster = cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma.pair.thr_id.shape,)).shape
        return make(
            cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE),
            tensor,
            cute.select(layout, mode=[0, 1, 2]),
            self.pair_tile,
            mma.pair,
            cluster,
        )

    def tiles_of(self, tensor: cute.Tensor, head: Any, batch: Any) -> cute.Tensor:
        """Tiles of 128 rows of a head."""
        rows = tensor[None, None, head, batch]
        return cute.local_tile(rows, (TILE, self.head_dim), (None, 0))

    def tma_parts(self, atom: Any, shared: Any, source: Any) -> tuple[cute.Tensor, cute.Tensor]:
        """(shared memory by stage, global memory by tile) as a TMA copy takes them."""
        return cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 3),
            cute.group_modes(source, 0, 3),
        )

    @cute.jit
    def expect(
        self, full: cute.Pointer, tiles: cutlass.Constexpr[int], rows: cutlass.Constexpr[int] = 0
    ) -> None:
        """Have `full` count the bytes of so many tiles, and of rows of bias or delta."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(
                full, tiles * self.tile_bytes + rows * ROW_BYTES
            )

    @cute.jit
    def load_tile(
        self,
        atom: cute.CopyAtom,
        source: cute.Tensor,
        target: cute.Tensor,
        full: cute.Pointer,
        rows: cutlass.Constexpr[int] = 0,
    ) -> None:
        """Load a tile by TMA; `full` counts its bytes, and those of `rows` that are to come."""
        self.expect(full, 1, rows)
        cute.copy(atom, source, target, tma_bar_ptr=full)

    @cute.jit
    def load_rows(
        self,
        bias: cute.Tensor,
        delta: cute.Tensor,
        shared: Shared,
        place: tuple[Int32, Int32, Int32],
        slot: Any,
        full: cute.Pointer,
    ) -> None:
        """Load bias and delta of a (batch, head, Q tile); `full` counts them."""
        batch, head, tile = place
        with cute.arch.elect_one():
            for source, target in ((bias, shared.bias), (delta, shared.delta)):
                row = source[batch, head, None].iterator + tile * TILE
                load_bulk(row, target[None, slot].iterator, full, ROW_BYTES)

    def view(self, tensor: cute.Tensor, layout: cute.ComposedLayout) -> cute.Tensor:
        """The same bytes under another layout."""
        return cute.make_tensor(cute.recast_ptr(tensor.iterator, layout.inner), layout.outer)

    def shared(
        self, storage: Any, k: Layouts, v: Layouts, q: Layouts, do: Layouts, rows: int
    ) -> Shared:
        """Tensors of a kernel's shared memory, each tile by its layouts; `rows` of bias, delta."""
        s_k = storage.k.get_tensor(k.keys.outer, swizzle=k.keys.inner)
        s_q = storage.q.get_tensor(q.queries.outer, swizzle=q.queries.inner)
        s_do = storage.do.get_tensor(do.queries.outer, swizzle=do.queries.inner)
        s_ds = storage.ds.get_tensor(k.ds.outer, swizzle=k.ds.inner)
        by_stage = cute.make_layout((TILE, rows))
        return Shared(
            k=s_k,
            k_t=self.view(s_k, k.keys_t),
            v=storage.v.get_tensor(v.keys.outer, swizzle=v.keys.inner),
            q=s_q,
            q_t=self.view(s_q, q.queries_t),
            do=s_do,
            do_t=self.view(s_do, do.queries_t),
            ds=s_ds,
            ds_t=self.view(s_ds, k.ds_t),
            bias=storage.bias.get_tensor(by_stage),
            delta=storage.delta.get_tensor(by_stage),
            chunks=storage.chunks.get_tensor(cute.make_layout((TILE * CHUNK, CHUNK_BUFFERS))),
        )

    def accumulator(self, mma: cute.TiledMma, tile: Any, tmem: Any, column: int) -> cute.Tensor:
        """An accumulator in tensor memory as an MMA takes it."""
        part = mma.get_slice(0)
        layout = part.make_fragment_C(part.partition_shape_C(tile[:2])).layout
        return cute.make_tensor(tmem + column, layout)

    def p_fragments(self, mma: cute.TiledMma, layout: Any, tmem: Any, like: Any) -> list[Any]:
        """P as the A operand of dV: the fragments its first and its second half are taken from."""
        shared = cute.make_tensor(like.iterator, layout.outer)
        fragment = mma.get_slice(0).make_fragment_A(shared)[None, None, None, 0]
        words = Float32.width // self.dtype.width
        base = cute.recast_ptr(tmem, dtype=self.dtype) + S_COLUMN * words
        # Packed in pairs, 64 queries take 32 columns; the second half starts at column 64.
        return [
            cute.make_tensor(base, fragment.layout),
            cute.make_tensor(base + CHUNK * words, fragment.layout),
        ]

    def operands(
        self,
        mma: Products,
        layouts: Layouts,
        shared: Shared,
        tmem: cute.Pointer,
        columns: tuple[int, int],
    ) -> Operands:
        """Descriptors of shared memory and ranges of tensor memory; `columns` of dK and dQ."""
        pair, dv = mma.pair.get_slice(0), mma.dv.get_slice(0)
        dk, dq = mma.dk.get_slice(0), mma.dq.get_slice(0)
        acc_s = self.accumulator(mma.pair, self.pair_tile, tmem, S_COLUMN)
        return Operands(
            k=pair.make_fragment_A(shared.k),
            k_t=dq.make_fragment_B(shared.k_t),
            v=pair.make_fragment_A(shared.v),
            q=pair.make_fragment_B(shared.q),
            q_t=dk.make_fragment_B(shared.q_t),
            do=pair.make_fragment_B(shared.do),
            do_t=dv.make_fragment_B(shared.do_t),
            ds=dq.make_fragment_A(shared.ds),
            ds_t=dk.make_fragment_A(shared.ds_t),
            p=self.p_fragments(mma.dv, layouts.p, tmem, acc_s),
            s=acc_s,
            dp=self.accumulator(mma.pair, self.pair_tile, tmem, DP_COLUMN),
            dv=self.accumulator(mma.dv, self.gradient_tile, tmem, DV_COLUMN),
            dk=self.accumulator(mma.dk, self.gradient_tile, tmem, columns[0]),
            dq=self.accumulator(mma.dq, self.gradient_tile, tmem, columns[1]),
        )

    def half_of(self, tmem: Any, lanes: cute.Layout, half: Any) -> Half:
        """What a thread reads and writes of S, P and dP, a key and 64 queries.

        Args:
            tmem: tensor memory.
            lanes: layout of a tile in it.
            half: which queries.
        """
        # Its address is its warp's: of the warp's first thread, so that registers are uniform.
        thread = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % GROUP_WARPS * WARP
        half_lanes = cute.composition(lanes, cute.make_layout((TILE, HALF)))
        packed_lanes = cute.composition(lanes, cute.make_layout((TILE, HALF // 2)))
        s = cute.make_tensor(tmem + S_COLUMN + HALF * half, half_lanes)
        dp = cute.make_tensor(tmem + DP_COLUMN + HALF * half, half_lanes)
        p = cute.make_tensor(tmem + S_COLUMN + HALF * half, packed_lanes)
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        save = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        return Half(
            tcgen05.make_tmem_copy(load, s).get_slice(thread),
            tcgen05.make_tmem_copy(save, p).get_slice(thread),
            s,
            dp,
            p,
            half * (HALF // VECTOR),
        )

    @cute.jit
    def probabilities(
        self,
        part: Half,
        masked: Any,
        words: cute.Tensor,
        bias: cute.Tensor,
        scale_log2: Float32,
        phase: Int32,
        s_full: cute.Pointer,
        p_full: cute.Pointer,
    ) -> cute.Tensor:
        """P^T, to tensor memory and in float32.

        Args:
            part: of `half_of`.
            masked: whether `words` has clear bits.
            words: keep-bits of these queries, a bit a token.
            bias: of the tile's queries, in shared memory; see NOTE [Rows without a key].
            scale_log2: softmax scale times log2(e).
            phase: of the barriers.
            s_full: MMA says S is there.
            p_full: told that P is.
        """
        shape = part.load.partition_D(cute.make_identity_tensor((TILE, HALF))).shape
        packed_shape = part.save.partition_S(cute.make_identity_tensor((TILE, HALF // 2))).shape
        wait_tmem(s_full, phase)
        scores = cute.make_rmem_tensor(shape, Float32)
        cute.copy(part.load, part.load.partition_S(part.s), scores)
        cute.arch.fence_view_async_tmem_load()
        if masked:
            apply_repeated(scores, words, self.config.rows_per_bit)
        biases = cute.logical_divide(bias, cute.make_layout(VECTOR))
        for i in cutlass.range_constexpr(HALF // VECTOR):
            four = cute.make_rmem_tensor(VECTOR, Float32)
            cute.autovec_copy(biases[None, part.vector + i], four)
            for j in cutlass.range_constexpr(0, VECTOR, 2):
                at = VECTOR * i + j
                scores[at], scores[at + 1] = cute.arch.fma_packed_f32x2(
                    (scores[at], scores[at + 1]), (scale_log2, scale_log2), (four[j], four[j + 1])
                )
                scores[at] = cute.math.exp2(scores[at], fastmath=True)
                scores[at + 1] = cute.math.exp2(scores[at + 1], fastmath=True)
        packed = cute.make_rmem_tensor(packed_shape, Float32)
        self.narrow(scores, packed)
        cute.copy(part.save, packed, part.save.partition_D(part.p))
        cute.arch.fence_view_async_tmem_store()
        arrive_warp_tmem(p_full)
        return scores

    @cute.jit
    def gradients(
        self,
        part: Half,
        p: cute.Tensor,
        delta: cute.Tensor,
        ds: Int32,
        phase: Int32,
        dp_full: cute.Pointer,
        ds_full: cute.Pointer,
    ) -> None:
        """DS^T, to shared memory.

        Args:
            part: of `half_of`.
            p: of `probabilities`.
            delta: of the tile's queries, in shared memory.
            ds: of `ds_line`.
            phase: of the barriers.
            dp_full: MMA says dP is there.
            ds_full: told that dS is.
        """
        shape = part.load.partition_D(cute.make_identity_tensor((TILE, HALF))).shape
        deltas = cute.logical_divide(delta, cute.make_layout(VECTOR))
        wait_tmem(dp_full, phase)
        source = part.load.partition_S(part.dp)
        for c in cutlass.range_constexpr(HALF // CHUNK):  # few registers hold dP at a time
            gradient = cute.make_rmem_tensor(shape, Float32)[None, None, c]
            cute.copy(part.load, source[None, None, c], gradient)
            cute.arch.fence_view_async_tmem_load()
            values = cute.make_tensor(gradient.iterator, cute.make_layout(CHUNK))
            for i in cutlass.range_constexpr(CHUNK // VECTOR):
                four = cute.make_rmem_tensor(VECTOR, Float32)
                cute.autovec_copy(deltas[None, part.vector + c * (CHUNK // VECTOR) + i], four)
                for j in cutlass.range_constexpr(0, VECTOR, 2):
                    at, p_at = VECTOR * i + j, c * CHUNK + VECTOR * i + j
                    pair = cute.arch.sub_packed_f32x2(
                        (values[at], values[at + 1]), (four[j], four[j + 1])
                    )
                    values[at], values[at + 1] = cute.arch.mul_packed_f32x2(
                        (p[p_at], p[p_at + 1]), pair
                    )
            narrow = cute.make_rmem_tensor(CHUNK, self.dtype)
            narrow.store(values.load().to(self.dtype))
            for i in cutlass.range_constexpr(CHUNK // PIECE):
                piece = cute.make_tensor(narrow.iterator + PIECE * i, cute.make_layout(PIECE))
                cute.autovec_copy(piece, self.ds_piece(ds, c * (CHUNK // PIECE) + i))
        cute.arch.fence_view_async_shared()
        arrive_warp_tmem(ds_full)

    @cute.jit
    def narrow(self, values: cute.Tensor, packed: cute.Tensor) -> None:
        """Float32 values into pairs of the dtype."""
        halves = cute.make_tensor(
            cute.recast_ptr(packed.iterator, dtype=self.dtype), cute.make_layout(HALF)
        )
        flat = cute.make_tensor(values.iterator, cute.make_layout(HALF))
        halves.store(flat.load().to(self.dtype))

    def ds_line(self, ds: cute.Pointer, thread: Int32, half: Int32) -> Int32:
        """Where a thread writes its 64 values of dS^T: see NOTE [Lines of dS]."""
        line = thread * LINE_BYTES + half * (TILE * LINE_BYTES)
        return ds.toint() + line + thread % PIECES * PIECE_BYTES

    def ds_piece(self, line: Int32, piece: int) -> cute.Tensor:
        """Sixteen bytes of a line, [8]; see NOTE [Lines of dS]."""
        at = line ^ (piece * PIECE_BYTES)
        memory = cute.AddressSpace.smem
        pointer = cute.make_ptr(self.dtype, at, memory, assumed_align=PIECE_BYTES)
        return cute.make_tensor(pointer, cute.make_layout(PIECE))

    @cute.jit
    def add_tile(
        self,
        acc: cute.Tensor,
        chunks: cute.Tensor,
        target: cute.Tensor,
        thread: Int32,
        empty: cute.Pointer,
        semaphore: Any,
        turn: Any,
    ) -> None:
        """Add an accumulator to global memory, by the 128 threads of four warps.

        Args:
            acc: [128, D] in tensor memory, released at `empty` once it is in registers.
            chunks: [128 * 32, 2] in shared memory.
            target: [D / 4, 128, 4] in global memory.
            thread: the row.
            empty: barrier to tell that `acc` has been read.
            semaphore: whose turn it is to add to `target`; None if any order will do.
            turn: this CTA's.
        """
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        load = tcgen05.make_tmem_copy(load, acc).get_slice(thread)
        shape = load.partition_D(cute.make_identity_tensor((TILE, self.head_dim))).shape
        values = cute.make_rmem_tensor(shape, Float32)
        cute.copy(load, load.partition_S(acc), values)
        cute.arch.fence_view_async_tmem_load()
        arrive_warp_tmem(empty)
        fours = cute.make_tensor(values.iterator, cute.make_layout((4, self.head_dim // 4)))
        for c in cutlass.range_constexpr(self.head_dim // CHUNK):
            buffer = chunks[None, c % CHUNK_BUFFERS]
            # A turn ends with both buffers free.
            in_use = semaphore is None or c >= CHUNK_BUFFERS
            if const_expr(in_use):
                if thread == 0:  # the chunk before the last has left the buffer
                    cute.arch.cp_async_bulk_wait_group(CHUNK_BUFFERS - 1, read=True)
            if const_expr(in_use or c == 0):
                cute.arch.barrier(barrier_id=SUM_BARRIER, number_of_threads=TILE)
            lines = cute.make_tensor(
                buffer.iterator, cute.make_layout((4, TILE, CHUNK // 4), stride=(1, 4, 4 * TILE))
            )
            for j in cutlass.range_constexpr(CHUNK // 4):
                cute.autovec_copy(fours[None, c * (CHUNK // 4) + j], lines[None, thread, j])
            cute.arch.fence_view_async_shared()
            cute.arch.barrier(barrier_id=SUM_BARRIER, number_of_threads=TILE)
            if thread == 0:
                if const_expr(semaphore is not None and c == 0):
                    wait_for_turn(semaphore, turn)
                    cute.arch.fence_proxy("async.global")
                add_bulk(
                    buffer.iterator, target[c * (CHUNK // 4), None, None].iterator, CHUNK_BYTES
                )
                cute.arch.cp_async_bulk_commit_group()
        if const_expr(semaphore is not None):
            if thread == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=False)
                add_release(semaphore)

    @cute.jit
    def store_rows(
        self,
        acc: cute.Tensor,
        target: cute.Tensor,
        thread: Int32,
        inside: Any,
        visited: Any,
        factor: Float32,
        width: cutlass.Constexpr[int],
    ) -> None:
        """Write factor * acc to global memory row by row, or zeros.

        Args:
            acc: [128, width] in tensor memory.
            target: [width], the thread's row.
            thread: the row.
            inside: whether the row exists.
            visited: whether `acc` holds anything; if not, it is not read.
            factor: to scale by.
            width: a multiple of 32.
        """
        by_chunk = cute.logical_divide(acc, cute.make_layout((TILE, CHUNK)))
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32)
        load = tcgen05.make_tmem_copy(load, by_chunk[(None, None), 0]).get_slice(thread)
        coordinates = load.partition_D(cute.make_identity_tensor((TILE, CHUNK)))
        source = load.partition_S(by_chunk[(None, None), None])
        out = cute.logical_divide(target, cute.make_layout(CHUNK))
        for c in cutlass.range_constexpr(width // CHUNK):
            values = cute.make_rmem_tensor(coordinates[None, 0, 0].shape, Float32)
            values.fill(0.0)
            if visited:
                cute.copy(load, source[None, 0, 0, c], values)
                cute.arch.fence_view_async_tmem_load()
            if inside:
                narrow = cute.make_rmem_tensor(CHUNK, self.dtype)
                flat = cute.make_tensor(values.iterator, cute.make_layout(CHUNK))
                narrow.store((flat.load() * factor).to(self.dtype))
                cute.autovec_copy(narrow, out[None, c])
