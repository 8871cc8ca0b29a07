"""Block lists on a device: what the kernels of `bits_triton` and `lists_triton` do, on tensors.

Nothing here waits for the device, and every size follows from shapes.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from maskplan.device.list_writer import write_lists
from maskplan.device.nvrtc import runs
from maskplan.device.place import require_values
from maskplan.device.rank_reader import read_ranks, reads
from maskplan.device.status import new_status
from maskplan.errors import PlanError, sentence
from maskplan.geometry import MAX_SEQLEN, WORD_BITS
from maskplan.plan import BlockLists, Plan, TransposedPlan

KindT = TypeVar("KindT", Plan, TransposedPlan)

_SCAN, _FILL = 2048, 1024
_BANDS = 4  # squares of bits that a warp turns
_BLOCK_W = 8  # words whose bits a warp of Triton turns into a list at once
_FEW_LINES = 4096  # up to which a program adds up the counts before its own, to save a launch


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """The GPU of `tensor` as the current one: Triton starts kernels there, whatever they touch."""
    require_values(tensor, "a kernel")
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def words_of(cols: int) -> int:
    """Words that hold one bit a column; at least 1, so that no array is empty to index."""
    return max(-(-cols // WORD_BITS), 1)


def power_of_two(size: int, low: int, high: int) -> int:
    """The smallest power of two from `low` that is not below `size`, at most `high`."""
    block = low
    while block < min(size, high):
        block *= 2
    return block


def check_room(blocks: int, where: str, remedy: str = "") -> int:
    """`blocks`, checked to be countable by 32-bit numbers of blocks and tiles.

    `remedy` is what helps besides larger blocks and fewer heads.

    Raises:
        PlanError: if it is not.
    """
    if blocks > MAX_SEQLEN:
        raise PlanError(
            sentence(
                what="too many blocks for one plan",
                where=where,
                got=f"room for {blocks}",
                wanted=f"at most {MAX_SEQLEN}",
                remedy=f"{remedy}use larger blocks, or plan fewer heads at a time",
            )
        )
    return blocks


def row_pointers(counts: Tensor, capacity: int, status: Tensor) -> Tensor:
    """int64 [lines + 1] of counts int32 [lines], cut at the capacity with status bit 2."""
    from maskplan.device.lists_triton import scan_kernel

    lines = len(counts)
    row_ptr = torch.empty(lines + 1, dtype=torch.int64, device=counts.device)
    grid = (max(-(-lines // _SCAN), 1),)
    scan_kernel[grid](counts, row_ptr, lines, capacity, status, BLOCK=_SCAN)
    return row_ptr


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Lists as bits, so that a block is found by its (line, column) and not by its place.

    The block of a column is listed if bit column % 32 of word column // 32 is set; it is then entry
    before[line, word] + (bits set below it) of `col` and `tile_id`.

    Attributes:
        listed: int32 [lines, ceil(cols / 32)] (one word at least).
        before: int32 as `listed`: blocks before each word, counted over all lines.
        full: int32 as `listed`: which of the listed are full; None if not asked for.
    """

    listed: Tensor
    before: Tensor
    full: Tensor | None = None


def ranks(plan: BlockLists, *, full: bool = False) -> Ranks:
    """The ranks of a device plan."""
    words = words_of(plan.axes.cols)
    lines = len(plan.row_ptr) - 1
    listed, before = torch.empty(2, lines, words, dtype=torch.int32, device=plan.device)
    whole = None
    if full:
        whole = listed if plan.tile_id is None else torch.empty_like(listed)
    apart = None if plan.tile_id is None else whole
    with on_device(listed):
        if reads(plan, words):
            read_ranks(plan, listed, apart, before)
        else:
            _ranks_in_triton(plan, listed, apart, before)
    return Ranks(listed=listed, before=before, full=whole)


