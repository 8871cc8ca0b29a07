"""Gradients of token tiles through `attention(backend="sm100-emulated")`, against float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskplan as mp
from kernels_sm100.backward_config import BackwardConfig
from maskplan.attention import sm100_kernels
from tests.kernels.backward.run import Outcome, judge, problem
from tests.kernels.backward.walks import gradients
from tests.kernels.gather.device_tiles import as_made_on_a_gpu

BACKEND = "sm100-emulated"


def lists(shape, seqlen_k, topk, tokens, *, seed=0):
    """int32 [B, H, SQ, topk], -1 last: `tokens` queries in a row share a list of random keys."""
    rng = np.random.default_rng(seed)
    found = np.full((*shape, topk), -1, dtype=np.int32)
    for each in found.reshape(-1, shape[2], topk):
        for start in range(0, shape[2], tokens):
            each[start : start + tokens, : topk - 1] = rng.permutation(seqlen_k)[: topk - 1]
    return found


def mask_of(found, seqlen_k):
    """Bool [B, H, SQ, SK] of lists."""
    mask = np.zeros((*found.shape[:3], seqlen_k + 1), dtype=bool)
    np.put_along_axis(mask, np.where(found < 0, seqlen_k, found).astype(np.int64), True, axis=3)
    return mask[..., :seqlen_k]


# (B, HK, SQ), query heads per KV head, SK, top-k, queries that share a list, options of the tiles
CASES = {
    "a list for two Q tiles, a tail": ((1, 1, 300), 2, 300, 150, 256, {}),
    "packed, batches and heads that differ": ((2, 2, 40), 8, 200, 60, 16, {"group": 8}),
    "a union, whose tiles see different keys, made on a GPU": (
        (1, 1, 200),
        2,
        400,
        70,
        128,
        {"policy": "union", "max_coverage": 1.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    shape, group, seqlen_k, topk, tokens, options = CASES[name]
    found = lists(shape, seqlen_k, topk, tokens)
    config = BackwardConfig(direction="loop_k", head_dim=64, group=group)
    given = problem(config, mask_of(found, seqlen_k), batch=shape[0], kv_heads=shape[1])
    tiles = mp.TokenTiles.from_topk(torch.from_numpy(found), seqlen_k, **options)
    assert tiles.form == "tokens"
    if "made on a GPU" in name:
        tiles = as_made_on_a_gpu(tiles)
    q, k, v = (x.clone().requires_grad_() for x in (given.q, given.k, given.v))

    out, lse = mp.attention(q, k, v, tiles, backend=BACKEND, return_lse=True)
    torch.autograd.backward((out, lse), (given.do, given.dlse))

    o = out.detach().double().numpy()
    exact = [x.double().numpy() for x in (given.q, given.k, given.v, given.do, given.dlse)]
    delta = np.einsum("bshd,bshd->bhs", o, exact[3]) - exact[4]
    wanted = gradients(*exact, given.masks, given.scale, o=o)
    got = (x.grad.double().numpy() for x in (q, k, v))
    judge(replace(given, wanted=wanted, delta=delta), Outcome(*got, (), None))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"deterministic": True}, "adds dK and dV in any order, and equal bits are wanted"),
        ({"backward": "loop_q"}, "adds dK and dV in any order, and loop_q is wanted"),
    ],
)
def test_what_loop_k_does_not_give_is_refused(monkeypatch, options, reason):
    monkeypatch.setattr(sm100_kernels, "missing", lambda: None)
    q, k = (torch.zeros(1, n, 1, 64, dtype=torch.bfloat16) for n in (4, 40))
    tiles = mp.TokenTiles.from_topk(torch.from_numpy(lists((1, 1, 4), 40, 4, 4)), 40)

    with pytest.raises(mp.UnsupportedError, match=reason):
        mp.attention(q.requires_grad_(), k, k, tiles, backend=BACKEND, **options)
