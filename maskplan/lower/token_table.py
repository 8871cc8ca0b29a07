"""The table of tokens of `TokenTiles`: measured, checked, then written."""

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from maskplan.build.topk import from_topk
from maskplan.errors import PlanError, sentence
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.lower.token_checks import raise_differ, tile_name
from maskplan.lower.token_source import Array, TileShape, TileSource
from maskplan.lower.token_tiles import KEYS, TokenTiles
from maskplan.plan import Plan
from maskplan.threads import run_ranges


def tables(source: TileSource, max_coverage: float) -> TokenTiles:
    """The table of tokens: measured, checked, then written."""
    from maskplan.lower import token_tiles_kernel as kernels

    total = source.own[0] * source.own[1] * source.tiles
    report = np.zeros((total, 4), dtype=np.int64)
    faults: dict[int, Array] = {}

    def measure(start: int, stop: int) -> None:
        bad = np.full(5, -1, dtype=np.int64)
        kernels.measure(
            source.lists, source.plan, source.geometry, start, stop, source.scratch(), report, bad
        )
        if bad[0] >= 0:
            faults[start] = bad

    run_ranges(measure, total)
    if faults:
        _raise_bad(source, faults[min(faults)])
    check_tiles(source, report, max_coverage)
    width = width_of(report)
    table = np.full((total, width), FILL, dtype=np.int32)
    apart = source.policy == "union" and not report[:, 3].all()
    bits = np.zeros((total if apart else 0, source.tile_rows, width // 32), dtype=np.int32)

    def fill(start: int, stop: int) -> None:
        kernels.fill(
            source.lists, source.plan, source.geometry, start, stop, source.scratch(), table, bits
        )

    run_ranges(fill, total)
    return of_table(source, report, table, bits if apart else None, max_coverage)


def width_of(report: Array) -> int:
    """Slots of a list: the longest, rounded up to 128, and at least that."""
    return max(-(-int(report[:, 0].max(initial=0)) // KEYS), 1) * KEYS


def _raise_bad(source: TileSource, bad: Array) -> NoReturn:
    b, h, g, row, slot = (int(x) for x in bad)
    head = h * source.own[2] + g
    got, seen = int(source.given[b, head, row, slot]), int(source.lists[b, h, g, row, slot])
    low = 0 if got == seen else b * source.seqlen_k
    raise PlanError(
        sentence(
            what="index out of range",
            where=f"indices[b={b}, h={head}, row={row}, slot={slot}]",
            got=got,
            wanted=f"{low} <= token < {low + source.seqlen_k}, or -1 for none",
            remedy="mark unused slots with -1, and count keys from the start of their own batch",
        )
    )


def check_tiles(shape: TileShape, report: Array, max_coverage: float) -> None:
    """Refuse differing queries ("uniform"), and unions of them that cover too much ("union").

    Args:
        shape: how the tiles were cut.
        report: int64 [tiles, 4]: see `token_tiles_kernel.measure`.
        max_coverage: share of the keys.

    Raises:
        PlanError: naming the first such tile.
    """
    differ = report[:, 3] == 0
    if shape.policy == "union":
        differ &= report[:, 0] > max_coverage * shape.seqlen_k
    if shape.policy == "representative" or not differ.any():
        return
    tile = int(differ.argmax())
    rest, m = divmod(tile, shape.tiles)
    b, h = divmod(rest, shape.own[1])
    rows = min(shape.per_tile, shape.seqlen_q - m * shape.per_tile) * shape.own[2]
    union, wanted = int(report[tile, 0]), int(report[tile, 1])
    got = f"{union} keys in their union, {wanted / rows:.1f} a query"
    if shape.policy == "uniform":
        raise_differ(m, b, h, shape.per_tile, shape.seqlen_q, got)
    raise PlanError(
        sentence(
            what="union of a tile covers most keys",
            where=tile_name(m, b, h, shape.per_tile, shape.seqlen_q),
            got=f"{got}: {union / shape.seqlen_k:.0%} of {shape.seqlen_k}, "
            f"{rows * union / wanted:.1f} pairs visited for each one wanted",
            wanted=f"at most max_coverage={max_coverage:.0%} of the keys",
            remedy="use blocks, attention(q, k, v, plan) with a Plan from from_topk, or let "
            "related queries share lists; max_coverage=1.0 takes it all the same",
        )
    )


def of_table(
    shape: TileShape, report: Array, table: Array, bits: Array | None, max_coverage: float
) -> TokenTiles:
    """Tiles on the CPU from what was measured and written.

    Args:
        shape: how the tiles were cut.
        report: int64 [tiles, 4]: see `token_tiles_kernel.measure`.
        table: int32 [tiles, L].
        bits: int32 [tiles, rows, L / 32], or None where every row sees every entry.
        max_coverage: share of the keys.
    """
    leading = (*shape.own[:2], shape.tiles)
    count = torch.from_numpy(report[:, 0].astype(np.int32)).view(leading)
    row_bits = None if bits is None else torch.from_numpy(bits).view(*leading, *bits.shape[1:])

    def broad(tensor: Tensor) -> Tensor:
        return tensor.expand(*shape.shape, *tensor.shape[2:])

    blocks = _logical(count, table.shape[1] // KEYS, row_bits, shape)
    lists: dict[str, Any] = {
        name: broad(getattr(blocks, name))
        for name in (
            "mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx", "mask_tile_id",
        )
    }  # fmt: skip
    copies = shape.shape[0] // shape.own[0] * (shape.shape[1] // shape.own[1])
    copies *= shape.group // shape.own[2]
    tokens = torch.full((shape.tiles,), shape.per_tile, device="cpu")
    if shape.tiles:
        tokens[-1] = shape.seqlen_q - (shape.tiles - 1) * shape.per_tile
    visited = int((count.long() * tokens).sum()) * shape.own[2]
    return TokenTiles(
        seqlen_q=shape.seqlen_q,
        seqlen_k=shape.seqlen_k,
        tile_rows=shape.tile_rows,
        rows_per_token=shape.group,
        lists_per_token=shape.own[2],
        policy=shape.policy,
        max_coverage=max_coverage,
        tile_token_indices=broad(torch.from_numpy(table).view(*leading, table.shape[1])),
        valid_counts=broad(count),
        blocks=replace(blocks, **lists),
        row_bits=None if row_bits is None else broad(row_bits),
        plan=None,
        wanted_pairs=copies * int(report[:, 1].sum()),
        kept_pairs=copies * int(report[:, 2].sum()),
        visited_pairs=copies * visited,
    )


def _logical(
    count: Tensor, width: int, row_bits: Tensor | None, shape: TileShape
) -> BlockSparseTensors:
    """Lists of the logical blocks of each tile: full where no row needs a mask."""
    block = torch.arange(width, dtype=torch.int32, device="cpu")
    listed = block * KEYS < count[..., None]
    full = (block + 1) * KEYS <= count[..., None]
    if row_bits is not None:
        words = row_bits.view(*row_bits.shape[:4], width, KEYS // 32)
        every = (words == -1).all(5)  # [b, h, M, rows, blocks]
        row = torch.arange(shape.tiles * shape.tile_rows, device="cpu")
        beyond = (row >= shape.seqlen_q * shape.group).view(shape.tiles, shape.tile_rows, 1)
        full = full & (every | beyond).all(3)
    mask_cnt, mask_idx = _listed(listed & ~full)
    full_cnt, full_idx = _listed(full)
    return BlockSparseTensors(
        mask_block_cnt=mask_cnt,
        mask_block_idx=mask_idx,
        full_block_cnt=full_cnt,
        full_block_idx=full_idx,
        mask_tile_id=torch.full_like(mask_idx, FILL),
        tiles=torch.empty(0, shape.tile_rows, KEYS // 32, dtype=torch.int32, device="cpu"),
        block_size=(shape.tile_rows, KEYS),
    )


def _listed(there: Tensor) -> tuple[Tensor, Tensor]:
    """(counts, padded lists) of bool [..., N], as wide as the longest and at least 1."""
    count = there.sum(-1, dtype=torch.int32)
    width = max(int(count.max()) if count.numel() else 0, 1)
    place = torch.arange(there.shape[-1], dtype=torch.int32, device="cpu")
    slots = torch.where(there, place, there.shape[-1]).sort(-1).values[..., :width]
    return count, slots.masked_fill(slots == there.shape[-1], FILL).to(torch.int32)


def plan_of(tiles: TokenTiles) -> Plan:
    """`TokenTiles.to_plan` of a table, on its device."""
    table = tiles.tile_token_indices
    assert table is not None, "the form of tokens"
    size = (tiles.tile_tokens, KEYS)
    if tiles.row_bits is None:
        return from_topk(
            table, tiles.seqlen_k, block_size=size, rows="block", seqlen_q=tiles.seqlen_q
        )
    batch, heads, number, width = table.shape
    lists = tiles.lists_per_token
    own = tiles.row_bits[:, :, :, :: tiles.rows_per_token // lists]
    bit = torch.arange(32, dtype=torch.int32, device=own.device)
    seen = (own[..., None] >> bit & 1).flatten(-2).bool()  # `unpack` would wait for a GPU
    kept = torch.where(seen, table[:, :, :, None], FILL)
    kept = kept.reshape(batch, heads, number * tiles.tile_tokens, lists, width)
    by_head = kept[:, :, : tiles.seqlen_q].transpose(2, 3).flatten(1, 2)
    return from_topk(by_head, tiles.seqlen_k, block_size=size)
