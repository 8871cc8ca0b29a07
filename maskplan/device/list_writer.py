"""The kernels of `lists.cu`: their arguments, and their compilation."""

import ctypes
from functools import cache
from pathlib import Path

from torch import Tensor

from maskplan.device.nvrtc import CudaKernel, place_of

_SOURCE = Path(__file__).with_name("lists.cu")
_WARPS = 8  # of a CTA of `emit` and `pad`, a line each
_TABLE_THREADS = 128
_LONG_LINE, _SHARE = 32, 4  # words beyond which several warps share a line, and how many


def _pointers(*names: str) -> tuple[tuple[str, type[ctypes.c_void_p]], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


def _numbers(*names: str) -> tuple[tuple[str, type[ctypes.c_int]], ...]:
    return tuple((name, ctypes.c_int) for name in names)


class Emit(ctypes.Structure):
    """`Emit` there."""

    _fields_ = [
        *_pointers("bits", "full", "counts", "row_ptr", "col", "tile_id", "old_bits", "old_before",
                   "old_tile_id", "status"),
        ("capacity", ctypes.c_longlong),
        *_numbers("lines", "words", "cols", "old_cols", "old_words", "scan"),
    ]  # fmt: skip


class Pad(ctypes.Structure):
    """`Pad` there."""

    _fields_ = [
        *_pointers("row_ptr", "col", "tile_id", "pattern_id", "counts", "lists", "turned",
                   "turned_before", "lengths", "status"),
        ("outs", ctypes.c_longlong),
        *_numbers("rows", "cols", "turned_words", "width"),
    ]  # fmt: skip


class PadBits(ctypes.Structure):
    """`PadBits` there."""

    _fields_ = [
        *_pointers("listed", "full", "pattern_id", "counts", "lists", "status"),
        ("outs", ctypes.c_longlong),
        *_numbers("rows", "cols", "words", "width", "share"),
    ]  # fmt: skip


class Table(ctypes.Structure):
    """`Table` there."""

    _fields_ = [
        *_pointers("chosen", "parts", "table", "counts", "report", "status"),
        *_numbers("chunks", "chunk", "words", "width", "most", "uniform", "is_union"),
    ]  # fmt: skip


@cache
def _kernel(name: str, tiles: int, order: int, device: int) -> CudaKernel:
    return CudaKernel(_SOURCE, name, (f"TILES={tiles}", f"ORDER={order}"), device, 0)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _start(
    name: str, tiles: int, order: int, grid: int, threads: int, where: Tensor,
    given: ctypes.Structure,
) -> None:  # fmt: skip
    device, stream = place_of(where)
    _kernel(name, tiles, order, device)(grid, threads, 0, stream, (given,))


def write_lists(
    bits: Tensor, row_ptr: Tensor, col: Tensor, tile_id: Tensor | None, status: Tensor, *,
    cols: int, tiles: int = 0, full: Tensor | None = None, counts: Tensor | None = None,
    old: tuple[Tensor, Tensor, Tensor] | None = None, old_cols: int = 1,
) -> None:  # fmt: skip
    """Fill `col` and `tile_id` from bits int32 [lines, words], and -1 in what room they leave.

    Args:
        bits: what is listed.
        row_ptr: int64 [lines + 1]; filled here if `counts` are given.
        col: int32 [capacity].
        tile_id: likewise, or None with `tiles` 0.
        status: the status word.
        cols: columns of a line.
        tiles: see `lists.cu`.
        full: bits of the full blocks, with `tiles` 1 and 2.
        counts: int32 [lines].
        old: (bits, entries before each word, tiles) of the lists that were turned, with `tiles` 3.
        old_cols: lines of a pattern, with `tiles` 3.
    """
    lines, words = bits.shape
    old_bits, old_before, old_tile_id = (None, None, None) if old is None else old
    given = Emit(
        _address(bits), _address(full), _address(counts), _address(row_ptr), _address(col),
        _address(tile_id), _address(old_bits), _address(old_before), _address(old_tile_id),
        _address(status), len(col), lines, words, cols, old_cols,
        1 if old_bits is None else old_bits.shape[1], counts is not None,
    )  # fmt: skip
    _start("emit", tiles, 0, max(-(-lines // _WARPS), 1), _WARPS * 32, col, given)


def pad_lists(
    row_ptr: Tensor, col: Tensor, tile_id: Tensor | None, pattern_id: Tensor, counts: Tensor,
    lists: Tensor, turned: tuple[Tensor, Tensor, Tensor] | None, status: Tensor, *,
    rows: int, cols: int, order: int,
) -> None:  # fmt: skip
    """Fill padded lists int32 [3 or 5, outs, width] and their counts int32 [2, outs].

    Args:
        row_ptr: of the plan, as `col`, `tile_id` and `pattern_id`.
        col: see there.
        tile_id: see there.
        pattern_id: see there.
        counts: of mask and of full blocks.
        lists: mask blocks, full blocks, tiles of mask blocks, orders of both.
        turned: (bits, entries before each word, length of each line) of the transposed lists, with
            `order`.
        status: the status word.
        rows: lines of a pattern.
        cols: columns of a line.
        order: 0 for none, 1 ascending, 2 descending.
    """
    outs, width = counts[0].numel(), lists.shape[-1]
    bits, before, lengths = (None, None, None) if turned is None else turned
    given = Pad(
        _address(row_ptr), _address(col), _address(tile_id), _address(pattern_id),
        _address(counts), _address(lists), _address(bits), _address(before), _address(lengths),
        _address(status), outs, rows, cols, 1 if bits is None else bits.shape[1], width,
    )  # fmt: skip
    _start("pad", int(tile_id is not None), order, -(-outs // _WARPS), _WARPS * 32, col, given)


def pad_bits(
    listed: Tensor, full: Tensor, pattern_id: Tensor, counts: Tensor, lists: Tensor, status: Tensor,
    *, rows: int, cols: int, tiles: bool,
) -> None:  # fmt: skip
    """Fill padded lists int32 [3, outs, width] and their counts int32 [2, outs] from bits.

    Args:
        listed: int32 [lines, words]: bits of the blocks of each line.
        full: likewise, of the full ones among them.
        pattern_id: int32 [batch, heads].
        counts: of mask and of full blocks.
        lists: mask blocks, full blocks, tiles of mask blocks.
        status: the status word.
        rows: lines of a pattern.
        cols: columns of a line.
        tiles: whether there are mask blocks, whose tile is line * cols + column.
    """
    outs, words = counts[0].numel(), listed.shape[1]
    share = 1 if words <= _LONG_LINE else _SHARE
    given = PadBits(
        _address(listed), _address(full), _address(pattern_id), _address(counts), _address(lists),
        _address(status), outs, rows, cols, words, lists.shape[-1], share,
    )  # fmt: skip
    grid = -(-outs * share // _WARPS)
    _start("pad_bits", int(tiles), 0, grid, _WARPS * 32, listed, given)


def write_tables(
    chosen: Tensor, parts: Tensor, table: Tensor, counts: Tensor, report: Tensor, status: Tensor,
    *, chunk: int, most: int, policy: str,
) -> None:  # fmt: skip
    """Fill the lists of keys of Q tiles: `table_kernel` of `tokens_triton`, with its arguments."""
    tiles, words = chosen.shape
    chunks = parts.shape[1]
    given = Table(
        _address(chosen), _address(parts), _address(table), _address(counts), _address(report),
        _address(status), chunks, chunk, words, table.shape[-1], most, policy == "uniform",
        policy == "union",
    )  # fmt: skip
    _start("table", 0, 0, tiles * chunks, _TABLE_THREADS, table, given)
