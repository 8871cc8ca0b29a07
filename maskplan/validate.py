"""Checks of every numbered invariant of a plan, with the place and the value in the error."""

import numpy as np
import torch
from torch import Tensor

from maskplan.bits import unpack
from maskplan.errors import PlanError, sentence
from maskplan.geometry import WORD_BITS
from maskplan.plan import BlockLists


def _fail(number: int, what: str, where: str, got: object, wanted: str) -> None:
    raise PlanError(
        sentence(
            what=f"invariant {number}: {what}",
            where=where,
            got=got,
            wanted=wanted,
            remedy="make plans with a builder, or correct that entry",
        )
    )


def _first(bad: Tensor) -> int | None:
    """Position of the first True, or None."""
    found = bad.nonzero()
    return int(found[0, 0]) if len(found) else None


def _row_name(plan: BlockLists, line: int) -> str:
    pattern, row = divmod(line, max(plan.axes.rows, 1))
    return f"pattern {pattern}, row {row}"


def validate(plan: BlockLists) -> None:
    """Check `plan`; see `Plan` for the invariants.

    Of a device plan the status word is read, which waits for the device.

    Raises:
        PlanError: for the first invariant that does not hold, or fault that the device recorded.
    """
    if plan.status is not None:
        from maskplan.device.status import raise_faults

        raise_faults(plan.status)
        return
    _check_patterns(plan)
    _check_rows(plan)
    lines = torch.repeat_interleave(
        torch.arange(len(plan.row_ptr) - 1, device=plan.device), plan.row_ptr.diff()
    )
    _check_cols(plan, lines)
    if plan.tile_id is not None:
        _check_tiles(plan, plan.tile_id, lines)


def _check_patterns(plan: BlockLists) -> None:
    flat = plan.pattern_id.reshape(-1)
    if not len(flat):
        _fail(1, "no patterns", "pattern_id", list(plan.pattern_id.shape), "at least one entry")
    at = _first((flat < 0) | (flat >= plan.num_patterns))
    if at is not None:
        batch, head = divmod(at, plan.heads)
        where = f"pattern_id[{batch}, {head}]"
        _fail(1, "unknown pattern", where, int(flat[at]), f"0 <= id < {plan.num_patterns}")


def _check_rows(plan: BlockLists) -> None:
    row_ptr = plan.row_ptr
    if int(row_ptr[0]) != 0:
        _fail(2, "rows do not start at 0", "row_ptr[0]", int(row_ptr[0]), "0")
    at = _first(row_ptr[1:] < row_ptr[:-1])  # a difference could overflow
    if at is not None:
        where = f"row_ptr[{at + 1}] ({_row_name(plan, at)})"
        _fail(2, "rows go backwards", where, int(row_ptr[at + 1]), f"at least {int(row_ptr[at])}")
    if int(row_ptr[-1]) != plan.num_blocks:
        where = f"row_ptr[{len(row_ptr) - 1}]"
        _fail(2, "rows do not end at the last block", where, int(row_ptr[-1]), str(plan.num_blocks))


def _check_cols(plan: BlockLists, lines: Tensor) -> None:
    col, cols = plan.col, plan.axes.cols
    at = _first((col < 0) | (col >= cols))
    if at is not None:
        where = f"col[{at}] ({_row_name(plan, int(lines[at]))})"
        _fail(3, "column out of range", where, int(col[at]), f"0 <= col < {cols}")
    at = _first((lines[1:] == lines[:-1]) & (col[1:] <= col[:-1]))
    if at is not None:
        where = f"col[{at + 1}] ({_row_name(plan, int(lines[at + 1]))})"
        _fail(4, "columns do not ascend", where, int(col[at + 1]), f"more than {int(col[at])}")


def _check_tiles(plan: BlockLists, tile_id: Tensor, lines: Tensor) -> None:
    at = _first((tile_id < -1) | (tile_id >= plan.num_tiles))
    if at is not None:
        where = f"tile_id[{at}] ({_row_name(plan, int(lines[at]))})"
        _fail(5, "unknown tile", where, int(tile_id[at]), f"-1 <= id < {plan.num_tiles}")
    axes = plan.axes
    rows_used, cols_used = _extent(plan.tiles)
    masked = (tile_id >= 0).nonzero()[:, 0]
    used = tile_id[masked].long()
    top = (lines[masked] % axes.rows) * axes.row_block
    left = plan.col[masked].long() * axes.col_block
    rows_left = (axes.row_len - top).clamp(max=axes.row_block)
    cols_left = (axes.col_len - left).clamp(max=axes.col_block)
    at = _first((rows_used[used] > rows_left) | (cols_used[used] > cols_left))
    if at is not None:
        entry = int(masked[at])
        where = (
            f"tiles[{int(used[at])}] used by block {entry} ({_row_name(plan, int(lines[entry]))})"
        )
        got = f"bits in {int(rows_used[used[at]])} rows x {int(cols_used[used[at]])} columns"
        wanted = f"none past {int(rows_left[at])} x {int(cols_left[at])}"
        _fail(6, "tile bits out of range", where, got, wanted)


def _extent(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """One past the last row and the last column with a set bit, of each tile: int64 [T] twice."""
    any_row = (tiles != 0).any(dim=2)
    words = np.bitwise_or.reduce(tiles.cpu().numpy(), axis=1)
    any_col = unpack(torch.from_numpy(words), tiles.shape[2] * WORD_BITS).to(tiles.device)
    return _last(any_row), _last(any_col)


def _last(kept: Tensor) -> Tensor:
    """One past the last True of each line of bool [T, L]; 0 where there is none."""
    return (kept * torch.arange(1, kept.shape[1] + 1, device=kept.device)).amax(dim=1)
