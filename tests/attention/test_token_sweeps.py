"""Sweeps over gathered attention, at the sizes that the seed's GPU tests have."""

import pytest
import torch
from torch import Tensor

import maskplan as mp
from tests.attention.token_calls import Call, assert_gate, random_lists


def tile_lists(
    shape: tuple[int, int, int], rows: int, topk: int, seqlen_k: int, kbs: int
) -> Tensor:
    """Random lists of topk keys, of single tokens or of blocks of `kbs`, one a tile of `rows`."""
    batch, heads, seqlen_q = shape
    tiles = -(-seqlen_q // rows)
    starts = random_lists((batch, heads, tiles), topk // kbs, seqlen_k // kbs, seed=topk)
    keys = (starts[..., None] * kbs + torch.arange(kbs, dtype=torch.int32)).flatten(3)
    return keys.repeat_interleave(rows, 2)[:, :, :seqlen_q]


CLASSIC = [
    (seqlen_q, seqlen_k, topk, (128, 1), 128, 1)
    for seqlen_q in (128, 512, 1024)
    for seqlen_k in (512, 1024, 4096)
    for topk in (128, 256)
]
HEADS = [(128, 1), (64, 1), (32, 1), (16, 1), (4, 4), (8, 2), (4, 1), (16, 16)]
COMPREHENSIVE = [(256, 512, 128, heads, dim, 1) for heads in HEADS for dim in (64, 128)] + [
    (256, 4096, 256, heads, 128, 128) for heads in HEADS if heads[1] == 1
]
PARTIAL = [(256, 512, topk, (16, 1), 128, 1) for topk in (1, 31, 100, 200, 511)]


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "topk", "heads", "dim", "kbs"), CLASSIC + COMPREHENSIVE + PARTIAL
)
def test_the_sweeps_of_a_public_pull_request(seqlen_q, seqlen_k, topk, heads, dim, kbs):
    """Classic, comprehensive and partial top-k with random lists a tile of 128 packed rows.

    In float32, and by one gate for every tensor of every case: no share of mismatches.
    """
    heads, kv_heads = heads
    group = heads // kv_heads
    rows = max(128 // group, 1)
    indices = tile_lists((1, kv_heads, seqlen_q), rows, topk, seqlen_k, kbs)
    call = Call(indices, seqlen_k, heads=heads, kv_heads=kv_heads, dims=(dim, dim))
    tiles = mp.TokenTiles.from_topk(indices, seqlen_k, group=group)
    assert tiles.form == ("tokens" if kbs == 1 else "blocks")
    assert_gate(call.run(tiles), call.expected(), torch.float32)


@pytest.mark.parametrize("heads", HEADS)
def test_random_lists_of_each_query_in_bfloat16(heads):
    """Lists of their own a token: by a union with bits, and by the plan."""
    heads, kv_heads = heads
    indices = random_lists((1, kv_heads, 64), 40, 300)
    call = Call(indices, 300, heads=heads, kv_heads=kv_heads, dims=(64, 64), dtype=torch.bfloat16)
    expected = call.expected()
    tiles = mp.TokenTiles.from_topk(
        indices, 300, policy="union", group=heads // kv_heads, max_coverage=1.0
    )
    assert_gate(call.run(tiles), expected, torch.bfloat16)
    assert_gate(call.run(mp.from_topk(indices, 300)), expected, torch.bfloat16)
