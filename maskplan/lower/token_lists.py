"""Ways into `TokenTiles`, from top-k lists and from plans, and the form that fits them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.pattern_axes import require_heads
from maskplan.build.topk import from_topk
from maskplan.geometry import integer
from maskplan.lower.target import Target, check_target
from maskplan.lower.tensors import forward_tensors
from maskplan.lower.token_checks import TILE_ROWS, check_options, lists_per_token, raise_differ
from maskplan.lower.token_source import TileSource, no_plan, scratch_of
from maskplan.lower.token_table import tables
from maskplan.lower.token_tiles import KEYS, MAX_COVERAGE, TokenTiles
from maskplan.pairs import kept_pairs, visited_pairs
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


def of_topk(
    indices: Tensor, seqlen_k: int, *, policy: str, tile_rows: int, group: int,
    kv_heads: int | None, max_coverage: float,
) -> TokenTiles:  # fmt: skip
    """`TokenTiles.from_topk`."""
    index_tensor(indices, "indices")
    rank(indices, "indices", (4,), "[batch, heads, SQ, topk]", "add the axes of size 1")
    require_heads(indices, "indices")
    seqlen_k = integer(seqlen_k, "seqlen_k")
    check_options(policy, tile_rows, group, max_coverage)
    batch, given, seqlen_q, topk = indices.shape
    own = indices[:1] if indices.stride(0) == 0 else indices
    own = own[:, :1] if indices.stride(1) == 0 else own
    per_head = lists_per_token(given, group, kv_heads)
    heads = given // per_head
    if own.shape[1] == 1:
        per_head = 1
    lists = _grouped(own, per_head)
    if per_head > 1 and all(torch.equal(lists[:, :, 0], lists[:, :, g]) for g in range(per_head)):
        lists, per_head = lists[:, :, :1], 1
    if per_head == 1 and whole_blocks(lists[:, :, 0], seqlen_k):
        size = (tile_rows // group, KEYS)
        plan = from_topk(
            lists[:, :, 0].expand(batch, heads, seqlen_q, topk), seqlen_k, block_size=size
        )
        if plan.tile_id is None or policy != "representative":
            return _of_blocks(plan, tile_rows, group, policy)
    return tables(
        TileSource(
            lists=lists.numpy(),
            plan=no_plan(tile_rows // group),
            own=(lists.shape[0], lists.shape[1], per_head),
            shape=(batch, heads),
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            tile_rows=tile_rows,
            group=group,
            policy=policy,
        ),
        max_coverage,
    )


def of_plan(
    plan: Plan,
    target: Target,
    *,
    policy: str = "uniform",
    tile_rows: int | None = None,
    kv_heads: int | None = None,
    max_coverage: float = MAX_COVERAGE,
) -> TokenTiles:
    """`Plan.token_tiles`."""
    require_exact(plan, _WHERE)
    check_target(target, _WHERE)
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
        return _of_blocks(shared.canonical(), tile_rows, group, policy)
    numbers = _grouped(_renumbered(tiled, patterns.flatten(1), plan), per_head)
    numbers = numbers[:1] if bool((numbers == numbers[:1]).all()) else numbers
    numbers = numbers[:, :1] if bool((numbers == numbers[:, :1]).all()) else numbers
    ids = np.empty(0, np.int32) if tiled.tile_id is None else tiled.tile_id.numpy()
    tiles = tiled.tiles.numpy()
    return tables(
        TileSource(
            lists=np.empty((0,) * 5, dtype=np.int32),
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


def _of_blocks(plan: Plan, tile_rows: int, group: int, policy: str) -> TokenTiles:
    """The form of blocks; `plan` is in blocks of (tokens of a tile, 128), its lists whole."""
    if policy == "uniform" and plan.tile_id is not None:
        entry = int((plan.tile_id >= 0).nonzero()[0])
        line = int((plan.row_ptr <= entry).sum()) - 1
        pattern, tile = divmod(line, plan.axes.rows)
        b, h = (plan.pattern_id == pattern).nonzero()[0].tolist()
        raise_differ(
            tile, b, h, plan.block_size[0], plan.seqlen_q, f"KV block {int(plan.col[entry])}"
        )
    lists = replace(forward_tensors(plan), block_size=(tile_rows, KEYS))
    listed = lists.mask_block_cnt + lists.full_block_cnt
    last = plan.geometry.num_k_blocks - 1
    ends = (lists.mask_block_idx == last).any(-1) | (lists.full_block_idx == last).any(-1)
    missing = (last + 1) * KEYS - plan.seqlen_k
    kept = kept_pairs(plan) * group
    return TokenTiles(
        seqlen_q=plan.seqlen_q,
        seqlen_k=plan.seqlen_k,
        tile_rows=tile_rows,
        rows_per_token=group,
        lists_per_token=1,
        policy=policy,
        tile_token_indices=None,
        valid_counts=(listed * KEYS - ends * missing * (last >= 0)).to(torch.int32),
        blocks=lists,
        row_bits=None,
        plan=plan,
        wanted_pairs=kept,
        kept_pairs=kept,
        visited_pairs=visited_pairs(plan) * group,
    )


def _grouped(tensor: Tensor, group: int) -> Tensor:
    """[batch, heads, ...] as a view [batch, heads / group, group, ...]."""
    batch, heads, *rest = tensor.shape
    return tensor.view(batch, heads // group, group, *rest)


def _renumbered(tiled: Plan, wanted: Tensor, plan: Plan) -> Tensor:
    """Pattern numbers of `plan` as those of `tiled`, which is the same in other blocks."""
    table = torch.zeros(plan.num_patterns, dtype=torch.int32, device="cpu")
    table[plan.pattern_id.flatten().long()] = tiled.pattern_id.flatten()
    return table[wanted.long()]
