"""`PlanCache`: what is found, what is dropped, and that the caller holds it."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import maskplan as mp
from maskplan.attention import attention
from tests.attention.problems import problem

MASK = torch.rand(1, 1, 30, 30, generator=torch.Generator().manual_seed(14)) < 0.3


def counts(cache: mp.PlanCache) -> tuple[int, int, int, int]:
    stats = cache.stats
    return stats.hits, stats.misses, stats.evictions, stats.size


def test_a_plan_is_lowered_once():
    call, cache = problem(MASK, (8, 8)), mp.PlanCache()
    q = call.q.requires_grad_()
    wanted = attention(q, call.k, call.v, call.plan)
    for _ in range(3):
        assert torch.equal(attention(q, call.k, call.v, call.plan, cache=cache), wanted)

    assert counts(cache) == (2, 1, 0, 1)
    assert cache.lower(call.plan, "cpu") is cache.lower(call.plan, "cpu")
    assert counts(cache) == (4, 1, 0, 1), "what attention asks for is what lower gives"
    assert cache.stats.nbytes > 0


def test_targets_and_directions_have_entries_of_their_own():
    plan, cache = mp.causal(256, 256, block_size=(128, 128)), mp.PlanCache()
    made = [
        cache.lower(plan, "cpu"),
        cache.lower(plan, "sm100"),
        cache.lower(plan, mp.target("sm100", head_dim=64)),
        cache.lower(plan, "cpu", backward=()),
        cache.lower(plan, "flex", heads=2, arch="cpu"),
        cache.lower(plan, "flex", heads=4, arch="cpu"),
    ]

    assert len({id(lowered) for lowered in made}) == len(made)
    assert counts(cache) == (0, 6, 0, 6)
    assert made[3].loop_q is None
    assert cache.lower(plan, "flex", arch="cpu", heads=4) is made[5]


def test_equal_plans_are_two_by_identity_and_one_by_digest():
    one, two = (problem(MASK, (8, 8)).plan for _ in range(2))
    by_identity, by_digest = mp.PlanCache(), mp.PlanCache(by="digest")
    for cache in (by_identity, by_digest):
        cache.lower(one, "cpu")
        cache.lower(two, "cpu")

    assert counts(by_identity) == (0, 2, 0, 2)
    assert counts(by_digest) == (1, 1, 0, 1)


def test_the_least_recently_used_makes_room():
    plans = [mp.causal(8 + i, 8 + i, block_size=(4, 4)) for i in range(3)]
    cache = mp.PlanCache(2)
    first = cache.lower(plans[0], "cpu")
    cache.lower(plans[1], "cpu")
    assert cache.lower(plans[0], "cpu") is first
    cache.lower(plans[2], "cpu")

    assert cache.lower(plans[0], "cpu") is first
    assert counts(cache) == (2, 3, 1, 2)
    cache.lower(plans[1], "cpu")
    assert counts(cache) == (2, 4, 2, 2)


def test_an_id_is_never_taken_for_another_plan():
    """A plan that died gives its id to the next one; a cache that held ids alone would mix them."""
    cache = mp.PlanCache(1000)
    for i in range(200):
        plan = mp.full(4 + i % 7, 4, block_size=(4, 4))
        assert cache.lower(plan, "cpu").geometry == plan.geometry
        del plan

    assert counts(cache)[:2] == (0, 200)


def test_what_is_held_dies_with_the_cache():
    cache, plan = mp.PlanCache(), mp.causal(16, 16, block_size=(4, 4))
    held = weakref.ref(cache.lower(plan, "cpu").loop_q.col)
    cache.clear()
    gc.collect()

    assert held() is None
    assert counts(cache) == (0, 1, 0, 0)
    assert len(cache) == 0


def test_threads_share_a_cache():
    plans = [mp.causal(32 + i, 32 + i, block_size=(8, 8)) for i in range(4)]
    cache = mp.PlanCache(8)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: cache.lower(plans[i % 4], "cpu"), range(64)))

    assert all(made[i] is made[i % 4] for i in range(64))
    assert counts(cache) == (60, 4, 0, 4)


def test_bad_arguments():
    with pytest.raises(mp.PlanError, match=r"got 0, wanted 1 <= capacity"):
        mp.PlanCache(0)
    with pytest.raises(mp.PlanError) as caught:
        mp.PlanCache(by="name")

    assert str(caught.value) == (
        "unknown key in PlanCache: got 'name', wanted 'identity' or 'digest'; pass one of these "
        "as by."
    )
    assert repr(mp.PlanCache(3)).startswith("PlanCache(capacity=3, by='identity', CacheStats(")
