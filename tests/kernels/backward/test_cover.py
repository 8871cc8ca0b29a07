"""dQ, dK and dV against float64 over a covering array, every access checked for races."""

from dataclasses import fields
from itertools import product

import pytest

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.errors import ConfigError
from tests.kernels.backward.cover import BATCHES, CASES, LENGTHS, LISTS, MASKS
from tests.kernels.backward.run import judge, problem
from tests.kernels.covering import unmet

STRICT = {"strict_tmem_loads": True, "strict_registers": True, "strict_fences": True}
OPTIONS = {
    "direction": ("loop_q", "loop_k"),
    "head_dim": (64, 128),
    "dtype": ("bfloat16", "float16"),
    "deterministic": (False, True),
    "descending": (False, True),
}
HEADS = {"one": {}, "looped over": {"group": 4}, "packed": {"group": 4, "pack_gqa": True}}
COUNTS = {"parts": ("one", "several"), "head_split": ("one", "several")}
CALL = {"mask": MASKS, "lists": LISTS, "batches": BATCHES, "queries": LENGTHS, "keys": LENGTHS}
FACTORS = OPTIONS | {"heads": tuple(HEADS)} | COUNTS | CALL


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(vars(case).values()))
def test_gradients_match_float64(backward_kernel, case):
    seed = CASES.index(case)
    given = problem(
        case.config, case.masks(seed), batch=case.batch, kv_heads=case.kv_heads, seed=seed
    )

    judge(given, backward_kernel(case.config).run(given, ctas=2, seed=seed, **STRICT))


def options_of(config):
    """A value of each factor that a configuration has."""
    heads = "one" if config.group == 1 else "packed" if config.pack_gqa else "looped over"
    counts = {name: "one" if getattr(config, name) == 1 else "several" for name in COUNTS}
    return {name: getattr(config, name) for name in OPTIONS} | {"heads": heads} | counts


def every_config():
    """Options of each configuration that a backward can have; gathering has tests of its own."""
    for *values, heads, parts, split in product(*OPTIONS.values(), HEADS.values(), (1, 2), (1, 2)):
        chosen = dict(zip(OPTIONS, values, strict=True))
        try:
            config = BackwardConfig(**chosen, **heads, parts=parts, head_split=split)
        except ConfigError:
            continue
        yield options_of(config)


def test_every_pair_of_values_is_met():
    """A call in which no pair of tokens is kept shows nothing but that."""
    available = list(every_config())

    def impossible(pair):
        if pair.get("lists") == "a query head" and pair.get("heads") in ("one", "packed"):
            return True
        options = {name: value for name, value in pair.items() if name not in CALL}
        return not any(options.items() <= config.items() for config in available)

    def missing(cases):
        values = [
            options_of(case.config) | {name: getattr(case, name) for name in CALL} for case in cases
        ]
        return unmet(values, FACTORS, impossible)

    assert not missing(CASES)
    shown = missing([case for case in CASES if case.mask != "none"])
    assert not {pair for pair in shown if ("mask", "none") not in pair}
    assert {case.config.parts for case in CASES} == {1, 2, 4}


def test_masks_are_what_they_are_called():
    for seed, case in enumerate(CASES):
        kept = case.masks(seed).any((-2, -1))
        assert kept.all() == (case.mask != "none")
        assert kept.any() == kept.all()


def test_no_option_is_left_out():
    known = {*OPTIONS, *COUNTS, "group", "pack_gqa"}
    # spt turns the order of turns, and is in half of the configurations that have one.
    assert {field.name for field in fields(BackwardConfig)} - known == {
        "spt", "inner_load", "inner_store"
    }  # fmt: skip
