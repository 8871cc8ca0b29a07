"""O and LSE of gathered lists against float64, token by token, every access checked for races."""

import numpy as np
import pytest

from kernels_sm100.modes import InnerLoadMode
from tests.kernels.forward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.configs import MODE_IDS, MODES, PACKED, config
from tests.kernels.gather.lists import token_tables

# name: options of the configuration, (plan batches, plan heads), (batch, KV heads), SQ, SK, kind.
# A kind is (topk,) of lists that a tile shares, or (topk, pool) of queries that differ.
CASES = {
    "one tile": ({}, (1, 1), (1, 1), 128, 512, (256,)),
    "a pair, D 128": ({"q_tiles": 2, "head_dim": 128}, (1, 1), (1, 1), 512, 1024, (300,)),
    "a pair, queries differ": ({"q_tiles": 2}, (1, 2), (1, 2), 300, 700, (90, 400)),
    "float16, DV is not D, two stages": (
        {"dtype": "float16", "q_tiles": 2, "head_dim": 128, "head_dim_v": 64, "stages": 2},
        (2, 1), (2, 2), 256, 700, (513,),
    ),
    "packed": (PACKED, (1, 2), (2, 2), 150, 600, (257,)),
    "packed, queries differ": (PACKED, (1, 1), (1, 2), 66, 600, (90, 300)),
    "packed, heads differ": (PACKED, (1, 8), (1, 2), 50, 500, (60, 250)),
    "a token is a tile": ({"group": 128, "pack_gqa": True}, (1, 1), (1, 1), 3, 400, (129,)),
    "not packed": ({"group": 4}, (1, 8), (1, 2), 128, 500, (100,)),
    "one query, one key": ({}, (1, 1), (1, 1), 1, 1, (1,)),
    "more keys than there are": ({}, (1, 1), (1, 1), 128, 200, (1000,)),
    "nothing": ({"q_tiles": 2}, (1, 1), (1, 1), 300, 200, (0,)),
}  # fmt: skip


def mask_of(made, plan, seqlen_q, seqlen_k, kind, seed):
    shape = (*plan, seqlen_q, seqlen_k)
    tokens = made.cta_rows // made.rows_per_token
    if len(kind) == 1:
        return masks.by_tile(shape, *kind, tokens, seed=seed)
    return masks.by_query(shape, *kind, tokens, seed=seed)


# The other load differs in how it finds a row: by batch, by head, in each span.
BY_TMA = (
    "one tile", "a pair, D 128", "float16, DV is not D, two stages", "packed, heads differ",
    "one query, one key",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, MODES[0]) for name in CASES), *((name, MODES[1]) for name in BY_TMA)],
)
def test_gathered_forward_matches_float64(forward_kernel, name, mode):
    options, plan, (batch, kv_heads), seqlen_q, seqlen_k, kind = CASES[name]
    made = config(mode, **options)
    seed = list(CASES).index(name)
    mask = mask_of(made, plan, seqlen_q, seqlen_k, kind, seed)
    given = problem(made, mask, batch=batch, kv_heads=kv_heads, seed=seed)
    walk = token_tables(mask, made, seed=seed)

    outcome = forward_kernel(made).run(given, walk=walk, ctas=2, seed=seed)

    judge(given, outcome)
    assert outcome.report.warnings.keys() <= {"clusters that shared an SM"}


# Valid counts around the edges of a chunk, in one launch; a CTA works on all of them.
COUNTS = (1, 128, 129, 0, 127, 256, 3, 200, 0, 255)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["ascending", "tail first"])
def test_valid_counts_around_the_edges_of_a_chunk(forward_kernel, mode, reverse):
    made = config(mode)
    mask = masks.with_counts(400, COUNTS, 128)
    given = problem(made, mask, spread=3.0)
    walk = token_tables(mask, made, seed=1, reverse=reverse)

    outcome = forward_kernel(made).run(given, walk=walk)

    judge(given, outcome)
    assert set(walk.keys) >= {1, 127, 128}


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_bits_past_a_chunks_tokens_are_not_believed(forward_kernel, mode):
    made = config(mode)
    mask = masks.with_counts(300, (70, 200), 128)
    given = problem(made, mask)
    walk = token_tables(mask, made, all_bits=True)
    walk.tiles[walk.keys[walk.tile_id[:, 0]] <= 96, :, 3] = -1

    judge(given, forward_kernel(made).run(given, walk=walk))


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_a_tile_of_a_pair_skips_chunks_of_the_other(forward_kernel, mode):
    made = config(mode, q_tiles=2)
    mask = np.zeros((1, 1, 256, 768), dtype=bool)
    for chunk in range(6):
        mask[:, :, 128 * (chunk % 2) :, 128 * chunk : 128 * (chunk + 1)] = chunk % 3 > 0
    mask[:, :, 128:, :256] = False
    given = problem(made, mask)
    walk = token_tables(mask, made)
    assert {-2} < set(walk.tile_id[:, 0]) != set(walk.tile_id[:, 1])

    judge(given, forward_kernel(made).run(given, walk=walk))


def test_both_loads_give_the_same_bits(forward_kernel):
    mask = masks.by_query((1, 2, 200, 500), 100, 300, 128, seed=5)
    runs = []
    for mode in MODES:
        made = config(mode)
        given = problem(made, mask, kv_heads=2)
        runs.append(forward_kernel(made).run(given, walk=token_tables(mask, made), races=False))

    assert (runs[0].o == runs[1].o).all()
    assert (runs[0].lse == runs[1].lse).all()


def test_whole_blocks_give_the_bits_of_the_block_sparse_kernel(forward_kernel):
    """K and V are in shared memory as TMA writes whole blocks: see NOTE [Gathered tile]."""
    mask = np.zeros((1, 1, 256, 640), dtype=bool)
    mask[..., 128:384] = mask[..., 512:] = True
    runs = []
    for mode in InnerLoadMode:
        made = config(mode, head_dim=128, q_tiles=2)
        given = problem(made, mask)
        walk = token_tables(mask, made) if made.gathered else None
        runs.append(forward_kernel(made).run(given, walk=walk, races=False))

    for other in runs[1:]:
        assert (other.o == runs[0].o).all()
        assert (other.lse == runs[0].lse).all()
