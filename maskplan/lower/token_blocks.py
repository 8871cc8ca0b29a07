"""`TokenTiles` in the form of blocks: lists of whole blocks of a plan on any device."""

from dataclasses import replace

import torch

from maskplan.lower.padded_lists import forward_tensors
from maskplan.lower.token_checks import raise_differ
from maskplan.lower.token_tiles import KEYS, NOT_COUNTED, TokenTiles
from maskplan.pairs import kept_pairs, visited_pairs
from maskplan.plan import Plan


def of_blocks(
    plan: Plan,
    tile_rows: int,
    group: int,
    policy: str,
    max_coverage: float,
    *,
    width: str | int = "compact",
) -> TokenTiles:
    """The form of blocks; `plan` is in blocks of (tokens of a tile, 128).

    Args:
        plan: of a device plan nothing is checked, and pairs are not counted.
        tile_rows: packed rows of a tile.
        group: rows of a token.
        policy: "uniform" refuses an exact plan with partial blocks.
        max_coverage: goes into the result.
        width: slots of a list, a number for a device plan.

    Raises:
        PlanError: if queries of a tile differ ("uniform"), naming the first such tile.
    """
    if policy == "uniform" and plan.tile_id is not None and plan.status is None:
        _refuse_partial(plan)
    lists = replace(forward_tensors(plan, width=width), block_size=(tile_rows, KEYS))
    listed = lists.mask_block_cnt + lists.full_block_cnt
    last = plan.geometry.num_k_blocks - 1
    ends = (lists.mask_block_idx == last).any(-1) | (lists.full_block_idx == last).any(-1)
    missing = (last + 1) * KEYS - plan.seqlen_k
    kept, visited = NOT_COUNTED, NOT_COUNTED
    if plan.status is None:
        kept, visited = kept_pairs(plan) * group, visited_pairs(plan) * group
    return TokenTiles(
        seqlen_q=plan.seqlen_q,
        seqlen_k=plan.seqlen_k,
        tile_rows=tile_rows,
        rows_per_token=group,
        lists_per_token=1,
        policy=policy,
        max_coverage=max_coverage,
        tile_token_indices=None,
        valid_counts=(listed * KEYS - ends * missing * (last >= 0)).to(torch.int32),
        blocks=lists,
        row_bits=None,
        plan=plan,
        wanted_pairs=kept,
        kept_pairs=kept,
        visited_pairs=visited,
        status=plan.status,
    )


def _refuse_partial(plan: Plan) -> None:
    assert plan.tile_id is not None
    entry = int((plan.tile_id >= 0).nonzero()[0])
    line = int((plan.row_ptr <= entry).sum()) - 1
    pattern, tile = divmod(line, plan.axes.rows)
    b, h = (plan.pattern_id == pattern).nonzero()[0].tolist()
    got = f"KV block {int(plan.col[entry])}"
    raise_differ(tile, b, h, plan.block_size[0], plan.seqlen_q, got)
