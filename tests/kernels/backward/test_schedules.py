"""What has to be the same bits, whatever the order in which warps run and copies complete."""

import pytest
import torch

from tests.kernels.backward.configs import K_64, Q_64, TURNS, UP
from tests.kernels.backward.run import judge, problem
from tests.kernels.forward import masks

SCHEDULES = [("round_robin", 0), ("lazy", 0), ("random", 0)]
RANDOM = [("lazy", 0), *(("random", seed) for seed in range(5))]


def runs(kernel, given, ctas, schedules=SCHEDULES):
    """Outcomes under each schedule, before them one that is judged and checked for races."""
    first = kernel.run(given, ctas=ctas)
    judge(given, first)
    return [
        first,
        *(
            kernel.run(given, ctas=ctas, schedule=name, seed=seed, races=False)
            for name, seed in schedules
        ),
    ]


@pytest.mark.parametrize(
    ("config", "seqlen_q"), [(TURNS, 100), (UP, 200)], ids=["ascending", "descending"]
)
def test_turns_fix_every_bit(backward_kernel, config, seqlen_q):
    """Three KV blocks, on a CTA each, add to every Q tile."""
    given = problem(config, masks.blocks((1, 1, seqlen_q, 300), 1.0, seed=2))

    found = runs(backward_kernel(config), given, 3, RANDOM)

    assert found[0].report.counts["unordered_bulk_adds"] == 0
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other.raw, found[0].raw, strict=True))


def test_the_grid_does_not_change_turns(backward_kernel):
    given = problem(UP, masks.blocks((1, 1, 200, 500), 0.8), batch=2)
    kernel = backward_kernel(UP)

    found = [kernel.run(given, ctas=ctas, races=False) for ctas in (1, 3, 8)]

    for other in found[1:]:
        assert torch.equal(other.raw[0], found[0].raw[0])


def test_turns_cost_nothing_where_nobody_asks_for_them(backward_kernel):
    """No semaphore is read or raised."""
    for config, some in ((UP, True), (Q_64, False)):
        text = backward_kernel(config).compiled.entry.ptx
        assert ("ld.acquire.gpu" in text) == some
        assert ("red.release.gpu" in text) == some


@pytest.mark.parametrize("config", [Q_64, K_64], ids=["loop_q", "loop_k"])
def test_what_a_cta_owns_is_fixed_without_turns(backward_kernel, config):
    given = problem(config, masks.blocks((1, 1, 200, 300), 1.0, seed=2))
    owned = (1, 2) if config is Q_64 else (0,)

    found = runs(backward_kernel(config), given, 3)

    # The detector sees that the other sums are in no order.
    assert found[0].report.counts["unordered_bulk_adds"] > 0
    for other in found[1:]:
        assert all(torch.equal(other.raw[i], found[0].raw[i]) for i in owned)
