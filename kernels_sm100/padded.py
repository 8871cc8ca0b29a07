"""Padded block lists, in which kernels of others take a plan, as the tables of a walk.

    tables = padded_tables(config, lists, seqlen_q=300, seqlen_k=1000)
    forward_arguments(config, q, k, v, o, lse, tables, ...)     # or lists themselves, as `tables`

Names and shapes are those of flash-attn-4's `BlockSparseTensorsTorch`; what a mask block keeps is a
bit tile beside it, where flash-attn-4 has a mask function. What lies behind a count is never read.

NOTE [Blocks into tiles]: a Q block of the lists is one tile of 128 packed rows or several, and its
bit tile is as many bit tiles of 128 rows. A part of it without a bit is skipped, one of ones alone
is full, so that a list of 256 rows costs what lists of its halves would. What becomes of them are
cells (list row of the walk, KV block, part), sorted: merged, ascending rows in one pass, whether a
row of the walk is half a block or two of them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels_sm100.argument_checks import Checks, dtype_name
from kernels_sm100.config import MASK_WORDS, TILE_K, TILE_Q, ForwardConfig

FULL, SKIP = -1, -2  # of `walk`, which imports cutlass
_ALL_KEYS = -1  # a word of ones
_CHECKS = Checks("padded_tables")


class PaddedLists(NamedTuple):
    """Padded lists of a plan; any object with these attributes will do.

    B and H are those of the plan: 1, or as many as the call has. R is the number of Q blocks.

    Attributes:
        mask_block_cnt: int32 [B, H, R].
        mask_block_idx: int32 [B, H, R, N]: KV blocks of 128 keys, in any order.
        full_block_cnt: int32 [B, H, R]; None with the next for no full blocks.
        full_block_idx: int32 [B, H, R, N'].
        mask_tile_id: int32 as mask_block_idx: rows of `tiles`; None where no mask block is listed.
        tiles: int32 [T, tokens of a Q block, 4]: keep-bits, the first key in the lowest bit.
        block_size: (packed rows of a Q block, keys of a KV block).
    """

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor | None = None
    full_block_idx: Tensor | None = None
    mask_tile_id: Tensor | None = None
    tiles: Tensor | None = None
    block_size: tuple[int, int] = (2 * TILE_Q, TILE_K)


class _Kind(NamedTuple):
    """Listed blocks of one kind.

    Attributes:
        line: int64 [n], pattern * R + row.
        col: int64 [n], KV block.
        listed: bool as the list, where they are.
    """

    line: Tensor
    col: Tensor
    listed: Tensor


def padded_tables(
    config: ForwardConfig, lists: Any, *, seqlen_q: int, seqlen_k: int
) -> dict[str, Tensor]:
    """The tables of a walk by the names of `forward_host.TABLES`, rows longest first.

    Values are checked, for which the host waits for the device.

    Args:
        config: of the kernel that walks them.
        lists: `PaddedLists`, or what has its attributes. An axis that is expanded counts as 1.
        seqlen_q: in tokens.
        seqlen_k: in tokens.

    Raises:
        ConfigError: naming what does not fit.
    """
    rows = _block_rows(config, lists)
    # Rows with a tile id of their own: a Q tile, or a whole block where several CTAs share one.
    unit = TILE_Q if config.parts == config.q_tiles else rows
    per_block = rows // unit
    lists = _one_of_each(lists)
    packed_rows = seqlen_q * config.rows_per_token
    blocks, cols = -(-packed_rows // rows), -(-seqlen_k // TILE_K)
    mask = _listed(lists, "mask", blocks, cols)
    full = _listed(lists, "full", blocks, cols)
    of_mask, tiles = _bit_tiles(config, lists, mask, rows)
    tiles = tiles.reshape(-1, unit // config.rows_per_token, MASK_WORDS)

    parts = torch.arange(per_block, device=tiles.device)
    meaning = _meaning(tiles)
    ids = torch.cat(
        [
            meaning[of_mask[:, None] * per_block + parts],
            torch.full((len(full.line), per_block), FULL, device=tiles.device),
        ]
    )
    line = torch.cat([mask.line, full.line])[:, None]
    col = torch.cat([mask.col, full.col])[:, None].expand_as(ids)
    tile = line % blocks * per_block + parts  # of `unit` rows, in its pattern
    kept = (ids != SKIP) & (tile * unit < packed_rows)

    walk_rows = -(-packed_rows // (unit * config.parts))
    batches, heads = lists.mask_block_cnt.shape[:2]
    row = line // blocks * walk_rows + tile // config.parts
    cells, at = torch.unique((row * cols + col)[kept], return_inverse=True)
    slot = at * config.parts + (tile % config.parts)[kept]
    _check_once(slot, line.expand_as(ids)[kept], col[kept], blocks, heads)
    tile_id = torch.full((len(cells) * config.parts,), SKIP, device=tiles.device)
    tile_id[slot] = ids[kept]
    work = torch.bincount(cells // cols, minlength=batches * heads * walk_rows)
    row_ptr = torch.zeros(len(work) + 1, dtype=torch.int64, device=tiles.device)
    torch.cumsum(work, 0, out=row_ptr[1:])
    patterns = torch.arange(batches * heads, device=tiles.device)
    return {
        "pattern_id": patterns.view(batches, heads).int(),
        "row_ptr": row_ptr,
        "col": (cells % cols).int(),
        "tile_id": tile_id.view(-1, config.parts).int(),
        "tiles": tiles.contiguous(),
        "order": torch.argsort(work, descending=True, stable=True).int(),
    }


def _block_rows(config: ForwardConfig, lists: Any) -> int:
    """Packed rows of a Q block, which the kernel has to be able to cut into tiles."""
    if config.gathered:
        raise _CHECKS.refuse(
            "lists of blocks do not fit",
            config.inner_load.name,
            "a kernel whose keys come by whole blocks",
            "compile with inner_load=TMA",
        )
    if getattr(lists, "cu_total_m_blocks", None) is not None:
        raise _CHECKS.refuse(
            "ragged batches not available",
            "cu_total_m_blocks",
            "one length for all sequences of a batch",
            "pad them, and mask what pads",
        )
    multiple = TILE_Q if config.parts == config.q_tiles else config.cta_rows
    size = lists.block_size
    if size is None or size[0] < 1 or size[0] % multiple or size[1] != TILE_K:
        raise _CHECKS.refuse(
            "block size does not fit",
            size,
            f"a multiple of {multiple} packed rows by {TILE_K} keys",
            "make the lists for this kernel",
        )
    return int(size[0])


def _one_of_each(lists: Any) -> PaddedLists:
    """The lists, of an axis that all of them are expanded along the first alone."""
    given: list[Any] = [getattr(lists, name, None) for name in PaddedLists._fields[:5]]
    for axis in (0, 1):
        expanded = [t is None or (t.ndim > axis and t.stride(axis) == 0) for t in given]
        if all(expanded) and all(t is None or t.shape[axis] > 1 for t in given):
            given = [None if t is None else t.narrow(axis, 0, 1) for t in given]
    mask_cnt, mask_idx, full_cnt, full_idx, mask_tile_id = given
    tiles = getattr(lists, "tiles", None)
    return PaddedLists(
        mask_cnt, mask_idx, full_cnt, full_idx, mask_tile_id, tiles, lists.block_size
    )


def _listed(lists: PaddedLists, kind: str, blocks: int, cols: int) -> _Kind:
    """The blocks of one kind, checked."""
    names = f"{kind}_block_cnt", f"{kind}_block_idx"
    count, index = (getattr(lists, name) for name in names)
    if (count is None) != (index is None) or (kind == "mask" and count is None):
        raise _CHECKS.refuse(
            f"{' and '.join(names)} do not fit",
            f"{names[0 if count is None else 1]}=None",
            "both of them" if kind == "mask" else "both of them, or neither",
            "pass the other one too",
        )
    if count is None:
        count = torch.zeros_like(lists.mask_block_cnt)
        index = count.new_zeros(*count.shape, 0)
    shape = (*lists.mask_block_cnt.shape[:2], blocks)
    for name, tensor, wanted in (
        (names[0], count, shape),
        (names[1], index, (*shape, index.shape[-1])),
    ):
        if dtype_name(tensor) != "int32" or tuple(tensor.shape) != wanted:
            raise _CHECKS.refuse(
                f"{name} does not fit",
                f"{dtype_name(tensor)} {tuple(tensor.shape)}",
                f"int32 {wanted}",
                "make the lists for these lengths and this block size",
            )
    width = index.shape[-1]
    _check(names[0], count, (count < 0) | (count > width), f"0 to {width}, the list's width")
    listed = torch.arange(width, device=count.device) < count[..., None]
    _check(names[1], index, listed & ((index < 0) | (index >= cols)), f"0 <= block < {cols}")
    line = torch.arange(count.numel(), device=count.device).view(*shape, 1)
    return _Kind(line.expand_as(index)[listed], index[listed].long(), listed)


def _bit_tiles(
    config: ForwardConfig, lists: PaddedLists, mask: _Kind, rows: int
) -> tuple[Tensor, Tensor]:
    """(bit tile of each mask block int64 [n], bit tiles int32 [T, tokens of a Q block, 4])."""
    tokens = rows // config.rows_per_token
    tiles, ids = lists.tiles, lists.mask_tile_id
    if len(mask.line) and (tiles is None or ids is None):
        raise _CHECKS.refuse(
            "mask blocks without tiles",
            f"{len(mask.line)} mask blocks and {'tiles' if tiles is None else 'mask_tile_id'}=None",
            "a bit tile for each",
            "pass both, or list as full what is full",
        )
    if tiles is None or ids is None:
        none = torch.zeros_like(lists.mask_block_cnt).view(-1)[:0]
        return none.long(), none.view(0, tokens, MASK_WORDS)
    for name, tensor, wanted in (
        ("tiles", tiles, (len(tiles), tokens, MASK_WORDS)),
        ("mask_tile_id", ids, tuple(lists.mask_block_idx.shape)),
    ):
        if dtype_name(tensor) != "int32" or tuple(tensor.shape) != wanted:
            raise _CHECKS.refuse(
                f"{name} does not fit",
                f"{dtype_name(tensor)} {tuple(tensor.shape)}",
                f"int32 {wanted}",
                "make the tiles for this block size",
            )
    outside = mask.listed & ((ids < 0) | (ids >= len(tiles)))
    _check("mask_tile_id", ids, outside, f"0 <= tile < {len(tiles)}")
    return ids[mask.listed].long(), tiles


def _meaning(tiles: Tensor) -> Tensor:
    """What a tile id of each bit tile is: itself, or SKIP or FULL where it is that; int64 [T]."""
    words = tiles.flatten(1)
    number = torch.arange(len(tiles), device=tiles.device)
    number[(words == _ALL_KEYS).all(1)] = FULL
    number[(words == 0).all(1)] = SKIP
    return number


def _check(name: str, tensor: Tensor, wrong: Tensor, wanted: str) -> None:
    """Refuse the first value of `tensor` that is `wrong`."""
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        at = ", ".join(map(str, place))
        raise _CHECKS.refuse(
            f"{name} is out of range", f"{name}[{at}]={int(tensor[place])}", wanted,
            "correct the lists",
        )  # fmt: skip


def _check_once(slot: Tensor, line: Tensor, col: Tensor, blocks: int, heads: int) -> None:
    """Refuse a block that is listed twice: its keys would count twice."""
    order = torch.argsort(slot, stable=True)
    again = (slot[order].diff() == 0).nonzero().flatten()
    if len(again):
        which = int(order[again[0] + 1])
        pattern, row = divmod(int(line[which]), blocks)
        raise _CHECKS.refuse(
            "block is listed twice",
            f"KV block {int(col[which])} of [{pattern // heads}, {pattern % heads}, {row}]",
            "once, as a full or as a mask block",
            "correct the lists",
        )
