"""dQ, dK and dV against float64, every access checked for races."""

import numpy as np
import pytest
import torch

from kernels_sm100.backward_config import BackwardConfig
from tests.kernels.backward.run import judge, problem
from tests.kernels.forward import masks

# Few compilations: each is met by several plans.
Q_128 = BackwardConfig()
Q_64 = BackwardConfig(head_dim=64, dtype="float16", group=2, parts=2)
Q_TURNS = BackwardConfig(head_dim=64, group=4, parts=4, deterministic=True)
K_128 = BackwardConfig(direction="loop_k", group=2)
Q_ALONE = BackwardConfig(head_dim=64, deterministic=True, spt=True)
K_64 = BackwardConfig(direction="loop_k", head_dim=64)
K_PACKED = BackwardConfig(direction="loop_k", head_dim=64, group=4, pack_gqa=True)
K_DOWN = BackwardConfig(
    direction="loop_k", dtype="float16", group=32, pack_gqa=True, descending=True
)


def mask_of(kind, shape):
    seqlen_q, seqlen_k = shape[2:]
    if kind == "full":
        return np.ones(shape, dtype=bool)
    if kind == "none":
        return np.zeros(shape, dtype=bool)
    if kind == "causal":
        return np.broadcast_to(masks.causal(seqlen_q, seqlen_k), shape).copy()
    if kind == "skewed":
        return np.broadcast_to(masks.skewed(seqlen_q, seqlen_k), shape).copy()
    if kind == "empty rows and columns":
        mask = masks.blocks(shape, 0.8)
        mask[..., ::3, :] = False
        mask[..., 128:256, :] = False
        mask[..., 5:40] = False
        mask[..., 128:256] = False
        return mask
    return masks.blocks(shape, float(kind))


# config, (plan batches, plan heads), (batch, KV heads), SQ, SK, mask
CASES = [
    (Q_128, (1, 1), (1, 1), 128, 128, "full"),
    (Q_128, (1, 1), (1, 1), 300, 400, "0.6"),
    (Q_128, (1, 2), (1, 2), 1, 200, "full"),
    (Q_128, (1, 1), (1, 1), 400, 300, "empty rows and columns"),
    (Q_64, (1, 1), (1, 1), 300, 300, "causal"),
    (Q_64, (2, 4), (2, 2), 300, 130, "0.6"),
    (Q_64, (1, 2), (1, 2), 200, 257, "0.4"),
    (Q_64, (1, 1), (1, 1), 640, 1, "1"),
    (Q_64, (1, 1), (1, 1), 200, 200, "none"),
    (Q_TURNS, (1, 1), (1, 1), 600, 300, "skewed"),
    (Q_TURNS, (1, 1), (1, 1), 300, 300, "empty rows and columns"),
    (K_128, (1, 1), (1, 1), 128, 128, "full"),
    (K_128, (1, 2), (1, 1), 300, 300, "0.6"),
    (K_128, (1, 1), (1, 1), 400, 300, "empty rows and columns"),
    (K_128, (1, 1), (1, 1), 1, 200, "full"),
    (K_64, (2, 2), (2, 2), 300, 130, "0.6"),
    (K_64, (1, 1), (1, 2), 300, 300, "causal"),
    (K_64, (1, 1), (1, 1), 300, 600, "skewed"),
    (K_64, (1, 1), (1, 1), 200, 200, "none"),
    (K_PACKED, (2, 2), (2, 2), 75, 300, "causal"),
    (K_PACKED, (1, 1), (1, 1), 64, 256, "0.6"),
    (K_DOWN, (1, 1), (1, 1), 7, 400, "causal"),
]


@pytest.mark.parametrize(("config", "plan", "size", "seqlen_q", "seqlen_k", "kind"), CASES)
def test_gradients_match_float64(backward_kernel, config, plan, size, seqlen_q, seqlen_k, kind):
    seed = CASES.index((config, plan, size, seqlen_q, seqlen_k, kind))
    given = problem(
        config, mask_of(kind, (*plan, seqlen_q, seqlen_k)), batch=size[0], kv_heads=size[1],
        seed=seed,
    )  # fmt: skip

    judge(given, backward_kernel(config).run(given, ctas=2, seed=seed))


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
    found = [backward_kernel(config).run(given) for config in (Q_ALONE, K_64)]

    for name in ("dq", "dk", "dv"):
        one, other = (rounded(getattr(outcome, name), torch.bfloat16) for outcome in found)
        largest = np.maximum(np.abs(one), np.abs(other))
        unit = 2.0 ** (np.floor(np.log2(largest + 1e-30)) - 7)
        assert (np.abs(one - other) <= unit + 2.0**-20 * largest.max()).all(), name
        assert (one != other).mean() < 0.01, name
