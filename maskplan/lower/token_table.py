"""The table of tokens of `TokenTiles`: measured, checked, then written."""

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.lower.token_checks import raise_differ, tile_name
from maskplan.lower.token_source import Array, TileSource
from maskplan.lower.token_tiles import KEYS, TokenTiles
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
    _check_tiles(source, report, max_coverage)
    longest = int(report[:, 0].max(initial=0))
    width = max(-(-longest // KEYS), 1) * KEYS
    table = np.full((total, width), FILL, dtype=np.int32)
    apart = source.policy == "union" and not report[:, 3].all()
    bits = np.zeros((total if apart else 0, source.tile_rows, width // 32), dtype=np.int32)

    def fill(start: int, stop: int) -> None:
        kernels.fill(
            source.lists, source.plan, source.geometry, start, stop, source.scratch(), table, bits
        )

    run_ranges(fill, total)
    return _of_table(source, report, table, bits if apart else None)


def _raise_bad(source: TileSource, bad: Array) -> NoReturn:
    b, h, g, row, slot = (int(x) for x in bad)
    raise PlanError(
        sentence(
            what="index out of range",
            where=f"indices[b={b}, h={h * source.own[2] + g}, row={row}, slot={slot}]",
            got=int(source.lists[b, h, g, row, slot]),
            wanted=f"0 <= token < {source.seqlen_k}, or -1 for none",
            remedy="mark unused slots with -1, and count keys from the start of their own batch",
        )
    )


def _check_tiles(source: TileSource, report: Array, max_coverage: float) -> None:
    """Refuse differing queries ("uniform"), and unions of them that cover too much ("union")."""
    differ = report[:, 3] == 0
    if source.policy == "union":
        differ &= report[:, 0] > max_coverage * source.seqlen_k
    if source.policy == "representative" or not differ.any():
        return
    tile = int(differ.argmax())
    rest, m = divmod(tile, source.tiles)
    b, h = divmod(rest, source.own[1])
    rows = min(source.per_tile, source.seqlen_q - m * source.per_tile) * source.own[2]
    union, wanted = int(report[tile, 0]), int(report[tile, 1])
    got = f"{union} keys in their union, {wanted / rows:.1f} a query"
    if source.policy == "uniform":
        raise_differ(m, b, h, source.per_tile, source.seqlen_q, got)
    raise PlanError(
        sentence(
            what="union of a tile covers most keys",
            where=tile_name(m, b, h, source.per_tile, source.seqlen_q),
            got=f"{got}: {union / source.seqlen_k:.0%} of {source.seqlen_k}, "
            f"{rows * union / wanted:.1f} pairs visited for each one wanted",
            wanted=f"at most max_coverage={max_coverage:.0%} of the keys",
            remedy="use blocks, attention(q, k, v, plan) with a Plan from from_topk, or let "
            "related queries share lists; max_coverage=1.0 takes it all the same",
        )
    )


def _of_table(source: TileSource, report: Array, table: Array, bits: Array | None) -> TokenTiles:
    leading = (*source.own[:2], source.tiles)
    count = torch.from_numpy(report[:, 0].astype(np.int32)).view(leading)
    row_bits = None if bits is None else torch.from_numpy(bits).view(*leading, *bits.shape[1:])

    def broad(tensor: Tensor) -> Tensor:
        return tensor.expand(*source.shape, *tensor.shape[2:])

    blocks = _logical(count, table.shape[1] // KEYS, row_bits, source)
    lists: dict[str, Any] = {
        name: broad(getattr(blocks, name))
        for name in (
            "mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx", "mask_tile_id",
        )
    }  # fmt: skip
    copies = source.shape[0] // source.own[0] * (source.shape[1] // source.own[1])
    copies *= source.group // source.own[2]
    tokens = torch.full((source.tiles,), source.per_tile, device="cpu")
    if source.tiles:
        tokens[-1] = source.seqlen_q - (source.tiles - 1) * source.per_tile
    visited = int((count.long() * tokens).sum()) * source.own[2]
    return TokenTiles(
        seqlen_q=source.seqlen_q,
        seqlen_k=source.seqlen_k,
        tile_rows=source.tile_rows,
        rows_per_token=source.group,
        lists_per_token=source.own[2],
        policy=source.policy,
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
    count: Tensor, width: int, row_bits: Tensor | None, source: TileSource
) -> BlockSparseTensors:
    """Lists of the logical blocks of each tile: full where no row needs a mask."""
    block = torch.arange(width, dtype=torch.int32, device="cpu")
    listed = block * KEYS < count[..., None]
    full = (block + 1) * KEYS <= count[..., None]
    if row_bits is not None:
        words = row_bits.view(*row_bits.shape[:4], width, KEYS // 32)
        every = (words == -1).all(5)  # [b, h, M, rows, blocks]
        row = torch.arange(source.tiles * source.tile_rows, device="cpu")
        beyond = (row >= source.seqlen_q * source.group).view(source.tiles, source.tile_rows, 1)
        full = full & (every | beyond).all(3)
    mask_cnt, mask_idx = _listed(listed & ~full)
    full_cnt, full_idx = _listed(full)
    return BlockSparseTensors(
        mask_block_cnt=mask_cnt,
        mask_block_idx=mask_idx,
        full_block_cnt=full_cnt,
        full_block_idx=full_idx,
        mask_tile_id=torch.full_like(mask_idx, FILL),
        tiles=torch.empty(0, source.tile_rows, KEYS // 32, dtype=torch.int32, device="cpu"),
        block_size=(source.tile_rows, KEYS),
    )


def _listed(there: Tensor) -> tuple[Tensor, Tensor]:
    """(counts, padded lists) of bool [..., N], as wide as the longest and at least 1."""
    count = there.sum(-1, dtype=torch.int32)
    width = max(int(count.max()) if count.numel() else 0, 1)
    place = torch.arange(there.shape[-1], dtype=torch.int32, device="cpu")
    slots = torch.where(there, place, there.shape[-1]).sort(-1).values[..., :width]
    return count, slots.masked_fill(slots == there.shape[-1], FILL).to(torch.int32)
