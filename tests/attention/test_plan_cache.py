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
PLAN = problem(MASK, (8, 8)).plan


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
    assert cache.lower(plan, "cpu", backward="loop_q") is made[0], "one name is one direction"
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


@pytest.mark.parametrize("by", ["identity", "digest"])
def test_a_plan_that_was_written_to_is_lowered_again(by):
    """As a plan in static memory is, from step to step."""
    call, other = problem(MASK, (8, 8)), problem(MASK.roll(3, 3), (8, 8))
    cache = mp.PlanCache(by=by)
    q = call.q.requires_grad_()

    def gradient(**options: object) -> torch.Tensor:
        out = attention(q, call.k, call.v, call.plan, backend="cpu", backward="loop_q", **options)
        return torch.autograd.grad(out, q, call.dout)[0]

    before = gradient(cache=cache)
    kept = cache.lower(call.plan, "cpu")
    for name in ("row_ptr", "col", "tile_id", "tiles"):
        mine, theirs = getattr(call.plan, name), getattr(other.plan, name)
        mine.resize_(theirs.shape).copy_(theirs)

    assert torch.equal(gradient(cache=cache), gradient())
    assert not torch.equal(gradient(cache=cache), before)
    assert cache.lower(call.plan, "cpu") is not kept
    assert cache.stats.misses == 2


def test_an_equal_plan_does_not_get_arrays_that_were_written_to():
    plan, equal = (problem(MASK, (8, 8)).plan for _ in range(2))
    cache = mp.PlanCache(by="digest")
    cache.lower(plan, "cpu")
    plan.tiles.zero_()

    assert torch.equal(cache.lower(equal, "cpu").forward.tiles, equal.tiles)


def test_plans_of_inference_tensors_are_kept():
    with torch.inference_mode():
        plan = problem(MASK, (8, 8)).plan
    cache = mp.PlanCache()

    assert cache.lower(plan, "cpu") is cache.lower(plan, "cpu")


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


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, "cpu"), {}, mp.PlanTypeError, "cannot lower this in lower: got NoneType"),
        ((PLAN.transpose(), "cpu"), {}, mp.PlanTypeError, "got TransposedPlan, wanted a Plan"),
        ((PLAN, None), {}, mp.PlanTypeError, "target is of the wrong type in PlanCache.lower"),
        ((PLAN, []), {}, mp.PlanTypeError, r"got \[\] of type list, wanted a Target"),
        ((PLAN, "cpu"), {"backward": 3}, mp.PlanTypeError, "got 3 of type int, wanted ..loop_q"),
        ((PLAN, "cpu"), {"backward": [[]]}, mp.PlanTypeError, "no collection of directions"),
        ((PLAN, "cpu"), {"backward": "loop_x"}, mp.PlanError, "unknown direction"),
        ((PLAN, "cpu"), {"device": "bogus"}, mp.PlanError, "no such device here in device: got"),
        ((PLAN, "cpu"), {"device": 3.5}, mp.PlanTypeError, "got 3.5 of type float, wanted a torch"),
        ((PLAN, "flex"), {"head_dim": []}, mp.PlanTypeError, r"in head_dim: got \[\] of type list"),
        ((PLAN, "flex"), {"colour": 1}, mp.PlanTypeError, "got colour, wanted head_dim, head_"),
    ],
)
def test_wrong_arguments_of_lower_are_one_sentence(arguments, options, error, message):
    with pytest.raises(error, match=message):
        mp.PlanCache().lower(*arguments, **options)
