"""FlexAttention under plans, as far as a CPU goes: without gradients. tests/gpu has the rest.

On a CPU the compiler's code for FlexAttention has no lse, and does not build where the sizes of
captured tensors are left open; so there they are constants.
"""

import gc
import shutil
import weakref

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.attention import flex
from maskplan.lower.engine_lists import flex_lists
from maskplan.lower.packing import pack
from tests.attention.problems import problem

# Eager attention is what some tests are after; its hint to compile is for GPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests():
    torch.compiler.reset()


def masks(kind: str, seed: int = 0) -> torch.Tensor:
    """bool [1, 2, 150, 170] with empty rows and columns, or of whole blocks of 64."""
    noise = torch.Generator().manual_seed(seed)
    if kind == "whole":
        blocks = torch.rand(1, 2, 3, 3, generator=noise) < 0.5
        blocks[:, :, 1] = False
        tokens = blocks.repeat_interleave(64, 2).repeat_interleave(64, 3)
        return tokens[:, :, :150, :170].clone()
    mask = torch.rand(1, 2, 150, 170, generator=noise) < 0.2
    mask[..., :64, 64:128] = True
    mask[..., 70:75, :] = False
    mask[..., 7:9] = False
    return mask


def lists_of(case):
    return flex_lists(
        case.plan, head_dim=16, heads=case.q.shape[2], kv_heads=case.k.shape[2], arch="cpu"
    )


@pytest.mark.parametrize("kind", ["bits", "whole"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (2, 1)])
def test_out_and_lse_of_the_eager_function(kind, heads):
    case = problem(masks(kind)[:, : heads[1]], (64, 64), batch=2, heads=heads[0], kv_heads=heads[1])
    out, lse = flex.flex_attend(
        case.q, case.k, case.v, lists_of(case), scale=0.3, function=flex.flex_function
    )
    expected = problem_expected(case, 0.3)

    np.testing.assert_allclose(out.numpy(), expected.out, atol=1e-5)
    np.testing.assert_allclose(lse.numpy(), expected.lse, atol=1e-5)
    assert np.isinf(expected.lse).any(), "the case has empty rows"


def problem_expected(case, scale):
    from tests.attention.loops import attend

    return attend(case.q, case.k, case.v, case.mask, scale, case.dout, case.dlse)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler writes C++")
@pytest.mark.parametrize("kind", ["bits", "whole"])
def test_lists_and_bits_in_compiled_code(kind):
    case = problem(masks(kind), (64, 64), heads=4, kv_heads=2)
    function = torch.compile(flex.flex_function, fullgraph=True, dynamic=False)
    lists = lists_of(case)
    forward, _, tables = pytree.tree_map_only(torch.Tensor, torch.clone, flex.flex_inputs(lists))
    q, k, v = (x.transpose(1, 2) for x in (case.q, case.k, case.v))
    with torch.no_grad():
        out, lse = function(
            q, k, v, forward, None, None if lists.whole else tables, (64, 64), 0.3, False
        )

    assert lse is None
    assert lists.whole == (kind == "whole")
    np.testing.assert_allclose(
        out.transpose(1, 2).numpy(), problem_expected(case, 0.3).out, atol=1e-5
    )


def test_ten_plans_of_one_shape_compile_once():
    """Other numbers of blocks, tiles, patterns and widths of lists are no reason to compile."""
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(flex.flex_function, fullgraph=True, backend=counter)
    noise = torch.Generator().manual_seed(0)
    shapes = set()
    for seen in range(0, 700, 70):
        mask = torch.rand(1, 2, 150, 700, generator=noise) < 0.3
        mask[..., seen:] = False
        if seen == 140:
            mask[:, 1] = mask[:, 0]  # one pattern
        case = problem(mask, (32, 32), heads=2)
        lists = flex_lists(case.plan, head_dim=16, heads=2, kv_heads=2, width="compact")
        out, _ = flex.flex_attend(case.q, case.k, case.v, lists, scale=0.25, function=function)
        np.testing.assert_allclose(out.numpy(), case.expected().out, atol=1e-5)
        tables = lists.bits
        shapes.add((lists.forward.mask_block_idx.shape[3], len(tables.content), len(tables.tiles)))

    assert len(shapes) >= 6
    assert counter.frame_count == 1


def test_more_shapes_than_dynamo_compiles_of_one_function(monkeypatch):
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(flex, "COMPILER", counter)
    flex.compiled.cache_clear()
    for extra in range(12):
        mask = torch.ones(150 + extra, 170, dtype=torch.bool).tril(extra)[None, None]
        case = problem(mask, (128, 128), heads=2)
        lists = flex_lists(case.plan, head_dim=16, heads=2, kv_heads=2)
        for _ in range(2):
            out, _ = flex.flex_attend(case.q, case.k, case.v, lists, scale=0.25)
        np.testing.assert_allclose(out.numpy(), case.expected().out, atol=1e-5)
    flex.compiled.cache_clear()

    assert counter.frame_count == 12


def test_inputs_are_kept_with_the_lists_and_hold_no_copies():
    """A plan in static memory that is written again is seen by the next call."""
    case = problem(masks("bits"), (64, 64), heads=2)
    lists = flex_lists(case.plan, head_dim=16, heads=2, kv_heads=2)
    first = flex._kept_inputs(lists)
    own = {tensor.untyped_storage().data_ptr() for tensor in pack(lists).tensors}

    assert flex._kept_inputs(lists) is first
    assert {x.untyped_storage().data_ptr() for x in pytree.tree_leaves(first)} <= own
    gone = weakref.ref(lists)
    del lists
    gc.collect()
    assert gone() is None


def test_gradients_need_lists_of_the_backward():
    case = problem(masks("bits"), (64, 64), heads=2)
    lists = flex_lists(case.plan, head_dim=16, heads=2, kv_heads=2, backward=False)
    q = case.q.clone().requires_grad_()
    with pytest.raises(mp.UnsupportedError, match="there are no lists for the backward"):
        flex.flex_attend(q, case.k, case.v, lists, scale=1.0)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_attend(lengths):
    q, k, v = (torch.full((2, n, 2, 16), torch.nan) for n in (lengths[0], lengths[1], lengths[1]))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = flex.nothing(q, k, v)
    grads = torch.autograd.grad((out, lse), (q, k, v), (torch.ones_like(out), torch.ones_like(lse)))

    assert torch.equal(out, torch.zeros(2, lengths[0], 2, 16))
    assert torch.equal(lse, torch.full((2, 2, lengths[0]), -torch.inf))
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in grads)
