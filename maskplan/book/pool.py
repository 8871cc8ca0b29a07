"""Patterns of many plans in one pool, and plans taken out of it again."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from maskplan.book.entries import check_plan
from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan


def pooled(choices: Sequence[Plan]) -> tuple[Plan, list[Tensor]]:
    """(all patterns of all choices in one plan, for each choice its heads' patterns there)."""
    geometry = check_plan(choices[0], "choices[0]").geometry
    row_ptr, cols, contents, tiles, ids = (
        [torch.zeros(1, dtype=torch.int64, device="cpu")],
        [],
        [],
        [],
        [],
    )
    blocks = patterns = tile_count = 0
    for number, plan in enumerate(choices):
        if check_plan(plan, f"choices[{number}]").geometry != geometry:
            raise PlanError(
                sentence(
                    what="plans differ in geometry",
                    where=f"plans, distinct plan {number}",
                    got=str(plan.geometry),
                    wanted=f"{geometry}, as the first",
                    remedy="reblock or rebuild them for one geometry, or keep two books",
                )
            )
        row_ptr.append(plan.row_ptr[1:] + blocks)
        cols.append(plan.col)
        own = torch.full_like(plan.col, -1) if plan.tile_id is None else plan.tile_id
        contents.append(torch.where(own >= 0, own + tile_count, own))
        tiles.append(plan.tiles)
        ids.append(plan.pattern_id[0] + patterns)
        blocks += plan.num_blocks
        patterns += plan.num_patterns if geometry.num_q_blocks else 0  # no rows: one pattern
        tile_count += plan.num_tiles
    pool = Plan(
        geometry=geometry,
        pattern_id=torch.zeros((1, 1), dtype=torch.int32, device="cpu"),
        row_ptr=torch.cat(row_ptr),
        col=torch.cat(cols),
        tile_id=torch.cat(contents),
        tiles=torch.cat(tiles),
    )
    return pool, ids


def gathered(plans: Plan, ids: Tensor) -> Plan:
    """The canonical plan of `ids` int32 [1, heads], without the patterns that these do not use."""
    rows = plans.axes.rows
    used, place = torch.unique(ids, return_inverse=True)
    row_ptr, parts = [torch.zeros(1, dtype=torch.int64, device="cpu")], []
    total = 0
    for number in used.tolist() if rows else []:
        bounds = plans.row_ptr[number * rows : (number + 1) * rows + 1]
        row_ptr.append(bounds[1:] - bounds[0] + total)
        parts.append(slice(int(bounds[0]), int(bounds[-1])))
        total += int(bounds[-1] - bounds[0])
    none = plans.col[:0]
    tile_id, tiles = None, plans.tiles[:0]
    if plans.tile_id is not None:
        content = torch.cat([plans.tile_id[part] for part in parts] or [none])
        kept, numbers = torch.unique(content, return_inverse=True)
        has_full = int(len(kept) > 0 and int(kept[0]) < 0)
        tile_id, tiles = numbers.to(torch.int32) - has_full, plans.tiles[kept[has_full:].long()]
    return replace(
        plans,
        pattern_id=place.to(torch.int32),
        row_ptr=torch.cat(row_ptr),
        col=torch.cat([plans.col[part] for part in parts] or [none]),
        tile_id=tile_id,
        tiles=tiles,
        provenance=None,
    ).canonical()
