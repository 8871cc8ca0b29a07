"""Plans from block lists that others made: padded lists with counts, and BSR."""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.build.entry_lists import (
    Entries,
    Names,
    check_blocks,
    in_order,
    merged,
    read_entries,
)
from maskplan.build.host import Integers, index_tensor, int_array, name_of, on_host, rank
from maskplan.build.mask_blocks import evaluated_tiles
from maskplan.build.mask_fn import MaskFn
from maskplan.build.pattern_axes import distinct, require_heads
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, flag
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed


@untransformed
def from_block_lists(
    cnt: Tensor,
    idx: Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    mask_cnt: Tensor | None = None,
    mask_idx: Tensor | None = None,
    mask_fn: MaskFn | None = None,
    tile_id: Tensor | None = None,
    tiles: Tensor | None = None,
    sort: bool = False,
) -> Plan:
    """The plan of padded lists of KV blocks, as FlashAttention-4 and FlexAttention hold them.

    Blocks in (cnt, idx) are whole. Blocks in (mask_cnt, mask_idx) are mask blocks; their bits come
    from `mask_fn`, or from `tile_id` and `tiles`. Entries past a count are ignored, whatever they
    hold. Leading axes of size 1 broadcast among the lists.

    Args:
        cnt: int32 or int64 [M], [heads, M] or [batch, heads, M]: blocks of each row.
        idx: int32 or int64 [.., M, width]: KV blocks, strictly ascending up to the count.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        mask_cnt: as `cnt`, of mask blocks.
        mask_idx: as `idx`, of mask blocks.
        mask_fn: FlexAttention's mask_mod, evaluated in the mask blocks only, for each (batch,
            head) of the lists.
        tile_id: int32 or int64, as `mask_idx`: each mask block's row of `tiles`.
        tiles: int32 [T, bq, ceil(bk / 32)]: bit i of word w is key 32 * w + i of the block.
        sort: accept lists in any order.

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank, or mask blocks come without bits.
        PlanError: if a count exceeds the width or is negative, a block is out of range, out of
            order, listed twice or in both lists, a tile is unknown, or a shape does not fit.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    _check_bits_source(mask_cnt, mask_idx, mask_fn, tile_id, tiles)
    sort = flag(sort, "sort")
    given = {"cnt": cnt, "idx": idx}
    if mask_cnt is not None and mask_idx is not None:
        given |= {"mask_cnt": mask_cnt, "mask_idx": mask_idx}
    if tile_id is not None:
        given["tile_id"] = tile_id
    if tiles is not None:
        _check_tiles(tiles, geometry)
    lists = _aligned(given, geometry)
    if mask_fn is None:
        pattern_id, own = distinct(*lists.values())
        lists = dict(zip(lists, own, strict=True))
    else:  # the function may tell apart heads that share a list
        batch, heads = lists["cnt"].shape[:2]
        pattern_id = torch.arange(batch * heads, dtype=torch.int32, device="cpu").view(batch, heads)
    entries = _entries(lists, "cnt", "idx", geometry, sort=sort)
    tile_bits = None
    if "mask_cnt" in lists:
        masks = _entries(lists, "mask_cnt", "mask_idx", geometry, sort=sort)
        heads = lists["cnt"].shape[1]
        if mask_fn is not None:
            tile_bits = evaluated_tiles(mask_fn, masks.line, masks.block, heads, geometry)
            masks = masks._replace(content=torch.arange(len(masks.line), device="cpu"))
        elif tiles is not None:
            tile_bits = tiles
            masks = masks._replace(content=_tile_numbers(lists["tile_id"], masks, len(tiles)))
        names = Names("mask_cnt", "mask_idx", geometry.num_q_blocks, heads)
        entries = merged(entries, masks, names)
    return _plan(
        entries, tile_bits, geometry, pattern_id, "from_block_lists", check=tiles is not None
    )


@untransformed
def from_bsr(
    indptr: Integers,
    indices: Integers,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    sort: bool = False,
) -> Plan:
    """The plan of a block-sparse-row matrix, as SciPy and FlashInfer hold them; blocks are whole.

    Args:
        indptr: int [M + 1]: row i lists indices[indptr[i] : indptr[i + 1]].
        indices: int [blocks]: KV blocks, strictly ascending in a row.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        sort: accept rows in any order.

    Raises:
        PlanTypeError: if an array is not one of integers of one axis.
        PlanError: if the number of rows does not fit, indptr does not start at 0, decreases or ends
            elsewhere, or a block is out of range, out of order or listed twice.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    sort = flag(sort, "sort")
    pointers, blocks = int_array(indptr, "indptr", (None,)), int_array(indices, "indices", (None,))
    _check_indptr(pointers, len(blocks), geometry)
    counts = torch.from_numpy(np.diff(pointers))
    line = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    block = torch.from_numpy(blocks)
    slot = torch.arange(len(blocks), device="cpu") - torch.from_numpy(pointers)[:-1][line]
    entries = Entries(line, slot, block, torch.full_like(block, -1))
    names = Names("indptr", "indices", geometry.num_q_blocks, 1)
    check_blocks(entries, geometry.num_k_blocks, names, sort=sort)
    pattern_id = torch.zeros((1, 1), dtype=torch.int32, device="cpu")
    entries = in_order(entries) if sort else entries
    return _plan(entries, None, geometry, pattern_id, "from_bsr")


