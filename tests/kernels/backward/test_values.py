"""What the covering array of small problems leaves out: long lists, sharp scores, hostile bits."""

import numpy as np
import pytest
import torch

from tests.kernels.backward.configs import FULL, K_64, K_128, K_DOWN, Q_64, Q_128, TURNS, UP
from tests.kernels.backward.run import judge, problem
from tests.kernels.forward import masks


def mask_of(kind, shape):
    if kind == "skewed":
        return np.broadcast_to(masks.skewed(*shape[2:]), shape).copy()
    return masks.blocks(shape, float(kind))


# Lists longer than any ring; config, plan heads, KV heads, SQ, SK, mask.
CASES = [
    (Q_128, 1, 1, 300, 400, "0.8"),
    (TURNS, 1, 1, 600, 300, "skewed"),  # an odd number of Q tiles, four an entry
    (FULL, 1, 1, 300, 100, "1"),
    (K_128, 2, 1, 300, 400, "0.6"),
    (K_64, 1, 1, 300, 600, "skewed"),
    (K_DOWN, 1, 1, 7, 600, "1"),
]


@pytest.mark.parametrize(
    ("config", "plan_heads", "kv_heads", "seqlen_q", "seqlen_k", "kind"), CASES
)
def test_long_lists(backward_kernel, config, plan_heads, kv_heads, seqlen_q, seqlen_k, kind):
    given = problem(
        config, mask_of(kind, (1, plan_heads, seqlen_q, seqlen_k)), kv_heads=kv_heads, seed=1
    )

    judge(given, backward_kernel(config).run(given, ctas=2))


@pytest.mark.parametrize("config", [Q_128, K_64], ids=["loop_q", "loop_k"])
@pytest.mark.parametrize("spread", [0.1, 8.0])
def test_flat_and_sharp_scores(backward_kernel, config, spread):
    given = problem(config, masks.blocks((1, 1, 200, 200), 1.0), spread=spread)

    judge(given, backward_kernel(config).run(given))


@pytest.mark.parametrize("config", [Q_64, K_64], ids=["loop_q", "loop_k"])
def test_bits_past_the_ends_are_not_believed(backward_kernel, config):
    kernel = backward_kernel(config)
    mask = np.ones((1, 1, 200, 200), dtype=bool)
    mask[..., 7] = False
    given = problem(config, mask)
    walk = kernel.tables(given, all_bits=True)
    walk.tiles[1:, 72:] = -1  # keys 200 and on, where the tile holds them

    judge(given, kernel.run(given, walk=walk))


def rounded(values, dtype):
    """Float64 to the dtype and back."""
    return torch.from_numpy(values).to(dtype).double().numpy()


def test_both_directions_agree_on_dense_plans(backward_kernel):
    """To the order of their float32 sums: a unit of the dtype, in the few elements it decides."""
    given = problem(K_64, np.ones((1, 1, 300, 300), dtype=bool))
    found = [backward_kernel(config).run(given) for config in (UP, K_64)]

    for name in ("dq", "dk", "dv"):
        one, other = (rounded(getattr(outcome, name), torch.bfloat16) for outcome in found)
        largest = np.maximum(np.abs(one), np.abs(other))
        unit = 2.0 ** (np.floor(np.log2(largest + 1e-30)) - 7)
        assert (np.abs(one - other) <= unit + 2.0**-20 * largest.max()).all(), name
        assert (one != other).mean() < 0.01, name
