"""Faults of gathering: each, planted in the source of the kernel, is found.

Waits, arrivals and fences that are missing are found where mutants are tried.
"""

import numpy as np
import pytest

from kernels_sm100.errors import EmulatorError
from kernels_sm100.modes import InnerLoadMode
from tests.kernels.forward.run import judge, problem
from tests.kernels.gather import masks
from tests.kernels.gather.configs import PACKED, config
from tests.kernels.gather.lists import token_tables

COPY, GATHER4 = InnerLoadMode.CP_ASYNC, InnerLoadMode.TMA_GATHER4


def ragged(_):
    """Three chunks, the last of 44 tokens, of other tokens than chunk numbers."""
    return masks.with_counts(700, (300, 44), 128, seed=2)


def queries_differ(made):
    return masks.by_query((1, 1, 128, 300), 40, 200, made.cta_rows)


def heads_differ(made):
    """Four heads of a token, with a list each."""
    return masks.by_query((1, 4, 64, 300), 40, 150, 64, seed=made.group)


# name: mode, options, mask, module, old text, new text
FAULTS = {
    "tail mask dropped": (
        COPY, {}, ragged, "walk", "else keys[entry]", "else Int32(TILE_K)",
    ),
    "tail of a list taken for the tail of the sequence": (
        COPY, {}, ragged, "walk", "else keys[entry]", "else seqlen_k - walk.col[entry] * TILE_K",
    ),
    "stale index buffer": (
        COPY, {}, ragged, "forward_gathered", "const_expr(part == 0)", "const_expr(part == 1)",
    ),
    "tokens of the chunk before": (
        COPY, {}, ragged, "forward_gathered", "walk.col[item.begin + e + 1]",
        "walk.col[item.begin + e]",
    ),
    "numbers of K's rows for V's": (
        GATHER4, {}, ragged, "forward_gathered", "stage(numbers, buffer, lane)",
        "stage(now, buffer, lane)",
    ),
    "arrival ahead of the copies": (
        COPY, {}, ragged, "gather", "cute.arch.cp_async_mbarrier_arrive_noinc(barrier)",
        "cute.arch.mbarrier_arrive(barrier)",
    ),
    "-1 read as a row": (
        COPY, {}, ragged, "gather", "setp.lt.s32 none, $2, 0;", "setp.lt.s32 none, $2, -9;",
    ),
    "-1 read as a row by TMA": (
        GATHER4, {}, ragged, "gather", "tokens[i] + first if tokens[i] >= 0 else Int32(NONE)",
        "tokens[i] + first",
    ),
    "pieces not exchanged": (
        COPY, {}, ragged, "gather", "(piece ^ (row % 8))", "piece",
    ),
    "one warp copies the other's rows": (
        COPY, {}, ragged, "forward_gathered", "buffer = shared.tokens + worker * share",
        "buffer = shared.tokens",
    ),
    "bytes of a whole chunk expected from each warp": (
        GATHER4, {}, ragged, "gather", "spans * SPAN_BYTES // workers", "spans * SPAN_BYTES",
    ),
    "bits of a packed row taken by token": (
        COPY, PACKED, heads_differ, "forward",
        "row = row // self.config.rows_per_bit_row", "row = row // 4 * 4",
    ),
    "bits of another chunk": (
        COPY, {}, queries_differ, "forward",
        "tile = tile_of(walk, item.begin + e, tile_index, self.config.parts)",
        "tile = tile_of(walk, item.begin, tile_index, self.config.parts)",
    ),
}  # fmt: skip


def given_of(made, mask):
    """Two batches; every token that no list has is NaN, above all the last one of a batch."""
    given = problem(made, mask, batch=2, spread=3.0)
    unlisted = np.flatnonzero(~mask.any((0, 1, 2)))
    assert len(unlisted)
    given.k[:, unlisted] = given.v[:, unlisted] = float("nan")
    return given


@pytest.fixture(scope="module")
def subject(forward_kernel):
    """(config, mask's function) -> (inputs, lists, what a right kernel is judged by), once each.

    The kernel as it is passes.
    """
    made = {}

    def get(config, mask_of):
        if (config, mask_of) not in made:
            mask = mask_of(config)
            mask[..., -1] = False
            given, clean = given_of(config, mask), problem(config, mask, batch=2, spread=3.0)
            walk = token_tables(mask, config, seed=1)
            judge(clean, forward_kernel(config).run(given, walk=walk, schedule="lazy"))
            made[config, mask_of] = given, walk, clean
        return made[config, mask_of]

    return get


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(subject, tmp_path, name):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.mutant import plant

    mode, options, mask_of, *change = FAULTS[name]
    made = config(mode, **options)
    given, walk, clean = subject(made, mask_of)

    faulty = plant(tmp_path, made, tuple(change))

    with pytest.raises((AssertionError, EmulatorError)):
        judge(clean, faulty.run(given, walk=walk, schedule="lazy"))
