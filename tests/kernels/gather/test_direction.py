"""Which backward token tiles take: LoopQ by inverted lists for whole blocks, LoopK for tokens."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import maskplan as mp
from kernels_sm100.backward_config import BackwardConfig
from maskplan.attention import sm100_backward
from tests.kernels.backward.run import Outcome, judge, problem
from tests.kernels.backward.walks import gradients
from tests.kernels.gather.test_attention_backward import BACKEND, lists, mask_of

SEQLEN_K, BLOCKS = 300, ((0, 2), (2, 1), (2, 0))  # of each tile; the last of a list may be ragged


def whole_blocks():
    """int32 [1, 1, 300, 256]: two blocks of 128 keys in any order, the same for 128 queries."""
    found = np.full((1, 1, SEQLEN_K, 256), -1, dtype=np.int32)
    rng = np.random.default_rng(0)
    for query in range(SEQLEN_K):
        keys = np.concatenate([np.arange(128 * n, 128 * n + 128) for n in BLOCKS[query // 128]])
        found[0, 0, query] = rng.permutation(np.where(keys < SEQLEN_K, keys, -1))
    return found


@pytest.fixture
def launched(monkeypatch):
    """(direction, gathered) of the backwards that run."""
    found = []
    real = sm100_backward.backward_config

    def heard(*arguments):
        config = real(*arguments)
        found.append((config.direction, config.gathered))
        return config

    monkeypatch.setattr(sm100_backward, "backward_config", heard)
    return found


def used(tiles, mask, **options):
    """Part of its budget that the worst tile of a gradient used."""
    given = problem(BackwardConfig(direction="loop_q", head_dim=64, group=2), mask)
    q, k, v = (x.clone().requires_grad_() for x in (given.q, given.k, given.v))
    out, lse = mp.attention(q, k, v, tiles, backend=BACKEND, return_lse=True, **options)
    torch.autograd.backward((out, lse), (given.do, given.dlse))
    o = out.detach().double().numpy()
    exact = [x.double().numpy() for x in (given.q, given.k, given.v, given.do, given.dlse)]
    delta = np.einsum("bshd,bshd->bhs", o, exact[3]) - exact[4]
    wanted = gradients(*exact, given.masks, given.scale, o=o)
    got = (x.grad.double().numpy() for x in (q, k, v))
    return judge(replace(given, wanted=wanted, delta=delta), Outcome(*got, (), None))


def test_whole_blocks_take_loop_q_by_inverted_lists(launched):
    """Every KV block visits the Q tiles that list it, block 0 above all; no token table."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    found = whole_blocks()
    tiles = mp.TokenTiles.from_topk(torch.from_numpy(found), SEQLEN_K)
    assert tiles.form == "blocks"
    inverted = tiles.plan.transpose()
    bounds = inverted.row_ptr.tolist()
    by_block = [inverted.col[a:b].tolist() for a, b in pairwise(bounds)]
    assert by_block == [[0, 2], [1], [0, 1, 2]]

    assert used(tiles, mask_of(found, SEQLEN_K), backward="loop_q") <= 1
    assert launched == [("loop_q", False)]


def test_the_choice_is_explained():
    blocks = mp.TokenTiles.from_topk(torch.from_numpy(whole_blocks()), SEQLEN_K)
    tokens = mp.TokenTiles.from_topk(torch.from_numpy(lists((1, 1, 200), 300, 60, 128)), 300)

    assert str(mp.backward_choice(tokens)) == (
        "loop_k: tokens are gathered for queries, and LoopQ owns whole KV blocks"
    )
    chosen, same = mp.backward_choice(blocks), mp.backward_choice(blocks.to_plan())
    assert (chosen.direction, str(chosen)) == (same.direction, str(same))


def test_tokens_take_loop_k_by_auto(launched):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    found = lists((1, 1, 100), 300, 60, 128)
    tiles = mp.TokenTiles.from_topk(torch.from_numpy(found), 300)

    assert used(tiles, mask_of(found, 300)) <= 1
    assert launched == [("loop_k", True)]
