"""Ways into `TokenTiles`, from top-k lists and from plans, and the form that fits them."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskplan.build.topk import from_topk
from maskplan.device.move import on_gpu
from maskplan.lower.target import Target, target_of
from maskplan.lower.token_blocks import of_blocks
from maskplan.lower.token_checks import TILE_ROWS, check_options, lists_per_token, raise_no_blocks
from maskplan.lower.token_input import TileLists, TileOptions, read_arguments
from maskplan.lower.token_source import TileSource, no_plan, scratch_of
from maskplan.lower.token_table import tables
from maskplan.lower.token_tiles import KEYS, MAX_COVERAGE, TokenTiles
from maskplan.plan import Plan, require_exact
from maskplan.threads import run_ranges

_WHERE = "token_tiles"


def whole_blocks(indices: Tensor, seqlen_k: int) -> bool:
    """Whether every list is made of whole aligned blocks of 128 keys: measured, key by key.

    -1, duplicates and order do not matter; the ragged last block is whole with the keys there are;
    an index out of range makes it False, and so does one block that lacks a key. Stops at the first
    list that is not.

    Args:
        indices: int32 or int64 [batch, heads, rows, topk] on the CPU, any strides.
        seqlen_k: SK, in tokens.
    """
    from maskplan.lower.token_tiles_kernel import first_broken

    lists = indices.numpy()
    broken: list[int] = []

    def work(start: int, stop: int) -> None:
        bits, touched, _ = scratch_of(seqlen_k, 1)
        step = 256  # lists read before looking whether another thread has found one
        for first in range(start, stop, step):
            if broken:
                return
            found = first_broken(lists, seqlen_k, first, min(first + step, stop), bits, touched)
            if found >= 0:
                broken.append(int(found))

    run_ranges(work, lists.shape[0] * lists.shape[1] * lists.shape[2])
    return not broken


def of_topk(indices: Tensor, seqlen_k: int, **given: Any) -> TokenTiles:
    """`TokenTiles.from_topk`."""
    lists, options = read_arguments(indices, seqlen_k, **given)
    if options.form == "blocks" and lists.per_head > 1:
        raise_no_blocks(
            "heads of a tile have lists of their own",
            f"{lists.per_head} lists a token with form='blocks'",
            "one list for the heads packed into a tile",
        )
    if on_gpu(indices):
        from maskplan.lower.token_device import tiles_on_device

        return tiles_on_device(lists, options)
    return _on_cpu(lists, options)


def _on_cpu(lists: TileLists, options: TileOptions) -> TokenTiles:
    if lists.per_head > 1 and lists.groups_alike():
        lists = lists.first_of_groups()
    local = lists.local()
    policy, tile_rows, group = options.policy, options.tile_rows, options.group
    b, h, per_head = lists.own
    form = options.form
    if form == "auto":
        whole = per_head == 1 and whole_blocks(local, lists.seqlen_k)
        form = "blocks" if whole else "tokens"
    if form == "blocks" and per_head == 1:
        kept = local.expand(*lists.shape, *local.shape[2:])
        plan = from_topk(kept, lists.seqlen_k, block_size=(options.tile_tokens, KEYS))
        if plan.tile_id is None or policy != "representative":
            return of_blocks(plan, tile_rows, group, policy, options.max_coverage)
        if options.form == "blocks":
            raise_no_blocks(
                "queries of a tile select different blocks",
                "policy='representative' with form='blocks'",
                "one list of blocks for all queries of a tile",
            )
    return tables(
        TileSource(
            lists=local.view(b, h, per_head, *local.shape[2:]).numpy(),
            given=lists.indices.numpy(),
            plan=no_plan(options.tile_tokens),
            own=lists.own,
            shape=lists.shape,
            seqlen_q=lists.seqlen_q,
            seqlen_k=lists.seqlen_k,
            tile_rows=tile_rows,
            group=group,
            policy=policy,
        ),
        options.max_coverage,
    )


def of_plan(
    plan: Plan,
    target: Target | str,
    *,
    policy: str = "uniform",
    tile_rows: int | None = None,
    kv_heads: int | None = None,
    max_coverage: float = MAX_COVERAGE,
) -> TokenTiles:
    """`Plan.token_tiles`."""
    require_exact(plan, _WHERE)
    target = target_of(target, _WHERE)
    group = target.rows_per_token
    if tile_rows is None:
        tile_rows = TILE_ROWS[target.head_dim <= 192 and plan.seqlen_q * group > TILE_ROWS[0]]
    check_options(policy, tile_rows, group, max_coverage)
    per_head = lists_per_token(plan.heads, group, kv_heads)
    patterns = _grouped(plan.pattern_id, per_head)
    if bool((patterns == patterns[:, :, :1]).all()):
        patterns, per_head = patterns[:, :, :1], 1
    shape = (patterns.shape[0], patterns.shape[1])
    tiled = plan.reblock((tile_rows // group, KEYS))
    whole = per_head == 1 and plan.reblock((1, KEYS)).tile_id is None
    if whole and (tiled.tile_id is None or policy != "representative"):
        kept = patterns[:, :, 0].contiguous()
        shared = replace(tiled, pattern_id=_renumbered(tiled, kept, plan))
        return of_blocks(shared.canonical(), tile_rows, group, policy, max_coverage)
    numbers = _grouped(_renumbered(tiled, patterns.flatten(1), plan), per_head)
    numbers = numbers[:1] if bool((numbers == numbers[:1]).all()) else numbers
    numbers = numbers[:, :1] if bool((numbers == numbers[:, :1]).all()) else numbers
    ids = np.empty(0, np.int32) if tiled.tile_id is None else tiled.tile_id.numpy()
    tiles = tiled.tiles.numpy()
    none = np.empty((0,) * 5, dtype=np.int32)
    return tables(
        TileSource(
            lists=none,
            given=none,
            plan=(
                numbers.flatten(1).contiguous().numpy(), tiled.row_ptr.numpy(), tiled.col.numpy(),
                ids, tiles, tiled.geometry.num_q_blocks,
            ),
            own=(numbers.shape[0], numbers.shape[1], per_head),
            shape=shape,
            seqlen_q=plan.seqlen_q,
            seqlen_k=plan.seqlen_k,
            tile_rows=tile_rows,
            group=group,
            policy=policy,
        ),
        max_coverage,
    )  # fmt: skip


def _grouped(tensor: Tensor, group: int) -> Tensor:
    """[batch, heads, ...] as a view [batch, heads / group, group, ...]."""
    batch, heads, *rest = tensor.shape
    return tensor.view(batch, heads // group, group, *rest)


def _renumbered(tiled: Plan, wanted: Tensor, plan: Plan) -> Tensor:
    """Pattern numbers of `plan` as those of `tiled`, which is the same in other blocks."""
    table = torch.zeros(plan.num_patterns, dtype=torch.int32, device="cpu")
    table[plan.pattern_id.flatten().long()] = tiled.pattern_id.flatten()
    return table[wanted.long()]