def _ranks_in_triton(plan: BlockLists, listed: Tensor, full: Tensor | None, before: Tensor) -> None:
    from maskplan.device.bits_triton import ranks_kernel

    lines, words = listed.shape
    block = power_of_two(words, 16, 128)
    ranks_kernel[(lines, -(-words // block))](
        plan.row_ptr, plan.col, plan.col if plan.tile_id is None else plan.tile_id, listed,
        listed if full is None else full, before, words, max(plan.axes.cols, 1).bit_length(),
        FULL=full is not None, BLOCK_W=block, num_warps=1,
    )  # fmt: skip


def turned_bits(listed: Tensor, patterns: int, rows: int, cols: int) -> Tensor:
    """Bits int32 [patterns * rows, words of cols] as int32 [patterns * cols, words of rows]."""
    from maskplan.device.bits_triton import turn_kernel

    words, turned_words = words_of(cols), words_of(rows)
    turned = torch.empty(patterns * cols, turned_words, dtype=torch.int32, device=listed.device)
    bands = power_of_two(turned_words, 1, _BANDS)
    grid = (patterns, words, -(-turned_words // bands))
    turn_kernel[grid](listed, turned, rows, cols, words, turned_words, BANDS=bands, num_warps=1)
    return turned


def counted(listed: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks before each word within its line, blocks of each line) of bits, int32 both."""
    from maskplan.device.bits_triton import prefix_kernel

    lines, words = listed.shape
    before = torch.empty_like(listed)
    counts = torch.empty(lines, dtype=torch.int32, device=listed.device)
    block = power_of_two(words, 1, 128)
    many = max(512 // block, 1)
    prefix_kernel[(-(-lines // many),)](
        listed, before, counts, lines, words, LINES=many, BLOCK_W=block
    )
    return before, counts


def listing(
    listed: Tensor,
    full: Tensor | None,
    counts: Tensor,
    cols: int,
    capacity: int,
    status: Tensor,
    *,
    tiles: int,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(row_ptr int64 [lines + 1], col, tile_id int32 [capacity]) of lists given as bits.

    Args:
        listed: int32 [lines, words].
        full: int32 as `listed`, or None where `tiles` is 0.
        counts: int32 [lines], bits set in each line.
        cols: columns of a line.
        capacity: room for blocks; those beyond it are dropped, with status bit 2.
        status: the status word.
        tiles: 0 for no tile_id; 1 to give a partial block tile line * cols + column; 2, that of its
            own place in `col`.
    """
    lines, words = listed.shape
    few = lines <= _FEW_LINES
    if few:
        row_ptr = torch.empty(lines + 1, dtype=torch.int64, device=counts.device)
    else:
        row_ptr = row_pointers(counts, capacity, status)
    col = torch.empty(capacity, dtype=torch.int32, device=listed.device)
    tile_id = torch.empty_like(col) if tiles else None
    if runs(col):
        write_lists(
            listed, row_ptr, col, tile_id, status, cols=cols, tiles=tiles, full=full,
            counts=counts if few else None,
        )  # fmt: skip
        return row_ptr, col, tile_id
    from maskplan.device.lists_triton import emit_kernel

    emit_kernel[(max(lines, 1),)](
        listed, listed if full is None else full, counts, row_ptr, col,
        col if tile_id is None else tile_id, lines, cols, words, capacity, status,
        TILES=tiles, SCAN=_SCAN if few else 0, BLOCK_W=power_of_two(words, 1, _BLOCK_W),
        FILL=_FILL, num_warps=1,
    )  # fmt: skip
    return row_ptr, col, tile_id


def turned_tiles(plan: BlockLists) -> Tensor:
    """Tiles of a device plan with rows and columns changed over, each in its old place."""
    with on_device(plan.col):
        return _turned_tiles(plan)


def _turned_tiles(plan: BlockLists) -> Tensor:
    from maskplan.device.tiles_triton import turn_tiles_kernel

    axes = plan.axes.transposed
    count, height, words = plan.tiles.shape
    turned = torch.empty(count, axes.row_block, axes.words, dtype=torch.int32, device=plan.device)
    if count and plan.tile_id is not None:
        room = len(plan.col)
        programs = min(max(count, 1), 132 * 16)
        turn_tiles_kernel[(programs,)](
            plan.tiles, turned, plan.tile_id, plan.row_ptr, len(plan.row_ptr) - 1, count, height,
            words, axes.row_block, axes.words, BY_BLOCK=2 * count > room,
            BLOCK_C=power_of_two(axes.row_block, 16, 128),
        )  # fmt: skip
    return turned


def transposed(plan: BlockLists, kind: type[KindT]) -> KindT:
    """The lists of a device plan by column, as a plan of the other type."""
    with on_device(plan.col):
        return _transposed(plan, kind)


def _transposed(plan: BlockLists, kind: type[KindT]) -> KindT:
    from maskplan.device.lists_triton import turned_lists_kernel

    axes = plan.axes
    rows, cols, device = axes.rows, axes.cols, plan.device
    tiles = turned_tiles(plan)
    rest: dict[str, Any] = {
        "geometry": plan.geometry,
        "tiles": tiles,
        "provenance": plan.provenance,
    }
    capacity = len(plan.col)
    status = plan.status if plan.status is not None else new_status(device)
    if not rows or not cols:
        none = torch.full((capacity,), -1, dtype=torch.int32, device=device)
        return kind(
            pattern_id=torch.zeros_like(plan.pattern_id),
            row_ptr=torch.zeros(cols + 1, dtype=torch.int64, device=device),
            col=none,
            tile_id=None if plan.tile_id is None else none,
            status=status,
            **rest,
        )
    own = ranks(plan)
    turned = turned_bits(own.listed, plan.num_patterns, rows, cols)
    _, counts = counted(turned)
    row_ptr = row_pointers(counts, capacity, status)
    col = torch.empty(capacity, dtype=torch.int32, device=device)
    tile_id = None if plan.tile_id is None else torch.empty_like(col)
    if runs(col):
        old = None if plan.tile_id is None else (own.listed, own.before, plan.tile_id)
        write_lists(
            turned, row_ptr, col, tile_id, status, cols=rows, old_cols=cols, old=old,
            tiles=0 if old is None else 3,
        )  # fmt: skip
    else:
        words = turned.shape[1]
        turned_lists_kernel[(len(turned),)](
            turned, row_ptr, own.before, own.listed, col if plan.tile_id is None else plan.tile_id,
            col, col if tile_id is None else tile_id, len(turned), words, rows, cols,
            own.listed.shape[1], capacity, TILES=tile_id is not None,
            BLOCK_W=power_of_two(words, 1, _BLOCK_W), FILL=_FILL, num_warps=1,
        )  # fmt: skip
    return kind(
        pattern_id=plan.pattern_id, row_ptr=row_ptr, col=col, tile_id=tile_id, status=status, **rest
    )
