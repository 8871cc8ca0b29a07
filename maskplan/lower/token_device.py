"""`TokenTiles` made on a GPU, and moved between devices."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from maskplan.build.topk import from_topk
from maskplan.device.place import placed
from maskplan.device.status import MUCH_COVERED, PARTIAL_BLOCK, TILES_DIFFER, raise_faults
from maskplan.device.token_tables import TokenLists, token_tables
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.lower.token_blocks import of_blocks
from maskplan.lower.token_checks import raise_dropped, raise_no_blocks
from maskplan.lower.token_input import TileLists, TileOptions
from maskplan.lower.token_source import TileShape
from maskplan.lower.token_table import check_tiles, of_table, width_of
from maskplan.lower.token_tiles import KEYS, NOT_COUNTED, TokenTiles
from maskplan.plan import Plan


def tiles_on_device(lists: TileLists, options: TileOptions) -> TokenTiles:
    """`TokenTiles.from_topk` of lists on a GPU; only form="auto" waits for it."""
    form = options.form
    if form == "auto":
        if lists.per_head > 1 and lists.groups_alike():
            lists = lists.first_of_groups()
        form = "blocks" if lists.per_head == 1 and _fits_blocks(lists, options) else "tokens"
    elif form == "blocks" and options.policy == "representative":
        raise_no_blocks(
            "form is not known without waiting",
            "policy='representative' with form='blocks' on a GPU",
            "a list of tokens, or blocks that all queries of a tile share",
        )
    return _blocks(lists, options) if form == "blocks" else _tokens(lists, options)


def _fits_blocks(lists: TileLists, options: TileOptions) -> bool:
    """Whether the form of blocks is taken, as on the CPU. Waits for the device.

    A first row in place of all ("representative") takes blocks only where rows are alike as well:
    where each block of the tile is full.
    """
    tokens = options.tile_tokens if options.policy == "representative" else 1
    status = _plan(lists, tokens, whole=True).status
    return status is not None and not int(status)


def _plan(lists: TileLists, tokens: int, *, whole: bool) -> Plan:
    """The device plan of lists in blocks of (tokens, 128)."""
    indices, lengths = lists.indices, lists.lengths
    return from_topk(
        indices.expand(*lists.shape, *indices.shape[2:]),
        lists.seqlen_k,
        block_size=(tokens, KEYS),
        base="global" if lists.is_global else "local",
        lengths=None if lengths is None else lengths.expand(*lists.shape, -1),
        whole=whole,
    )


def _blocks(lists: TileLists, options: TileOptions) -> TokenTiles:
    whole = options.policy != "union"
    plan = _plan(lists, options.tile_tokens, whole=whole)
    topk = lists.indices.shape[3]
    most = topk // KEYS + 1 if whole else topk * options.tile_tokens
    width = max(min(plan.geometry.num_k_blocks, most), 1)
    return of_blocks(
        plan, options.tile_rows, options.group, options.policy, options.max_coverage, width=width
    )


def _tokens(lists: TileLists, options: TileOptions) -> TokenTiles:
    made = token_tables(
        TokenLists(
            indices=lists.indices,
            lengths=lists.lengths,
            is_global=lists.is_global,
            seqlen_k=lists.seqlen_k,
            group=lists.per_head,
            tile_tokens=options.tile_tokens,
            tile_rows=options.tile_rows,
            policy=options.policy,
            most=int(options.max_coverage * lists.seqlen_k),
            capacity=options.capacity,
        )
    )

    def broad(tensor: Tensor) -> Tensor:
        return tensor.expand(*lists.shape, *tensor.shape[2:])

    none = torch.full((1, 1, 1, 1), FILL, dtype=torch.int32, device=made.table.device)
    return TokenTiles(
        seqlen_q=lists.seqlen_q,
        seqlen_k=lists.seqlen_k,
        tile_rows=options.tile_rows,
        rows_per_token=options.group,
        lists_per_token=lists.per_head,
        policy=options.policy,
        max_coverage=options.max_coverage,
        tile_token_indices=broad(made.table),
        valid_counts=broad(made.counts),
        blocks=BlockSparseTensors(
            mask_block_cnt=broad(made.mask_cnt),
            mask_block_idx=broad(made.mask_idx),
            full_block_cnt=broad(made.full_cnt),
            full_block_idx=broad(made.full_idx),
            mask_tile_id=none.expand(*lists.shape, *made.mask_idx.shape[2:]),
            tiles=torch.empty(
                0, options.tile_rows, KEYS // 32, dtype=torch.int32, device=made.table.device
            ),
            block_size=(options.tile_rows, KEYS),
        ),
        row_bits=None if made.row_bits is None else broad(made.row_bits),
        plan=None,
        wanted_pairs=NOT_COUNTED,
        kept_pairs=NOT_COUNTED,
        visited_pairs=NOT_COUNTED,
        status=made.status,
        report=made.report,
    )


def to_device(tiles: TokenTiles, device: torch.device | str) -> TokenTiles:
    """`TokenTiles.to`."""
    place = placed(device)
    if place == tiles.device:
        return tiles
    if place.type == "cpu":
        return to_cpu(tiles)
    there = _moved(tiles, place)
    if tiles.plan is None:
        return there
    plan = tiles.plan.to(place)
    return replace(
        there, plan=plan, status=plan.status, blocks=replace(there.blocks, tiles=plan.tiles)
    )


def _moved(tiles: TokenTiles, place: torch.device) -> TokenTiles:
    """All tensors but those of `plan` on a device; what is broadcast there stays so."""

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        once = [slice(1) if stride == 0 else slice(None) for stride in value.stride()]
        return value[tuple(once)].to(place).expand(value.shape)

    def all_there(value: Any, skip: str = "") -> dict[str, Any]:
        names = [field.name for field in fields(value)]
        return {name: there(getattr(value, name)) for name in names if name != skip}

    lists = replace(tiles.blocks, **all_there(tiles.blocks))
    return replace(tiles, **{**all_there(tiles, skip="plan"), "blocks": lists})


def to_cpu(tiles: TokenTiles) -> TokenTiles:
    """`TokenTiles.cpu`."""
    validate(tiles)
    if tiles.plan is not None:
        if tiles.plan.status is None:
            return tiles
        options = (tiles.tile_rows, tiles.rows_per_token, tiles.policy, tiles.max_coverage)
        return of_blocks(tiles.plan.cpu(), *options)
    if tiles.report is None:
        if tiles.device.type == "cpu":
            return tiles
        return replace(_moved(tiles, torch.device("cpu")), status=None)
    shape, table = _shape(tiles, tiles.report), tiles.tile_token_indices
    assert table is not None
    report = tiles.report.flatten(0, 2).cpu().numpy()
    width, (b, h, _) = width_of(report), shape.own
    trimmed = table[:b, :h, :, :width].flatten(0, 2).contiguous().cpu().numpy()
    bits = None
    if tiles.row_bits is not None and not report[:, 3].all():
        own = tiles.row_bits[:b, :h, :, :, : width // 32]
        bits = own.flatten(0, 2).contiguous().cpu().numpy()
    return of_table(shape, report, trimmed, bits, tiles.max_coverage)


def validate(tiles: TokenTiles) -> None:
    """`TokenTiles.validate`."""
    if tiles.status is None:
        return
    bits = int(tiles.status)
    if bits & PARTIAL_BLOCK:
        raise_dropped(bits)
    by_tile = TILES_DIFFER | MUCH_COVERED
    if bits & ~by_tile:
        raise_faults(tiles.status, "tiles'")
    if bits and tiles.report is not None:
        report = tiles.report.flatten(0, 2).cpu().numpy()
        check_tiles(_shape(tiles, tiles.report), report, tiles.max_coverage)


def _shape(tiles: TokenTiles, report: Tensor) -> TileShape:
    return TileShape(
        own=(report.shape[0], report.shape[1], tiles.lists_per_token),
        shape=(tiles.batch, tiles.heads),
        seqlen_q=tiles.seqlen_q,
        seqlen_k=tiles.seqlen_k,
        tile_rows=tiles.tile_rows,
        group=tiles.rows_per_token,
        policy=tiles.policy,
    )
