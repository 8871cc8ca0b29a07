"""dQ, dK and dV against float64 over a covering array, every access checked for races."""

from collections import defaultdict
from dataclasses import fields
from itertools import combinations, product

import pytest

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.errors import ConfigError
from tests.kernels.backward.cover import BATCHES, CASES, LENGTHS, LISTS, MASKS
from tests.kernels.backward.run import judge, problem

STRICT = {"strict_tmem_loads": True, "strict_registers": True, "strict_fences": True}
HEADS = {"one": {}, "looped over": {"group": 4}, "packed": {"group": 4, "pack_gqa": True}}
# Modes of gathering have tests of their own.
OPTIONS = {
    "direction": ("loop_q", "loop_k"),
    "head_dim": (64, 128),
    "dtype": ("bfloat16", "float16"),
    "deterministic": (False, True),
    "descending": (False, True),
}
CALL = {"mask": MASKS, "lists": LISTS, "batches": BATCHES, "queries": LENGTHS, "keys": LENGTHS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(vars(case).values()))
def test_gradients_match_float64(backward_kernel, case):
    seed = CASES.index(case)
    given = problem(
        case.config, case.masks(seed), batch=case.batch, kv_heads=case.kv_heads, seed=seed
    )

    judge(given, backward_kernel(case.config).run(given, ctas=2, seed=seed, **STRICT))


def options_of(config):
    """Its values, where several parts are one value."""
    heads = "one" if config.group == 1 else "packed" if config.pack_gqa else "looped over"
    found = {name: getattr(config, name) for name in OPTIONS}
    return found | {
        "heads": heads, "several parts": config.parts > 1, "split": config.head_split > 1
    }  # fmt: skip


def every_config():
    """One of each combination of options that a backward can have."""
    names = (*OPTIONS, "heads", "parts", "head_split")
    for values in product(*OPTIONS.values(), HEADS, (1, 2), (1, 2)):
        chosen = dict(zip(names, values, strict=True))
        heads = HEADS[chosen.pop("heads")]
        try:
            yield options_of(BackwardConfig(**chosen, **heads))
        except ConfigError:
            continue


def pairs(values):
    """Pairs of (name, value) in a dictionary."""
    return set(combinations(sorted(values.items(), key=lambda item: item[0]), 2))


def possible():
    """Pairs that some call has: all but those that options exclude, and lists a query head."""
    found, seen = set(), defaultdict(set)
    for config in every_config():
        for lists in LISTS:
            if lists == "a query head" and config["heads"] != "looped over":
                continue
            found |= pairs(config | {"lists": lists})
            for item in config.items():
                seen[item[0]].add(item[1])
    free = seen | {name: set(values) for name, values in CALL.items()}
    for one, other in combinations(sorted(free), 2):
        if {one, other} & (set(CALL) - {"lists"}):
            found |= {((one, a), (other, b)) for a in free[one] for b in free[other]}
    return found


def test_every_pair_of_values_is_met():
    """A call that no pair of tokens is kept in shows nothing but that."""
    met = set()
    for case in CASES:
        call = {name: getattr(case, name) for name in CALL}
        met |= {
            pair
            for pair in pairs(options_of(case.config) | call)
            if case.mask != "none" or ("mask", "none") in pair
        }

    assert not possible() - met
    assert {case.config.parts for case in CASES} == {1, 2, 4}


def test_masks_are_what_they_are_called():
    for seed, case in enumerate(CASES):
        kept = case.masks(seed).any((-2, -1))
        assert kept.all() == (case.mask != "none")
        assert kept.any() == kept.all()


def test_no_option_is_left_out():
    known = {*OPTIONS, "group", "pack_gqa", "parts", "head_split"}
    # spt turns the order of turns, and is in half of the configurations that have one.
    assert {field.name for field in fields(BackwardConfig)} - known == {
        "spt", "inner_load", "inner_store"
    }  # fmt: skip