def _plan(
    entries: Entries,
    tiles: Tensor | None,
    geometry: Geometry,
    pattern_id: Tensor,
    builder: str,
    *,
    check: bool = False,
) -> Plan:
    patterns = int(pattern_id.max()) + 1
    lines = patterns * geometry.num_q_blocks
    counts = torch.bincount(entries.line, minlength=lines)[:lines]
    row_ptr = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), counts.cumsum(0)])
    return assemble(
        geometry,
        pattern_id,
        row_ptr.numpy(),
        entries.block.to(torch.int32).numpy(),
        entries.content.to(torch.int32).numpy(),
        None if tiles is None else tiles.contiguous().numpy(),
        Provenance(builder=builder),
        check=check,
    )


def _check_tiles(tiles: Tensor, geometry: Geometry) -> None:
    shape = (geometry.block_size[0], geometry.axes.words)
    given = on_host(tiles, "tiles")
    if given.dtype != torch.int32 or given.ndim != 3 or tuple(given.shape[1:]) != shape:
        raise PlanTypeError(
            sentence(
                what="tiles have the wrong dtype or shape",
                where="tiles",
                got=f"{name_of(given.dtype)} {list(given.shape)}",
                wanted=f"int32 [tiles, {shape[0]}, {shape[1]}]",
                remedy="pass one bit a pair: bit i of word w is key 32 * w + i of the block",
            )
        )


def _check_bits_source(
    mask_cnt: Tensor | None,
    mask_idx: Tensor | None,
    mask_fn: MaskFn | None,
    tile_id: Tensor | None,
    tiles: Tensor | None,
) -> None:
    listed = (mask_cnt is not None, mask_idx is not None)
    stored = (tile_id is not None, tiles is not None)
    sources = (mask_fn is not None) + all(stored)
    whole = not any((*listed, *stored, mask_fn is not None))
    if whole or (all(listed) and stored[0] == stored[1] and sources == 1):
        return
    given = {
        "mask_cnt": mask_cnt,
        "mask_idx": mask_idx,
        "mask_fn": mask_fn,
        "tile_id": tile_id,
        "tiles": tiles,
    }
    present = [name for name, value in given.items() if value is not None]
    raise PlanTypeError(
        sentence(
            what="mask blocks and their bits do not go together",
            where="mask_cnt, mask_idx, mask_fn, tile_id, tiles",
            got=", ".join(present),
            wanted="mask_cnt and mask_idx with either mask_fn, or tile_id and tiles",
            remedy="say which pairs of a mask block are kept: a list alone does not tell",
        )
    )


