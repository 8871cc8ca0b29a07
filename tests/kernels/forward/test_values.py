"""O and LSE against float64, every access checked for races."""

import numpy as np
import pytest

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward import masks
from tests.kernels.forward.run import judge, problem

# What `verify` over the covering array (tests/kernels/attention) does not meet: other head
# dimensions, lists that two CTAs share, and more tokens.
PAIR = ForwardConfig()
SHARED_ROWS = ForwardConfig(group=16, pack_gqa=True, parts=1, head_dim_v=64)
THREE_ATOMS = ForwardConfig(dtype="float16", head_dim=96, head_dim_v=96)
UNEQUAL = ForwardConfig(head_dim=48, head_dim_v=112)
ONE_TILE = ForwardConfig(q_tiles=1, parts=1, group=2)


def mask_of(kind, shape, tokens=128):
    seqlen_q, seqlen_k = shape[2:]
    if kind == "causal":
        return np.broadcast_to(masks.causal(seqlen_q, seqlen_k), shape).copy()
    if kind == "skewed":
        return np.broadcast_to(masks.skewed(seqlen_q, seqlen_k), shape).copy()
    return masks.blocks(shape, float(kind), tokens=tokens)


# config, (plan batches, plan heads), (batch, KV heads), SQ, SK, mask
CASES = [
    (PAIR, (1, 1), (1, 1), 300, 1000, "0.3"),
    (PAIR, (2, 3), (2, 3), 512, 100, "0.5"),
    (PAIR, (1, 1), (1, 1), 512, 1000, "skewed"),
    (SHARED_ROWS, (1, 1), (1, 1), 64, 300, "0.7"),
    (SHARED_ROWS, (1, 2), (1, 2), 33, 384, "0.7"),
    (THREE_ATOMS, (1, 1), (1, 1), 300, 300, "0.7"),
    (UNEQUAL, (1, 1), (1, 1), 300, 500, "0.6"),
    (ONE_TILE, (1, 1), (1, 1), 100, 1000, "0.7"),
    (ONE_TILE, (1, 1), (1, 1), 300, 300, "causal"),
]


@pytest.mark.parametrize(("config", "plan", "size", "seqlen_q", "seqlen_k", "kind"), CASES)
def test_forward_matches_float64(forward_kernel, config, plan, size, seqlen_q, seqlen_k, kind):
    kernel = forward_kernel(config)
    tokens = 128 // config.rows_per_token
    seed = CASES.index((config, plan, size, seqlen_q, seqlen_k, kind))
    mask = mask_of(kind, (*plan, seqlen_q, seqlen_k), tokens)
    given = problem(config, mask, batch=size[0], kv_heads=size[1], seed=seed)
    walk = None
    if config is SHARED_ROWS:  # a list row of 512 packed rows serves two CTAs
        walk = kernel.tables(mask, tokens=2 * config.cta_rows // config.group)

    outcome = kernel.run(given, walk=walk, ctas=2, seed=seed)

    judge(given, outcome)


@pytest.mark.parametrize("spread", [0.1, 4.0, 16.0])
def test_wide_scores_are_rescaled(forward_kernel, spread):
    given = problem(PAIR, masks.blocks((1, 1, 256, 640), 1.0), spread=spread)

    judge(given, forward_kernel(PAIR).run(given))


def test_scores_that_grow_with_every_block(forward_kernel):
    mask = np.ones((1, 1, 256, 512), dtype=bool)
    given = problem(PAIR, mask)
    given.q[..., 0] = 8.0
    for block in range(4):
        given.k[:, 128 * block : 128 * (block + 1), :, 0] = 12.0 * block

    judge(given, forward_kernel(PAIR).run(given))
