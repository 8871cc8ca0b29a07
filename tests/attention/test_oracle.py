"""Every backend, and every way through it, against loops in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.problems import WAYS, Problem, assert_close, problem, problems


@settings(max_examples=120)
@given(problems(), st.sampled_from(WAYS))
def test_any_call_is_what_loops_say(made: Problem, way):
    assert_close(made.run(*way), made.expected(), made.q.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "block_size", [(1, 128), (1, 1), (7, 3), (128, 128), (160, 200), (384, 384)]
)
def test_block_sizes_from_one_to_many_tiles(block_size, way):
    mask = torch.rand(1, 2, 200, 260, generator=torch.Generator().manual_seed(0)) < 0.05
    mask[:, :, 20:150, 100:240] = True
    mask[:, :, :, 5] = False
    mask[:, :, 7] = False
    made = problem(mask, block_size, heads=4, kv_heads=2, dims=(24, 40))

    assert_close(made.run(*way), made.expected(), torch.float32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dims", [(1, 1), (5, 3), (80, 64), (256, 96), (64, 256)])
def test_head_dims_of_any_size(dims, way):
    mask = torch.rand(1, 1, 70, 90, generator=torch.Generator().manual_seed(1)) < 0.4
    made = problem(mask, (32, 64), heads=2, kv_heads=1, dims=dims)

    assert_close(made.run(*way), made.expected(), torch.float32)


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype, way):
    mask = torch.rand(1, 2, 100, 130, generator=torch.Generator().manual_seed(2)) < 0.3
    made = problem(mask, (32, 32), batch=2, heads=4, kv_heads=2, dtype=dtype)
    found = made.run(*way)

    assert found["lse"].dtype == torch.float32
    assert {found[name].dtype for name in ("out", "dq", "dk", "dv")} == {dtype}
    assert_close(found, made.expected(), dtype)
    # The log-sum-exp is not rounded to the dtype of the inputs.
    assert_close({"lse": found["lse"]}, made.expected(), torch.float32)


def test_scores_far_apart_neither_overflow_nor_vanish():
    mask = torch.ones(1, 1, 64, 96, dtype=torch.bool)
    made = problem(mask, (16, 32), scale=100.0, dtype=torch.float64)

    assert_close(made.run(), made.expected(), torch.float64)
