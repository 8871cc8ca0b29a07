"""Plans made and read by nested loops: what maskplan is judged by. It shares no code with it.

It uses the field names of `maskplan.Plan`, and nothing of how maskplan fills or reads them.
"""

import numpy as np
import torch
from torch import Tensor

import maskplan as mp

Pairs = set[tuple[int, int, int, int]]


def dense_of_pairs(pairs: Pairs, shape: tuple[int, int, int, int]) -> Tensor:
    """bool [batch, heads, SQ, SK] that is True at `pairs` of (b, h, q, k)."""
    dense = torch.zeros(shape, dtype=torch.bool)
    for b, h, q, k in pairs:
        dense[b, h, q, k] = True
    return dense


def pairs_of_plan(plan: mp.Plan) -> Pairs:
    """Every (b, h, q, k) that `plan` keeps, read from its arrays one pair at a time."""
    bq, _ = plan.block_size
    rows = -(-plan.seqlen_q // bq)
    found: Pairs = set()
    for b in range(plan.pattern_id.shape[0]):
        for h in range(plan.pattern_id.shape[1]):
            pattern = int(plan.pattern_id[b, h])
            for row in range(rows):
                start, stop = plan.row_ptr[pattern * rows + row : pattern * rows + row + 2].tolist()
                for entry in range(start, stop):
                    _add_block(found, plan, (b, h), row, entry)
    return found


def _add_block(found: Pairs, plan: mp.Plan, head: tuple[int, int], row: int, entry: int) -> None:
    bq, bk = plan.block_size
    tile = -1 if plan.tile_id is None else int(plan.tile_id[entry])
    for i in range(bq):
        for j in range(bk):
            q, k = row * bq + i, int(plan.col[entry]) * bk + j
            if q >= plan.seqlen_q or k >= plan.seqlen_k:
                continue
            if tile < 0 or (int(plan.tiles[tile, i, j // 32]) >> (j % 32)) & 1:
                found.add((*head, q, k))


def plan_of_dense(
    dense: Tensor, pattern_id: Tensor, block_size: tuple[int, int], *, lists_all: bool = False
) -> mp.Plan:
    """A valid plan of the masks in `dense`, not canonical: each mask block has a tile of its own.

    Args:
        dense: bool [P, SQ, SK].
        pattern_id: int [batch, heads], into P.
        block_size: (bq, bk) in tokens.
        lists_all: list empty blocks too, and give complete ones a tile.
    """
    masks = dense.numpy()
    bq, bk = block_size
    row_ptr, col, tile_id, tiles = [0], [], [], []
    for mask in masks:
        for top in range(0, mask.shape[0], bq):
            for left in range(0, mask.shape[1], bk):
                block = mask[top : top + bq, left : left + bk]
                if not lists_all and not block.any():
                    continue
                col.append(left // bk)
                if block.all() and not lists_all:
                    tile_id.append(-1)
                    continue
                tile_id.append(len(tiles))
                tiles.append(_bits(block, bq, bk))
            row_ptr.append(len(col))
    geometry = mp.Geometry(seqlen_q=masks.shape[1], seqlen_k=masks.shape[2], block_size=block_size)
    words = np.array(tiles, dtype=np.uint32).reshape(len(tiles), bq, -(-bk // 32))
    return mp.Plan(
        geometry=geometry,
        pattern_id=pattern_id.to(torch.int32),
        row_ptr=torch.tensor(row_ptr, dtype=torch.int64),
        col=torch.tensor(col, dtype=torch.int32),
        tile_id=torch.tensor(tile_id, dtype=torch.int32),
        tiles=torch.from_numpy(words.view(np.int32)),
    )


def _bits(block: np.ndarray, bq: int, bk: int) -> np.ndarray:
    words = np.zeros((bq, -(-bk // 32)), dtype=np.uint32)
    for i, j in zip(*block.nonzero(), strict=True):
        words[i, j // 32] |= np.uint32(1) << np.uint32(j % 32)
    return words


def canonical_fault(plan: mp.Plan) -> str | None:
    """Why `plan` is not canonical, or None: invariants 7 to 10 by loops over everything."""
    bq, bk = plan.block_size
    rows = -(-plan.seqlen_q // bq)
    ids = [-1] * len(plan.col) if plan.tile_id is None else plan.tile_id.tolist()
    if plan.tile_id is not None and all(number < 0 for number in ids):
        return "tile_id is there and every block is full"
    for entry, number in enumerate(ids):
        if number < 0:
            continue
        line = int((plan.row_ptr <= entry).sum()) - 1
        height = min(bq, plan.seqlen_q - (line % rows) * bq)
        width = min(bk, plan.seqlen_k - int(plan.col[entry]) * bk)
        kept = sum(
            int(word & 0xFFFFFFFF).bit_count() for word in plan.tiles[number].flatten().tolist()
        )
        if kept in (0, height * width):
            return f"block {entry} keeps {kept} of {height * width} pairs"
    if list(dict.fromkeys(n for n in ids if n >= 0)) != list(range(len(plan.tiles))):
        return "tiles are not numbered by first use"
    if len({tuple(tile.flatten().tolist()) for tile in plan.tiles}) != len(plan.tiles):
        return "two tiles are equal"
    used = list(dict.fromkeys(plan.pattern_id.flatten().tolist()))
    if used != list(range(plan.num_patterns)):
        return "patterns are not numbered by first use"
    bounds = plan.row_ptr.tolist()
    lists = [
        tuple(
            tuple(zip(plan.col[a:b].tolist(), ids[a:b], strict=True))
            for a, b in zip(bounds[p * rows :][:rows], bounds[p * rows + 1 :][:rows], strict=True)
        )
        for p in range(plan.num_patterns)
    ]
    return "two patterns are equal" if len(set(lists)) != len(lists) else None


def assert_plan(plan: mp.Plan, expected: Tensor) -> None:
    """`plan` keeps exactly `expected`, bool [batch, heads, SQ, SK], and is valid and canonical."""
    shape = (plan.batch, plan.heads, plan.seqlen_q, plan.seqlen_k)
    assert shape == tuple(expected.shape), f"plan of shape {shape}, expected {expected.shape}"
    plan.validate()
    dense = plan.to_dense()
    wrong = (dense != expected).nonzero()
    assert not len(wrong), (
        f"{len(wrong)} pairs differ, first (b, h, q, k) = {wrong[0].tolist()}: "
        f"the plan says {bool(dense[tuple(wrong[0])])}"
    )
    fault = canonical_fault(plan)
    assert fault is None, fault
