"""What no query selects never reaches one: poison, empty rows and foreign sentinels."""

import pytest
import torch

import maskplan as mp
from tests import strategies
from tests.attention.token_calls import BACKENDS, FORMS, Call, assert_gate, random_lists


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("policy", ["uniform", "union"])
def test_poison_in_keys_that_nobody_selects_changes_no_bit(policy, value, backend):
    """Keys 1, 3, 5, ... hold NaN or infinity, in K and in V; a tile of `union` gathers none."""
    indices = 2 * random_lists((1, 2, 1 if policy == "uniform" else 70), 20, 100)
    indices = indices.expand(1, 2, 70, 20)
    tiles = mp.TokenTiles.from_topk(indices, 200, policy=policy, max_coverage=1.0)
    plan = mp.from_topk(indices, 200)
    clean = Call(indices, 200, heads=4, kv_heads=2)
    for ran in (tiles, plan, *(clean.forced(plan, form) for form in FORMS)):
        dirty = Call(indices, 200, heads=4, kv_heads=2)
        dirty.k[:, 1::2], dirty.v[:, 1::2] = value, value
        found, wanted = dirty.run(ran, backend), clean.run(ran, backend)
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        assert (found["dk"][:, 1::2] == 0).all()
        assert (found["dv"][:, 1::2] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_poison_that_one_query_of_a_tile_selects_reaches_it_alone(value, backend):
    """A tile's union holds the key; every other query has it masked by a bit."""
    indices = random_lists((1, 1, 128), 30, 64)
    indices[indices == 7] = -1
    indices[0, 0, 5, 0] = 7
    tiles = mp.TokenTiles.from_topk(indices, 64, policy="union", max_coverage=1.0)
    call = Call(indices, 64, heads=2, kv_heads=1)
    call.k[:, 7], call.v[:, 7] = value, value
    for ran in (tiles, mp.from_topk(indices, 64), call.forced(mp.from_topk(indices, 64), "tiles")):
        found = call.run(ran, backend)
        others = [row for row in range(128) if row != 5]
        assert found["out"][:, others].isfinite().all()
        assert found["dq"][:, others].isfinite().all()
        assert not found["out"][:, 5].isfinite().any()
        reached = indices[0, 0, 5]
        alone = [key for key in range(64) if key not in reached.tolist()]
        assert found["dk"][:, alone].isfinite().all()
        assert found["dv"][:, alone].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_a_key_give_zeros(backend):
    indices = torch.full((1, 1, 200, 16), -1)
    call = Call(indices, 90, heads=2, kv_heads=1)
    for ran in (
        mp.TokenTiles.from_topk(indices, 90, policy="union", group=2),
        mp.from_topk(indices, 90),
    ):
        found = call.run(ran, backend)
        assert (found["lse"] == -torch.inf).all()
        for name in ("out", "dq", "dk", "dv"):
            assert (found[name] == 0).all()
    indices[0, 0, 131] = torch.arange(16)  # one of them, in the second tile
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", group=2)
    assert_gate(call.run(tiles, backend), call.expected(), torch.float32)


@pytest.mark.parametrize("sentinel", strategies.NASTY)
def test_hostile_sentinels_are_refused(sentinel):
    """What other producers pad with is no -1: an error that names the slot, never a wrong key."""
    indices = random_lists((1, 1, 9), 4, 64)
    indices[0, 0, 8, 3] = sentinel
    with pytest.raises(mp.PlanError, match=r"b=0, h=0, row=8, slot=3"):
        mp.TokenTiles.from_topk(indices, 64, policy="union", max_coverage=1.0)
    with pytest.raises(mp.PlanError, match=r"b=0, h=0, row=8, slot=3"):
        mp.from_topk(indices, 64)


def test_sentinels_of_flashmla_are_imported_by_name():
    """FlashMLA marks no key by anything out of range, and with lengths by what lies beyond."""
    indices = random_lists((1, 1, 9), 6, 64)
    foreign = indices[0].transpose(0, 1).clone()  # [SQ, heads, topk]
    foreign[:, :, 4:] = 2_147_480_000
    indices[..., 4:] = -1
    plan = mp.interop.flashmla.from_indices(foreign, 64)
    assert plan.to_dense().equal(mp.from_topk(indices, 64).to_dense())
