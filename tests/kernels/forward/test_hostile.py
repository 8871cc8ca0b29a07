"""Inputs that break kernels: poison, canaries, views, other orders of a list."""

import numpy as np
import pytest
import torch

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward import masks
from tests.kernels.forward.run import Problem, aligned, judge, problem

CONFIG = ForwardConfig(head_dim=64, head_dim_v=64, group=2)


def inside(shape, dtype, around):
    """(tensor, buffer): a tensor of [B, S, H, D] between poisoned rows, heads and columns."""
    batch, seqlen, heads, width = shape
    buffer = aligned((batch, seqlen + 130, heads + 2, width + 16), dtype, around)
    return buffer[:, 1 : seqlen + 1, 1 : heads + 1, 8 : width + 8], buffer


def test_rows_around_q_k_and_v_are_not_seen(forward_kernel):
    given = problem(CONFIG, masks.blocks((1, 1, 200, 300), 1.0), batch=2, kv_heads=2)
    views = []
    for tensor in (given.q, given.k, given.v):
        view, _ = inside(tensor.shape, tensor.dtype, float("nan"))
        view.copy_(tensor)
        views.append(view)

    strided = Problem(*views, given.masks, given.scale)

    assert not strided.k.is_contiguous()
    judge(strided, forward_kernel(CONFIG).run(strided))


def test_nothing_is_written_beside_o_and_lse(forward_kernel):
    given = problem(CONFIG, masks.blocks((1, 1, 200, 300), 1.0), batch=2, kv_heads=2)
    canary = 1234.0
    o, o_buffer = inside(given.q.shape, given.q.dtype, canary)
    o.fill_(float("nan"))
    lse_buffer = aligned((2 * 4 * 200 + 64,), torch.float32, canary)
    lse = lse_buffer[32:-32].view(2, 4, 200)

    outcome = forward_kernel(CONFIG).run(given, out=(o, lse), ctas=2)

    judge(given, outcome)
    o.fill_(canary)
    lse.fill_(canary)
    assert (o_buffer == canary).all()
    assert (lse_buffer == canary).all()


def test_kv_shared_by_batches_through_a_stride_of_zero(forward_kernel):
    given = problem(CONFIG, masks.blocks((2, 1, 130, 257), 0.7), batch=2)
    k, v = (tensor[:1].expand(2, -1, -1, -1) for tensor in (given.k, given.v))
    shared = Problem(given.q, k, v, given.masks, given.scale)

    judge(shared, forward_kernel(CONFIG).run(shared))


@pytest.mark.parametrize("all_bits", [False, True], ids=["full and bits", "all bits"])
def test_descending_lists_mask_the_tail_too(forward_kernel, all_bits):
    kernel = forward_kernel(CONFIG)
    given = problem(CONFIG, masks.blocks((1, 1, 256, 300), 0.9))
    walk = kernel.tables(given.masks, reverse=True, all_bits=all_bits)

    judge(given, kernel.run(given, walk=walk))


def test_masked_keys_may_be_nan(forward_kernel):
    mask = np.ones((1, 1, 256, 256), dtype=bool)
    mask[..., 5::7] = False
    given = problem(CONFIG, mask)
    clean = forward_kernel(CONFIG).run(given)
    given.k[:, 5::7] = float("nan")

    outcome = forward_kernel(CONFIG).run(given)

    assert torch.equal(outcome.o, clean.o)
    assert torch.equal(outcome.lse, clean.lse)


def test_bits_of_keys_past_the_end_are_not_believed(forward_kernel):
    kernel = forward_kernel(CONFIG)
    mask = np.ones((1, 1, 256, 200), dtype=bool)
    mask[..., 7] = False
    given = problem(CONFIG, mask)
    walk = kernel.tables(mask, all_bits=True)
    walk.tiles[..., 2:] = -1  # keys 64 and on of every tile, in range or not

    judge(given, kernel.run(given, walk=walk))


@pytest.mark.parametrize("row", [0, 127, 128, 299])
def test_rows_without_a_key_between_others(forward_kernel, row):
    mask = masks.blocks((1, 1, 300, 300), 1.0)
    mask[:, :, row] = False
    given = problem(CONFIG, mask)

    judge(given, forward_kernel(CONFIG).run(given))


def test_a_row_whose_first_blocks_keep_nothing(forward_kernel):
    mask = np.ones((1, 1, 256, 512), dtype=bool)
    mask[:, :, ::2, :384] = False
    given = problem(CONFIG, mask)

    judge(given, forward_kernel(CONFIG).run(given))


def test_each_tile_of_a_pair_skips_what_the_other_visits(forward_kernel):
    mask = np.zeros((1, 1, 256, 768), dtype=bool)
    for block in range(6):
        mask[:, :, 128 * (block % 2) :, 128 * block : 128 * (block + 1)] = block % 3 > 0
    mask[:, :, 128:, :256] = False
    given = problem(CONFIG, mask)
    walk = forward_kernel(CONFIG).tables(mask)
    assert {-2} < set(walk.tile_id[:, 0]) != set(walk.tile_id[:, 1])

    judge(given, forward_kernel(CONFIG).run(given, walk=walk))


def test_one_tile_of_a_pair_visits_nothing(forward_kernel):
    for empty in (slice(0, 128), slice(128, 256)):
        mask = np.ones((1, 1, 512, 300), dtype=bool)
        mask[:, :, empty] = False
        given = problem(CONFIG, mask)

        judge(given, forward_kernel(CONFIG).run(given))
