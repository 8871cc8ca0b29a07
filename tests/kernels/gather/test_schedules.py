"""The same bits whatever the order in which warps run and copies complete."""

import pytest
import torch

from tests.kernels.forward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.configs import MODE_IDS, MODES, config
from tests.kernels.gather.lists import token_tables

SCHEDULES = [("round_robin", 0), ("lazy", 0), *(("random", seed) for seed in range(3))]


@pytest.mark.parametrize(("mode", "stages"), [*((mode, 2) for mode in MODES), (MODES[0], 3)])
def test_every_schedule_gives_the_same_bits(forward_kernel, mode, stages):
    """Two stages hold one K and one V, so the ring wraps with every chunk; of three K and V move.

    How loads and MMAs count through a ring is the same for both loads.
    """
    made = config(mode, q_tiles=2, stages=stages)
    mask = masks.by_query((1, 1, 600, 500), 70, 300, 256, seed=3)
    mask[:, :, 256:512] = False  # a work item without a token, between others
    given = problem(made, mask, spread=3.0)
    walk = token_tables(mask, made, seed=4)

    first = forward_kernel(made).run(given, walk=walk)

    judge(given, first)
    for schedule, seed in SCHEDULES:
        races = schedule != "round_robin"
        again = forward_kernel(made).run(
            given, walk=walk, schedule=schedule, seed=seed, races=races
        )
        assert torch.equal(again.o, first.o), (schedule, seed)
        assert torch.equal(again.lse, first.lse), (schedule, seed)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_the_grid_does_not_change_a_bit(forward_kernel, mode):
    made = config(mode, q_tiles=2, stages=2)
    mask = masks.by_tile((1, 2, 500, 300), 200, 256)
    given = problem(made, mask, kv_heads=2)
    walk = token_tables(mask, made)

    runs = [
        forward_kernel(made).run(given, walk=walk, ctas=ctas, races=False) for ctas in (1, 3, 148)
    ]

    assert runs[2].report.ctas == 4
    for other in runs[1:]:
        assert torch.equal(other.o, runs[0].o)
        assert torch.equal(other.lse, runs[0].lse)
