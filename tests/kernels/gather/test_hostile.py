"""What gathering must not touch: unselected rows, key -1, rows around K and V; and odd layouts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels_sm100.errors import ConfigError
from kernels_sm100.forward_host import even_rows
from kernels_sm100.modes import InnerLoadMode
from tests.kernels.forward.run import Problem, judge, problem
from tests.kernels.forward.test_hostile import inside
from tests.kernels.gather import masks
from tests.kernels.gather.configs import MODE_IDS, MODES, config
from tests.kernels.gather.lists import token_tables

NAN = float("nan")


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_poison_in_unselected_rows_is_not_seen(forward_kernel, mode):
    """K and V of tokens that no list has are NaN; so are rows before token 0 and behind the last.

    Only bits keep queries of one list apart, and a NaN that one of them selects is the business of
    all: P = 0 times NaN. So the poison is in rows that no query of any tile selects.
    """
    made = config(mode, q_tiles=2)
    mask = masks.by_query((1, 2, 300, 500), 60, 200, 256, seed=3)
    given = problem(made, mask, kv_heads=2)
    views = [given.q]
    for tensor in (given.k, given.v):
        view, _ = inside(tensor.shape, tensor.dtype, NAN)
        view.copy_(tensor)
        for head in range(2):
            view[:, torch.from_numpy(~mask[0, head].any(0)), head] = NAN
        views.append(view)
    poisoned = Problem(*views, mask, given.scale)
    walk = token_tables(mask, made, seed=2)

    outcome = forward_kernel(made).run(poisoned, walk=walk)

    assert torch.isfinite(outcome.o).all()
    judge(given, outcome)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("poisoned", [0, -1], ids=["token 0", "the last token"])
def test_minus_one_reads_no_row(forward_kernel, mode, poisoned):
    """Neither token 0 nor the last one, whichever -1 might stand for."""
    made = config(mode)
    mask = masks.with_counts(300, (5, 130), 128)
    mask[..., poisoned] = False
    given = problem(made, mask)
    given.k[:, poisoned] = given.v[:, poisoned] = NAN

    outcome = forward_kernel(made).run(given, walk=token_tables(mask, made))

    given.k[:, poisoned] = given.v[:, poisoned] = 0
    judge(given, outcome)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("batch", [1, 2])
def test_minus_one_before_the_count_is_a_row_of_zeros_and_no_fault(forward_kernel, mode, batch):
    """Such tables are not made by `TokenTiles`; what they mean is said all the same."""
    made = config(mode)
    mask = masks.with_counts(256, (128,), 128)
    given = problem(made, mask, batch=batch)
    walk = token_tables(mask, made)
    hole = walk.tokens[0, 40]
    walk.tokens[0, 40] = -1

    outcome = forward_kernel(made).run(given, walk=walk)

    given.k[:, hole] = given.v[:, hole] = 0
    judge(given, outcome)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_all_rows_empty(forward_kernel, mode):
    made = config(mode, q_tiles=2)
    mask = np.zeros((1, 1, 520, 300), dtype=bool)
    given = problem(made, mask)
    given.k.fill_(NAN)
    given.v.fill_(NAN)

    outcome = forward_kernel(made).run(given, walk=token_tables(mask, made))

    assert (outcome.o == 0).all()
    assert torch.isneginf(outcome.lse).all()


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_rows_without_a_key_between_others(forward_kernel, mode):
    made = config(mode, q_tiles=2)
    mask = masks.by_query((1, 1, 256, 400), 50, 300, 256)
    mask[:, :, [0, 127, 128, 255]] = False
    given = problem(made, mask)

    judge(given, forward_kernel(made).run(given, walk=token_tables(mask, made)))


def layouts(batch, seqlen, heads, width):
    """Ways in which [B, S, H, D] may lie in memory, by name."""
    dense = torch.zeros(batch, seqlen, heads, width, dtype=torch.bfloat16)
    by_head = dense.new_zeros(batch, heads, seqlen, width).transpose(1, 2)
    fused = dense.new_zeros(batch, seqlen, 3, heads, width)[:, :, 1]
    ragged = dense.new_zeros(batch * (seqlen * heads * width + 8))
    strides = (seqlen * heads * width + 8, heads * width, width, 1)
    apart = ragged.as_strided(dense.shape, strides)
    shared = dense[:1].expand(batch, -1, -1, -1)
    return {
        "dense": dense, "by head": by_head, "fused": fused, "apart": apart, "shared": shared,
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("name", ["dense", "by head", "fused", "apart", "shared"])
def test_any_layout_of_k_and_v(forward_kernel, mode, name):
    made = config(mode)
    mask = masks.by_tile((1, 2, 128, 300), 140, 128)
    given = problem(made, mask, batch=2, kv_heads=2)
    if name == "shared":
        given = replace(given, k=given.k[:1].expand(2, -1, -1, -1))
    k, v = (layouts(2, 300, 2, 64)[name] for _ in range(2))
    (k[:1] if name == "shared" else k).copy_(given.k[:1] if name == "shared" else given.k)
    strided = Problem(given.q, k, given.v if name == "shared" else v.copy_(given.v), mask, 0.125)
    walk = token_tables(mask, made)
    if mode is InnerLoadMode.TMA_GATHER4 and not even_rows(k):
        assert name == "apart"
        with pytest.raises(ConfigError, match="layout of k not available to TMA gathers"):
            forward_kernel(made).run(strided, walk=walk)
        return

    judge(strided, forward_kernel(made).run(strided, walk=walk, ctas=2))


def test_even_rows():
    found = {name: even_rows(tensor) for name, tensor in layouts(2, 300, 2, 64).items()}

    assert found == {
        "dense": True, "by head": True, "fused": True, "apart": False, "shared": True,
    }  # fmt: skip
    assert even_rows(layouts(1, 300, 2, 64)["apart"])
    assert not even_rows(torch.zeros(1, 1, 2, 64).expand(1, 300, 2, 64))