def _aligned(given: dict[str, Tensor], geometry: Geometry) -> dict[str, Tensor]:
    """The lists as [batch, heads, M] and [batch, heads, M, width], broadcast together."""
    full: dict[str, Tensor] = {}
    for name, tensor in given.items():
        index_tensor(tensor, name)
        counts = name.endswith("cnt")
        ranks = (1, 2, 3) if counts else (2, 3, 4)
        axes = "M" if counts else "M, width"
        wanted = f"[{axes}], [heads, {axes}] or [batch, heads, {axes}]"
        rank(tensor, name, ranks, wanted, "pass one list for each Q block")
        full[name] = tensor[(None,) * (ranks[-1] - tensor.ndim)]
        if full[name].shape[2] != geometry.num_q_blocks:
            _raise_rows(name, full[name].shape[2], geometry)
    sizes = [{int(tensor.shape[axis]) for tensor in full.values()} - {1} for axis in (0, 1)]
    if any(len(others) > 1 for others in sizes):
        raise PlanError(
            sentence(
                what="lists of different batch or heads",
                where=", ".join(full),
                got=", ".join(f"{name} {list(tensor.shape)}" for name, tensor in full.items()),
                wanted="equal leading sizes, or 1",
                remedy="expand the smaller ones",
            )
        )
    batch, heads = (max(others, default=1) for others in sizes)
    aligned = {
        name: tensor.expand(batch, heads, *tensor.shape[2:]) for name, tensor in full.items()
    }
    require_heads(aligned["cnt"], "cnt")
    if "tile_id" in full and full["tile_id"].shape[3] != full["mask_idx"].shape[3]:
        raise PlanError(
            sentence(
                what="tile numbers do not fit the mask lists",
                where="tile_id, last axis",
                got=full["tile_id"].shape[3],
                wanted=f"{full['mask_idx'].shape[3]}, as mask_idx",
                remedy="pass one tile for each slot of mask_idx",
            )
        )
    return aligned


def _raise_rows(name: str, rows: int, geometry: Geometry) -> None:
    raise PlanError(
        sentence(
            what="lists do not fit the query length",
            where=f"{name}, axis of Q blocks",
            got=f"{rows} rows",
            wanted=f"M = {geometry.num_q_blocks}, for {geometry}",
            remedy="pass the lengths and block_size that the lists were made for",
        )
    )


def _entries(
    lists: dict[str, Tensor], counts: str, blocks: str, geometry: Geometry, *, sort: bool
) -> Entries:
    names = Names(counts, blocks, geometry.num_q_blocks, lists[counts].shape[1])
    entries = read_entries(lists[counts].flatten(), lists[blocks].flatten(0, 2), names)
    check_blocks(entries, geometry.num_k_blocks, names, sort=sort)
    return in_order(entries) if sort else entries


def _tile_numbers(tile_id: Tensor, masks: Entries, count: int) -> Tensor:
    numbers = tile_id.flatten(0, 2)[masks.line, masks.slot].long()
    bad = ((numbers < 0) | (numbers >= count)).nonzero()
    if len(bad):
        at = int(bad[0, 0])
        names = Names("mask_cnt", "tile_id", tile_id.shape[2], tile_id.shape[1])
        raise PlanError(
            sentence(
                what="unknown tile",
                where=names.place(int(masks.line[at]), int(masks.slot[at])),
                got=int(numbers[at]),
                wanted=f"0 <= tile < {count}",
                remedy="number the rows of tiles; whole blocks belong into idx",
            )
        )
    return numbers


def _check_indptr(pointers: np.ndarray, blocks: int, geometry: Geometry) -> None:
    if len(pointers) != geometry.num_q_blocks + 1:
        _raise_rows("indptr", len(pointers) - 1, geometry)
    down = pointers[1:] < pointers[:-1]  # a difference could overflow
    at = 0 if pointers[0] != 0 else int(down.argmax()) + 1 if down.any() else len(pointers) - 1
    wanted = "0" if at == 0 else f"at least {pointers[at - 1]}" if down.any() else str(blocks)
    if pointers[0] != 0 or down.any() or pointers[-1] != blocks:
        raise PlanError(
            sentence(
                what="row pointers do not partition the blocks",
                where=f"indptr[{at}]",
                got=int(pointers[at]),
                wanted=wanted,
                remedy="pass 0 followed by the running counts of each row's blocks",
            )
        )
