"""Chunks of 128 rows that lie apart in global memory, brought to shared memory by token.

NOTE [Gathered tile]: what arrives is, byte for byte, what TMA writes for 128 rows that lie
together: a span of 128 bytes of every row, rows 128 bytes apart, 16-byte pieces exchanged by the
swizzle; then the next span, `SPAN_BYTES` further on. So MMA reads it by the same descriptors, K and
V alike.

NOTE [Two loads]: cp.async takes 16 bytes a lane from any address, by 8 lanes a row, or nothing
where the token is -1, which leaves zeros. It belongs to the generic proxy, so whoever issues MMAs
on the tile fences first (`arrive_copied`). A TMA gather takes four rows of a matrix by their
numbers, one span of each, and is issued by one lane; numbers that are no row come as zeros. It
needs one stride for all rows (`forward_host.even_rows`). Which is faster no GPU has said yet. Both
bring the same bytes; the gathers take half as many PTX instructions more, and twice the machine
code and more, as their operands have to come to uniform registers first. So cp.async is what is
derived, and the other is there to be asked for, and measured.

NOTE [Tokens ahead]: the loads of a chunk start with its tokens, which are known only once memory
has said which chunk comes next, and then which tokens it has. So they are double-buffered: while
the current chunk's are in shared memory, where any lane finds them, each lane has a part of the
next chunk's on the way to its registers. A second buffer in shared memory would not fit beside
three stages of D 128; nor is it wanted, as the warp that fills a buffer is the one that reads it.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, Uint32, Uint64, const_expr, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute_nvgpu, llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import dsl_user_op

from kernels_sm100.config import TILE_K

LANES = 32
ROW_BYTES = 128  # of a row in one span
SPAN = 64  # elements of them
SPAN_BYTES = TILE_K * ROW_BYTES  # all rows
PIECE = 8  # elements of 16 bytes
PIECES = SPAN // PIECE  # of a row in one span: as many lanes copy it
NONE = -1  # no token


class RowMap(NamedTuple):
    """A tensor [B, S, H, D] as one matrix, for TMA gathers.

    Attributes:
        atom: holds the tensor map.
        batch_rows: rows from a batch to the next.
        head_rows: rows from a head to the next, if heads lie apart like batches; else 0.
        head_columns: columns from a head to the next, if they lie within a token; else 0.
    """

    atom: cute.CopyAtom
    batch_rows: Int32
    head_rows: Int32
    head_columns: Int32


class Place(NamedTuple):
    """Where a (batch, head) of a `RowMap` begins.

    Attributes:
        map: generic address of the tensor map.
        row: of token 0.
        column: of element 0.
    """

    map: Int64
    row: Int32
    column: Int32


@cute.jit
def row_map(tensor: cute.Tensor, tokens: cute.Tensor) -> RowMap:
    """The matrix of a tensor with `even_rows`, on the host.

    Args:
        tensor: [B, S, H, D], the last axis contiguous.
        tokens: int32 [chunks, 128], whose chunks will be gathered.
    """
    batches, seqlen, heads, width = tensor.shape
    batch_stride, stride, head_stride, _ = tensor.stride
    within = Int64(head_stride) < Int64(stride)
    head_rows = Int32(0) if within else Int32(Int64(head_stride) // Int64(stride))
    head_columns = Int32(head_stride) if within else Int32(0)
    batch_rows = Int32(Int64(batch_stride) // Int64(stride))
    rows = batch_rows * (batches - 1) + head_rows * (heads - 1) + seqlen
    columns = head_columns * (heads - 1) + width
    matrix = cute.make_tensor(
        tensor.iterator, cute.make_layout((rows, columns), stride=(stride, 1))
    )
    swizzled = cute.make_composed_layout(
        cute.make_swizzle(3, 4, 3), 0, cute.make_layout((TILE_K, SPAN), stride=(SPAN, 1))
    )
    # The DSL wants to know the numbers of rows too; here each load has them in registers.
    numbers = cute.make_tensor(
        tokens.iterator, cute.make_layout((cute.size(tokens), SPAN), stride=(1, 0))
    )
    atom, _ = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensor2DGather4G2SOp(), matrix, swizzled, (TILE_K, SPAN),
        gmem_coord_tensor=numbers,
    )  # fmt: skip
    return RowMap(atom, batch_rows, head_rows, head_columns)


@dsl_user_op
def map_address(atom: cute.CopyAtom, *, loc: Any = None, ip: Any = None) -> Int64:
    """Generic address of the tensor map that an atom holds."""
    made = cute_nvgpu.atom_make_exec_tma(atom._trait.value, loc=loc, ip=ip)  # noqa: SLF001 - no other way
    kind = ir.Type.parse("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<128>>")
    pointer = cute_nvgpu.get_tma_desc_addr(kind, made, loc=loc, ip=ip)
    return Int64(pointer.toint(loc=loc, ip=ip))


def place(rows: RowMap, batch: Int32, head: Int32) -> Place:
    """Where a (batch, head) begins."""
    return Place(
        map_address(rows.atom),
        batch * rows.batch_rows + head * rows.head_rows,
        head * rows.head_columns,
    )


@cute.jit
def fetch(tokens: cute.Tensor, chunk: Int32, lane: Int32, ahead: cute.Tensor) -> None:
    """Start to read a lane's share of a chunk's tokens into registers.

    Args:
        tokens: int32 [chunks, 128].
        chunk: which.
        lane: of those that share the chunk, `ahead`'s length of tokens each.
        ahead: registers.
    """
    number = const_expr(cute.size(ahead))
    offset = Int64(chunk) * TILE_K + lane * number
    source = cute.make_tensor(
        tokens.iterator + cute.assume(offset, divby=number), cute.make_layout(number)
    )
    cute.autovec_copy(source, ahead)


@cute.jit
def stage(values: cute.Tensor, buffer: cute.Pointer, lane: Int32) -> None:
    """A warp's share of tokens, or of numbers of rows, to shared memory, for all its lanes.

    Args:
        values: registers of a lane.
        buffer: what the warp keeps for them, int32.
        lane: of the warp.
    """
    number = const_expr(cute.size(values))
    cute.arch.sync_warp()  # every lane has read what was there
    offset = cute.assume(lane * number, divby=number)
    cute.autovec_copy(values, cute.make_tensor(buffer + offset, cute.make_layout(number)))
    cute.arch.sync_warp()


@cute.jit
def numbers_of(tokens: cute.Tensor, first: Int32, numbers: cute.Tensor) -> None:
    """Rows of a matrix that tokens are, from that of token 0 on; NONE stays outside of it."""
    for i in cutlass.range_constexpr(cute.size(tokens)):
        numbers[i] = tokens[i] + first if tokens[i] >= 0 else Int32(NONE)


@cute.jit
def read_four(buffer: cute.Pointer, group: Int32) -> cute.Tensor:
    """Four staged numbers, in registers."""
    found = cute.make_rmem_tensor(4, Int32)
    offset = cute.assume(group * 4, divby=4)
    cute.autovec_copy(cute.make_tensor(buffer + offset, cute.make_layout(4)), found)
    return found


def _asm(text: str, constraints: str, operands: tuple[Any, ...], loc: Any, ip: Any) -> None:
    llvm.inline_asm(
        None,
        [x.ir_value(loc=loc, ip=ip) for x in operands],
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def _gather_four(
    target: Int32,
    tensor_map: Int64,
    columns: tuple[Int32, ...],
    rows: tuple[Int32, ...],
    barrier: Int32,
    *,
    loc: Any = None,
    ip: Any = None,
) -> None:
    """Four rows, a span for each of `columns`, by one lane."""
    gather = (
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[$0 + {}], [$1, {{${}, $2, $3, $4, $5}}], [$6];"
    )
    text = " ".join(gather.format(i * SPAN_BYTES, 7 + i) for i in range(len(columns)))
    operands = (target, tensor_map, *rows, barrier, *columns)
    _asm(text, "r,l,r,r,r,r,r" + ",r" * len(columns), operands, loc, ip)


@cute.jit
def gather_rows(
    where: Place,
    buffer: cute.Pointer,
    target: Int32,
    barrier: cute.Pointer,
    workers: cutlass.Constexpr[int],
    spans: cutlass.Constexpr[int],
) -> None:
    """Gather a warp's share of a chunk by TMA; `barrier` counts its bytes, zeros included.

    Args:
        where: the (batch, head).
        buffer: numbers of the warp's rows in shared memory, 128 / `workers`.
        target: where the first of them goes in the tile in shared memory.
        barrier: to arrive at, once a warp, with the bytes.
        workers: warps that share the chunk.
        spans: D / 64.
    """
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, spans * SPAN_BYTES // workers)
        columns = tuple(where.column + i * SPAN for i in range(spans))
        # Unrolled it takes as many instructions, and uniform registers that others then lack.
        for four in cutlass.range(TILE_K // workers // 4, unroll=1):
            rows = read_four(buffer, four)
            _gather_four(
                target + four * (4 * ROW_BYTES),
                where.map,
                columns,
                (rows[0], rows[1], rows[2], rows[3]),
                barrier.toint(),
            )


@dsl_user_op
def _copy_row(
    target: Int32,
    source: Int64,
    token: Int32,
    spans: int,
    *,
    loc: Any = None,
    ip: Any = None,
) -> None:
    """16 bytes of each span of a row, or zeros for NONE; then the source is not looked at."""
    copy = "cp.async.cg.shared.global [$0 + {}], [$1 + {}], 16, none;"
    copies = " ".join(copy.format(i * SPAN_BYTES, i * ROW_BYTES) for i in range(spans))
    text = f"{{ .reg .pred none; setp.lt.s32 none, $2, 0; {copies} }}"
    _asm(text, "r,l,r", (target, source, token), loc, ip)


@cute.jit
def copy_rows(
    source: cute.Tensor,
    buffer: cute.Pointer,
    target: Int32,
    workers: cutlass.Constexpr[int],
    spans: cutlass.Constexpr[int],
) -> None:
    """Copy a warp's share of a chunk by cp.async; see `arrive_copied`.

    8 lanes copy a span of a row; a lane's rows follow each other, so that it reads four of their
    tokens at a time, and its place in a row of 128 bytes goes round with a period of 8.

    Args:
        source: [S, D] of a (batch, head) in global memory.
        buffer: the warp's tokens in shared memory, 128 / `workers`.
        target: where the first of them goes in the tile in shared memory, a multiple of 1024.
        workers: warps that share the chunk.
        spans: D / 64.
    """
    lane = cute.arch.lane_idx()
    rows = const_expr(TILE_K // workers // (LANES // PIECES))  # of a lane
    first, piece = lane // PIECES * rows, lane % PIECES
    begin = Uint64(source.iterator.toint()) + Uint64(piece * (2 * PIECE))
    stride = Uint64(Uint32(source.stride[0]) * 2)
    base = target + first * ROW_BYTES
    for four in cutlass.range_constexpr(rows // 4):
        tokens = read_four(buffer, first // 4 + four)
        for i in cutlass.range_constexpr(4):
            row = four * 4 + i
            _copy_row(
                base + row * ROW_BYTES + ((piece ^ (row % 8)) * 16),
                Int64(begin + Uint64(Uint32(tokens[i])) * stride),
                tokens[i],
                spans,
            )


@cute.jit
def arrive_copied(barrier: cute.Pointer) -> None:
    """Arrive, lane by lane, once the lane's copies so far are done; who waits has to fence."""
    cute.arch.cp_async_mbarrier_arrive_noinc(barrier)
