"""Tables of token tiles for the kernel: read back, they are the pairs that the tiles attend."""

import numpy as np
import pytest
import torch

import maskplan as mp
from kernels_sm100.config import TILE_Q
from maskplan.attention import sm100_gathered
from maskplan.attention.call import AttentionCall
from maskplan.bits import unpack

FULL, SKIP = -1, -2


def indices(shape, seqlen_k, *, share, pool=None, seed=0):
    """int32 [B, H, SQ, topk] with -1 anywhere: `share` queries share a list, or a pool of keys."""
    rng = np.random.default_rng(seed)
    found = np.full(shape, -1, dtype=np.int32)
    for lists in found.reshape(-1, *shape[2:]):
        for start in range(0, shape[2], share):
            keys = rng.permutation(seqlen_k)
            same = lists[start : start + share]
            if pool is None:
                same[:, : shape[3] - 1] = keys[: shape[3] - 1]
                same[:] = rng.permuted(same[0])
            else:
                for query in same:
                    query[:-1] = rng.permutation(keys[:pool])[: shape[3] - 1]
                    query[:] = rng.permutation(query)
    return torch.from_numpy(found)


def call_of(tiles, heads, kv_heads, batch=1):
    q = torch.zeros(batch, tiles.seqlen_q, heads, 64, dtype=torch.bfloat16)
    kv = torch.zeros(batch, tiles.seqlen_k, kv_heads, 64, dtype=torch.bfloat16)
    return AttentionCall(q=q, k=kv, v=kv, lowered=tiles.lower(), scale=1.0)


def dense(call, tables, config):
    """Bool [B, HQ, SQ, SK] of what the tables say, in loops; a pair listed twice is an error."""
    batch, seqlen_q, heads, _ = call.q.shape
    pack = config.rows_per_token
    ids = tables["pattern_id"]
    rows = (len(tables["row_ptr"]) - 1) // (int(ids.max()) + 1)
    found = np.zeros((batch, heads, seqlen_q, call.k.shape[1]), dtype=bool)
    bits = unpack(tables["tiles"], 128).numpy()
    kernel_heads = heads // pack
    for b, h, m in np.ndindex(batch, kernel_heads, rows):
        pattern = int(ids[b % ids.shape[0], h * ids.shape[1] // kernel_heads])
        line = pattern * rows + m
        for e in range(int(tables["row_ptr"][line]), int(tables["row_ptr"][line + 1])):
            tokens = tables["tokens"][tables["col"][e]]
            count = int(tables["keys"][e])
            assert (tokens[:count] >= 0).all()
            assert (tokens[count:] == -1).all()
            for part in range(config.parts):
                kind = int(tables["tile_id"][e, part])
                for row in range(TILE_Q):
                    packed = (m * config.q_tiles + part) * TILE_Q + row
                    if kind == SKIP or packed >= seqlen_q * pack:
                        continue
                    keep = np.ones(128, bool) if kind == FULL else bits[kind, row]
                    keys = tokens[:count][keep[:count]].numpy()
                    seen = found[b, h * pack + packed % pack, packed // pack]
                    assert not seen[keys].any()
                    seen[keys] = True
    return found


# name: policy, (lists' heads, HQ, HK), packed, tile rows, SQ, (topk, queries that share, pool)
CASES = {
    "uniform": ("uniform", (2, 2, 2), False, 128, 300, (150, 128, None)),
    "uniform, packed": ("uniform", (1, 4, 1), True, 256, 130, (130, 64, None)),
    "union, rows of tables": ("union", (1, 2, 1), True, 128, 70, (90, 64, 100)),
    "union, rows of their own": ("union", (2, 4, 2), True, 128, 70, (20, 64, 100)),
    "union, heads differ": ("union", (4, 4, 2), True, 256, 140, (60, 128, 100)),
    "union, one query tile": ("union", (1, 128, 1), True, 128, 3, (40, 1, 60)),
    "representative": ("representative", (1, 1, 1), False, 256, 260, (100, 256, 200)),
}


@pytest.mark.parametrize("name", CASES)
def test_tables_say_what_the_tiles_say(name):
    policy, (listed, heads, kv_heads), packed, tile_rows, seqlen_q, (topk, share, pool) = CASES[
        name
    ]
    group = heads // kv_heads
    lists = indices((1, listed, seqlen_q, topk), 260, share=share, pool=pool, seed=len(name))
    tiles = mp.TokenTiles.from_topk(
        lists, 260, policy=policy, tile_rows=tile_rows, group=group if packed else 1,
        kv_heads=kv_heads, max_coverage=1.0,
    )  # fmt: skip
    call = call_of(tiles, heads, kv_heads)
    config = sm100_gathered.forward_config(call)

    found = dense(call, sm100_gathered.tables(call), config)

    plan = tiles.to_plan()
    wanted = plan.to_dense().numpy()
    wanted = np.repeat(wanted, heads // wanted.shape[1], axis=1)
    assert (found == wanted).all()


def test_heads_and_batches_that_share_lists_share_tables():
    lists = indices((1, 1, 200, 100), 300, share=128).expand(3, 4, 200, 100)
    tiles = mp.TokenTiles.from_topk(lists, 300)
    call = call_of(tiles, 4, 4, batch=3)

    tables = sm100_gathered.tables(call)

    assert len(tables["row_ptr"]) == 2 + 1
    assert (tables["pattern_id"] == 0).all()
    assert tables["tokens"].data_ptr() == call.lowered.gathered.keys.data_ptr()


def test_a_half_past_the_last_query_skips():
    tiles = mp.TokenTiles.from_topk(indices((1, 1, 100, 140), 300, share=256), 300, tile_rows=256)

    tables = sm100_gathered.tables(call_of(tiles, 1, 1))

    assert tables["tile_id"].tolist() == [[FULL, SKIP]] * 2
    assert tables["keys"].tolist() == [128, 11]
