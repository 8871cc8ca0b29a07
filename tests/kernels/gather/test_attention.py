"""Token tiles through `attention(backend="sm100-emulated")`: the sweeps of MagiAttention's tests.

A covering subset of the 44 configurations of its pull request 334, with heads and queries cut down;
all of them, forward and backward, are benchmarks/sm100_gather_grid.py.
"""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from benchmarks.gathered_gate import UNIT, Inputs, budget_used
from benchmarks.sm100_gather_grid import Case, cases, indices_of, inputs, judged, tiles_of
from kernels_sm100.backward_config import BackwardConfig
from maskplan.attention import sm100_kernels
from tests.kernels.backward.run import Outcome, judge, problem
from tests.kernels.gather.test_attention_backward import mask_of

BACKEND = "sm100-emulated"

# Groups of 32 at D 128, and shapes that other tests of this folder compile for.
SMALL = {
    "classic, few of many keys": Case(
        sweep="classic", heads=32, kv_heads=1, seqlen_q=16, seqlen_k=4096, topk=256, run="full"
    ),
    "partial": Case(
        sweep="partial", heads=32, kv_heads=1, seqlen_q=9, seqlen_k=512, topk=448, run="full"
    ),
    "partial, differing queries": Case(
        sweep="partial", heads=32, kv_heads=1, seqlen_q=10, seqlen_k=512, topk=192, differ=True,
        run="full",
    ),
    "heads of their own": Case(
        sweep="comprehensive", heads=2, kv_heads=2, seqlen_q=256, seqlen_k=512, topk=128,
        head_dim=64, packed=False, run="full",
    ),
    "GQA, with gradients": Case(
        sweep="comprehensive", heads=16, kv_heads=2, seqlen_q=16, seqlen_k=512, topk=128,
        head_dim=64,
    ),
    "whole blocks": Case(
        sweep="comprehensive", heads=1, kv_heads=1, seqlen_q=256, seqlen_k=1024, topk=256,
        block=128, packed=False, run="full",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_sweeps_keep_the_budget(name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    case = SMALL[name]

    found = judged(case)

    assert found["forward"] <= 1
    assert (found["backward"] is None) == (case.run == "full")
    assert (found["backward"] or 0.0) <= 1


def test_the_budget_of_gradients_is_that_of_the_block_sparse_backward():
    """By lists as by masks: the same numbers, for gradients that are off by something."""
    case = replace(SMALL["GQA, with gradients"], heads=4, run="cpu", seqlen_q=200)
    lists = indices_of(case)
    config = BackwardConfig(direction="loop_k", head_dim=64, group=2)
    given = problem(config, mask_of(lists[None], case.seqlen_k), kv_heads=case.kv_heads)
    mine = Inputs(given.q, given.k, given.v, given.do, given.dlse)
    noise = torch.Generator().manual_seed(0)
    wanted = [torch.from_numpy(getattr(given.wanted, name)) for name in ("dq", "dk", "dv")]
    off = [x * (1 + UNIT * torch.rand(x.shape, generator=noise)) for x in wanted]

    by_masks = judge(given, Outcome(*(x.numpy() for x in off), (), None))

    found = budget_used(mine, torch.from_numpy(given.wanted.o), lists, tuple(off))
    assert found == pytest.approx(by_masks, rel=1e-9)


def test_the_sweeps_are_those_of_the_pull_request():
    found = list(cases())

    assert len(set(found)) == len(found) == 49
    seeds = [case for case in found if not case.differ]
    assert {sweep: sum(case.sweep == sweep for case in seeds) for sweep in
            ("classic", "comprehensive", "partial")} == {
        "classic": 18, "comprehensive": 21, "partial": 5,
    }  # fmt: skip


def test_whole_blocks_are_loaded_as_blocks():
    """By measured contiguity; so they cost what they cost the block-sparse kernel."""
    tiles = tiles_of(SMALL["whole blocks"])

    assert tiles.form == "blocks"
    assert tiles.tile_token_indices is None
    assert tiles_of(SMALL["partial"]).form == "tokens"


def tokens_of(seqlen_q=4, topk=3, seqlen_k=40, group=1):
    lists = torch.arange(topk, dtype=torch.int32).mul(2).expand(1, 1, seqlen_q, topk)
    return mp.TokenTiles.from_topk(lists, seqlen_k, group=group)


def test_head_dims_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(sm100_kernels, "missing", lambda: None)
    q, k = (torch.zeros(1, n, 1, 32, dtype=torch.bfloat16) for n in (4, 40))
    reason = r"its kernels gather rows of head dims \(64, 128\), not \(32, 32\)"

    with pytest.raises(mp.UnsupportedError, match=reason):
        mp.attention(q, k, k, tokens_of(), backend=BACKEND)


def test_a_group_that_the_q_tile_cuts_is_refused(monkeypatch):
    monkeypatch.setattr(sm100_kernels, "missing", lambda: None)
    q, k = (torch.zeros(1, n, h, 64, dtype=torch.bfloat16) for n, h in ((4, 256), (40, 1)))
    lists = torch.arange(3, dtype=torch.int32).expand(1, 1, 4, 3) * 2
    tiles = mp.TokenTiles.from_topk(lists, 40, tile_rows=256, group=256)

    with pytest.raises(mp.UnsupportedError, match="cut packed groups of 256"):
        mp.attention(q, k, k, tiles, backend=BACKEND)


def test_a_cache_lowers_tiles_once():
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    case = replace(SMALL["GQA, with gradients"], run="full")
    tiles, cache = tiles_of(case), mp.PlanCache()
    q, k, v = inputs(case)[:3]

    outs = [mp.attention(q, k, v, tiles, backend=BACKEND, cache=cache) for _ in range(2)]

    assert torch.equal(*outs)
    assert cache.stats.misses == 1
