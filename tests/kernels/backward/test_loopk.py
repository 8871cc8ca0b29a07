"""What LoopK promises beside right values: dQ of the same bits in every run."""

import torch

from tests.kernels.backward.configs import K_64, K_DOWN
from tests.kernels.backward.run import judge, problem
from tests.kernels.forward import masks


def test_dq_is_the_same_bits_in_five_random_schedules(backward_kernel):
    given = problem(K_64, masks.blocks((1, 1, 200, 300), 0.8, seed=2))
    kernel = backward_kernel(K_64)

    found = [
        kernel.run(given, ctas=1 + seed % 2, schedule="random", seed=seed, races=seed == 0)
        for seed in range(5)
    ]

    judge(given, found[0])
    assert all(torch.equal(other.raw[0], found[0].raw[0]) for other in found[1:])


def test_the_end_a_list_is_walked_from_changes_no_more_than_the_order_of_sums(backward_kernel):
    mask = masks.blocks((1, 1, 4, 400), 1.0)
    given = problem(K_DOWN, mask)
    walk = backward_kernel(K_DOWN).tables(given)
    turned = backward_kernel(K_DOWN).tables(given)
    for table in (turned.col, turned.tile_id):  # one row of the list
        table[:] = table[::-1].copy()

    found = [backward_kernel(K_DOWN).run(given, walk=tables) for tables in (walk, turned)]

    for outcome in found:
        judge(given, outcome)
    # The lists are visited in opposite orders, so that sums of more than two differ in bits.
    assert not torch.equal(found[0].raw[0], found[1].raw[0])
