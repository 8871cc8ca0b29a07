"""LoopK over listed tokens against float64 of the token-level mask, every access checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import backward_arguments
from kernels_sm100.backward_shapes import tables_of
from kernels_sm100.errors import ConfigError
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode
from tests.kernels.backward.run import judge, problem
from tests.kernels.forward.cubin import resources
from tests.kernels.gather import masks

STRICT = {"strict_tmem_loads": True, "strict_registers": True, "strict_fences": True}
BY_ROW = BackwardConfig(
    direction="loop_k",
    head_dim=64,
    inner_load=InnerLoadMode.CP_ASYNC,
    inner_store=InnerStoreMode.TMA_1D,
)
GATHER4 = replace(BY_ROW, inner_load=InnerLoadMode.TMA_GATHER4)
WIDE = replace(BY_ROW, head_dim=128, dtype="float16")
BY_ELEMENT = replace(
    BY_ROW, group=8, pack_gqa=True, descending=True, inner_store=InnerStoreMode.ATOMIC_ADD
)
# What a CTA has to meet: several items, chunks that wrap the rings of two, a tail, an empty list.
COUNTS = (300, 0, 129)


def heads_that_differ():
    """Each query head of a packed group lists its own tokens."""
    return masks.by_query((1, 8, 20, 400), 30, 90, 16, seed=4)


# config, mask, (batch, KV heads), how lists are made
CASES = {
    "lists of a tile": (BY_ROW, masks.by_tile((1, 1, 200, 600), 128, 128), (1, 1), {}),
    "partial tails, an empty list": (
        BY_ROW,
        masks.with_counts(500, (*COUNTS, 1), 128),
        (1, 2),
        {"seed": 1},
    ),
    "unions, batches and heads that differ": (
        BY_ROW,
        masks.by_query((2, 2, 140, 500), 60, 200, 128, seed=3),
        (2, 2),
        {"seed": 2},
    ),
    "nothing": (BY_ROW, np.zeros((1, 1, 200, 300), dtype=bool), (1, 1), {}),
    "one query, one key": (BY_ROW, np.ones((1, 1, 1, 1), dtype=bool), (1, 1), {}),
    "by TMA gathers": (
        GATHER4,
        masks.by_query((1, 2, 140, 500), 60, 200, 128, seed=3),
        (2, 2),
        {"seed": 2},
    ),
    "D 128": (WIDE, masks.by_query((1, 1, 150, 700), 70, 190, 128, seed=5), (1, 1), {"seed": 3}),
    "packed, from the end": (BY_ELEMENT, masks.with_counts(600, COUNTS, 16), (1, 1), {}),
    "packed, heads that differ": (BY_ELEMENT, heads_that_differ(), (1, 1), {"seed": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(gathered_loopk, name):
    config, mask, (batch, kv_heads), options = CASES[name]
    kernel = gathered_loopk(config)
    given = problem(config, mask, batch=batch, kv_heads=kv_heads)

    outcome = kernel.run(given, walk=kernel.tables(given, **options), ctas=2, **STRICT)

    judge(given, outcome)
    assert not outcome.report.warnings


@pytest.mark.parametrize("config", [BY_ROW, BY_ELEMENT], ids=["by row", "by element"])
def test_nothing_is_written_past_the_count(gathered_loopk, config):
    """Slots behind a list hold a token that exists, to which not even 0 must be added."""
    kernel = gathered_loopk(config)
    given = problem(config, masks.with_counts(300, (140,), 128 // config.rows_per_token))
    walk = kernel.tables(given)
    assert (walk.tokens == -1).any()
    walk.tokens[walk.tokens == -1] = np.flatnonzero(~given.masks.any((0, 1, 2)))[0]

    judge(given, kernel.run(given, walk=walk))


def test_slots_without_a_token_within_the_count_are_safe(gathered_loopk):
    """-1 between tokens, its bits clear: loaded as zeros, added nowhere."""
    kernel = gathered_loopk(BY_ROW)
    given = problem(BY_ROW, masks.with_counts(300, (100,), 128))
    walk = kernel.tables(given, all_bits=True)
    walk.tokens[0] = np.concatenate([walk.tokens[0, :40], [-1], walk.tokens[0, 40:127]])
    walk.tiles[0] = np.concatenate(
        [walk.tiles[0, :40], np.zeros((1, 4), np.int32), walk.tiles[0, 40:127]]
    )
    walk.keys[0] = 128

    judge(given, kernel.run(given, walk=walk))


def test_poison_in_unselected_rows_is_not_seen(gathered_loopk):
    given = problem(WIDE, masks.by_query((1, 1, 100, 300), 50, 150, 128, seed=3))
    unselected = ~given.masks.any((0, 1, 2))
    for tensor in (given.k, given.v):
        tensor[:, torch.from_numpy(unselected)] = float("nan")
    outcome = gathered_loopk(WIDE).run(given)
    for tensor in (given.k, given.v):
        tensor[:, torch.from_numpy(unselected)] = 0.0

    judge(given, outcome)


def test_dq_is_the_same_bits_in_every_schedule(gathered_loopk):
    given = problem(BY_ROW, masks.with_counts(300, COUNTS, 128))
    kernel = gathered_loopk(BY_ROW)
    schedules = [("round_robin", 0), ("lazy", 0), *(("random", seed) for seed in range(3))]

    found = [
        kernel.run(given, ctas=2, schedule=schedule, seed=seed) for schedule, seed in schedules
    ]

    judge(given, found[0])
    assert found[0].report.counts["unordered_bulk_adds"] > 0
    assert all(torch.equal(other.raw[0], found[0].raw[0]) for other in found[1:])


@pytest.mark.parametrize("config", [BY_ROW, WIDE, BY_ELEMENT], ids=str)
def test_nothing_is_spilled(gathered_loopk, config):
    assert resources(gathered_loopk(config).compiled.entry.cubin) == (128, 0)


def test_rows_that_tma_cannot_number_are_refused():
    names = ("q", "k", "v", "do")
    inputs = {name: torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16) for name in names}
    inputs["k"] = torch.zeros(2 * 520, dtype=torch.bfloat16).as_strided(
        (2, 4, 1, 64), (520, 64, 64, 1)
    )
    rest = torch.zeros(0)  # what is looked at later
    inputs |= {"bias": rest, "delta": rest}
    outputs = {"dq": torch.zeros_like(inputs["q"]), "dk_sums": rest, "dv_sums": rest}
    tables = dict.fromkeys(tables_of(GATHER4), rest)

    with pytest.raises(ConfigError) as raised:
        backward_arguments(GATHER4, inputs, outputs, tables, scale=1.0, ctas=1)

    assert str(raised.value) == (
        "layout of k not available to TMA gathers in the sm100 loop_k backward: got strides (520, "
        "64, 64, 1), wanted batches and heads whole tokens apart, or heads within a token; compile "
        "with inner_load=CP_ASYNC, or pass k.contiguous()."
    )
