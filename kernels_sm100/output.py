"""Rows of an accumulator in tensor memory, rescaled or written out; a thread owns a row."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import tcgen05

from kernels_sm100.config import TILE_Q

_STEP = 16  # columns in registers at a time
_VECTOR = 16  # bytes of a store to global memory


def _columns(tensor: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """(a step's columns, all of them by step) of a tensor of 128 rows."""
    parts = cute.logical_divide(tensor, cute.make_layout((TILE_Q, _STEP)))
    return parts[(None, None), 0], parts[(None, None), None]


def _registers(load: cute.TiledCopy) -> cute.Tensor:
    coordinates = load.partition_D(cute.make_identity_tensor((TILE_Q, _STEP)))
    return cute.make_rmem_tensor(coordinates[None, 0, 0].shape, Float32)


@cute.jit
def _multiply(values: cute.Tensor, factor: Float32) -> None:
    for j in cutlass.range_constexpr(0, _STEP, 2):
        values[j], values[j + 1] = cute.arch.mul_packed_f32x2(
            (values[j], values[j + 1]), (factor, factor)
        )


@cute.jit
def _normalised(
    load: cute.TiledCopy, source: cute.Tensor, factor: Float32, visited: Any
) -> cute.Tensor:
    """A step's columns times `factor`; zeros, and nothing read, if not `visited`."""
    values = _registers(load)
    values.fill(0.0)
    if visited:
        cute.copy(load, source, values)
        cute.arch.fence_view_async_tmem_load()
        _multiply(values, factor)
    return values


@cute.jit
def rescale(
    acc: cute.Tensor, thread: Int32, factor: Float32, lazy: cutlass.Constexpr[bool]
) -> None:
    """Acc *= factor, row by row; if `lazy`, only where some row of the warp needs it."""
    if const_expr(lazy):
        if cute.arch.vote_any_sync(factor < 1.0):
            _rescale(acc, thread, factor)
    else:
        _rescale(acc, thread, factor)


@cute.jit
def _rescale(acc: cute.Tensor, thread: Int32, factor: Float32) -> None:
    part, parts = _columns(acc)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(_STEP)), Float32)
    save = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(_STEP)), Float32)
    load = tcgen05.make_tmem_copy(load, part).get_slice(thread)
    save = tcgen05.make_tmem_copy(save, part).get_slice(thread)
    source, target = load.partition_S(parts), save.partition_D(parts)
    for i in cutlass.range_constexpr(cute.size(source.shape[3])):
        values = _registers(load)
        cute.copy(load, source[None, 0, 0, i], values)
        cute.arch.fence_view_async_tmem_load()
        _multiply(values, factor)
        cute.copy(save, values, target[None, 0, 0, i])
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def store_rows(
    acc: cute.Tensor, out: cute.Tensor, thread: Int32, total: Float32, visited: Any, inside: Any
) -> None:
    """Out = acc / total, a row of global memory a thread; 0 where `total` is 0.

    Args:
        acc: float32 [128, width] in tensor memory.
        out: [width], the thread's row, in any dtype of 16 bits; 16-byte aligned.
        thread: the row of `acc`.
        total: what to divide the row by.
        visited: whether `acc` holds anything; if not, zeros are written and it is not read.
        inside: whether there is such a row.
    """
    part, parts = _columns(acc)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(_STEP)), Float32)
    load = tcgen05.make_tmem_copy(load, part).get_slice(thread)
    source = load.partition_S(parts)
    dtype = out.element_type
    start = cute.make_ptr(
        dtype, out.iterator.toint(), cute.AddressSpace.gmem, assumed_align=_VECTOR
    )
    flat = cute.make_layout(_STEP)
    factor = cute.arch.rcp_approx(total) if total != 0.0 else Float32(0.0)
    for i in cutlass.range_constexpr(cute.size(source.shape[3])):
        values = _normalised(load, source[None, 0, 0, i], factor, visited)
        narrow = cute.make_rmem_tensor(flat, dtype)
        narrow.store(cute.make_tensor(values.iterator, flat).load().to(dtype))
        if inside:
            cute.autovec_copy(narrow, cute.make_tensor(start + i * _STEP, flat))


@cute.jit
def write_rows(
    acc: cute.Tensor, shared: cute.Tensor, thread: Int32, total: Float32, visited: Any
) -> None:
    """Shared = acc / total row by row, in shared memory's dtype; 0 where `total` is 0.

    Args:
        acc: float32 [128, width] in tensor memory.
        shared: [128, width] in shared memory.
        thread: the row.
        total: what to divide the row by.
        visited: whether `acc` holds anything; if not, zeros are written and it is not read.
    """
    part, parts = _columns(acc)
    _, out = _columns(shared)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(_STEP)), Float32)
    tiled = tcgen05.make_tmem_copy(load, part)
    load = tiled.get_slice(thread)
    dtype = shared.element_type
    save = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=128)
    save = cute.make_tiled_copy_D(save, tiled)
    source, target = load.partition_S(parts), save.get_slice(thread).partition_D(out)
    factor = cute.arch.rcp_approx(total) if total != 0.0 else Float32(0.0)
    for i in cutlass.range_constexpr(cute.size(source.shape[3])):
        values = _normalised(load, source[None, 0, 0, i], factor, visited)
        narrow = cute.make_rmem_tensor(target[None, 0, 0, i].shape, dtype)
        flat = cute.make_tensor(narrow.iterator, cute.make_layout(_STEP))
        flat.store(cute.make_tensor(values.iterator, flat.layout).load().to(dtype))
        cute.copy(save, narrow, target[None, 0, 0, i])
