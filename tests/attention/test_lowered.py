"""Lowered plans: taken apart and put together, moved, and run as the plan they came from."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.attention import attention
from maskplan.attention.facts import operands
from maskplan.lower.lowered import as_it_is, restore
from maskplan.lower.packing import pack, unpack
from tests.attention.problems import WAYS, problem
from tests.strategies import plans

MASK = torch.rand(1, 2, 40, 50, generator=torch.Generator().manual_seed(13)) < 0.2


def same_fields(one: object, other: object) -> bool:
    """Equal tensors and values, field by field."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if not hasattr(one, "__dataclass_fields__"):
        return one == other
    names = [n for n, field in one.__dataclass_fields__.items() if field.init]
    return type(one) is type(other) and all(
        same_fields(getattr(one, name), getattr(other, name))
        for name in names
        if name != "provenance"
    )


@settings(max_examples=30)
@given(plans())
def test_a_lowered_plan_is_restored_from_tensors_and_text(plan):
    for lowered in (as_it_is(plan), plan.lower("cpu", backward=("loop_q", "loop_k"))):
        tensors, spec = lowered.packed.tensors, lowered.packed.spec
        again = restore([tensor.clone() for tensor in tensors], spec)

        assert same_fields(again, lowered)
        assert json.loads(spec)[1] == "maskplan.lower.lowered:LoweredPlan"
        assert len({id(tensor) for tensor in tensors}) == len(tensors), "each tensor once"


def test_the_text_is_that_of_every_plan_of_one_shape():
    """And of none of another: it is what a compiled region is made for."""
    first, second = (problem(MASK * part, (16, 16)).plan for part in (MASK, MASK.roll(1, 2)))
    texts = {plan.lower("cpu").packed.spec for plan in (first, second)}
    other = problem(MASK[:, :, :-1], (16, 16)).plan.lower("cpu").packed.spec
    whole = mp.full(40, 50, block_size=(16, 16)).lower("cpu").packed.spec

    assert len(texts) == 1
    assert not texts & {other, whole}
    assert other != whole


@settings(max_examples=20)
@given(plans())
def test_a_plan_is_packed_as_if_it_had_been_wrapped(plan):
    wrapped, found = as_it_is(plan).packed, operands(plan)

    assert found.spec == wrapped.spec
    assert [id(x) for x in found.tensors] == [id(x) for x in wrapped.tensors]


def test_targets_and_walks_survive():
    lowered = mp.causal(300, 300, block_size=(128, 128)).lower("sm100", backward=("loop_k",))
    again = pickle.loads(pickle.dumps(lowered))
    mapped = pytree.tree_map(lambda tensor: tensor + 0, lowered)

    for other in (again, mapped):
        assert other.target == lowered.target
        assert other.loop_q is None
        assert same_fields(other, lowered)


def test_a_pytree_of_anything_can_be_made():
    """Transformations put other things in place of tensors."""
    lowered = problem(MASK, (16, 16)).plan.lower("cpu")
    shapes = pytree.tree_map(lambda tensor: tuple(tensor.shape), lowered)

    assert shapes.plan.col == (len(lowered.plan.col),)
    assert pytree.treespec_loads(pytree.treespec_dumps(pytree.tree_structure(lowered)))


def test_text_names_classes_of_this_package_alone():
    with pytest.raises(AssertionError, match="no class of maskplan: os:system"):
        unpack([], '["object","os:system",{}]')
    with pytest.raises(AssertionError, match="cannot pack builtins:set"):
        pack({1})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", [(16, 16), (4, 4), (1, 64)])
def test_a_lowered_plan_gives_the_bits_of_the_plan(way, block_size):
    call = problem(MASK, block_size, heads=4, kv_heads=2)
    wanted = call.run(*way)
    for backward in (("loop_q",), ("loop_k",), ()):
        found = replace(call, plan=call.plan.lower("cpu", backward=backward)).run(*way)

        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_backward_walks_the_lists_that_were_made(monkeypatch):
    """Nothing is transposed again in a call."""
    from maskplan.attention import pack_kernel

    def refuse(*_arguments):
        raise AssertionError("transposed")

    call = problem(MASK, (16, 16), heads=2)
    monkeypatch.setattr(pack_kernel, "lists_of_keys", refuse)
    replace(call, plan=call.plan.lower("cpu")).run("cpu", "loop_q")
    with pytest.raises(AssertionError, match="transposed"):
        call.run("cpu", "loop_q")


def test_moving_to_where_it_is_moves_nothing():
    lowered = problem(MASK, (16, 16)).plan.lower("cpu")

    assert lowered.to("cpu") is lowered
    assert lowered.device == torch.device("cpu")
    assert "LoweredPlan(cpu, 40 x 50 tokens" in repr(lowered)


def test_a_lowered_plan_for_another_call_says_what_it_is_for():
    call = problem(MASK, (16, 16), heads=2)
    lowered = call.plan.lower("flex", head_dim=16, heads=4, kv_heads=2, arch="cpu")

    with pytest.raises(mp.UnsupportedError) as caught:
        attention(call.q, call.k, call.v, lowered)
    assert "flex: its plan is lowered for HQ=4, HK=2, D=16, DV=16" in str(caught.value)
    assert 'cpu: it runs no plan that is lowered for "flex"' in str(caught.value)


def test_lists_without_a_backward_are_refused_where_gradients_are_wanted():
    call = problem(MASK, (16, 16), heads=2)
    lowered = call.plan.lower("flex", head_dim=16, arch="cpu", backward=())
    reasons = {s.name: s.reason for s in mp.backends(call.q, call.k, call.v, lowered)}
    q = call.q.requires_grad_()
    wanted = {s.name: s.reason for s in mp.backends(q, call.k, call.v, lowered)}

    assert wanted["flex"] == "its plan is lowered without a backward, and gradients are wanted"
    assert wanted["flex"] != reasons["flex"]


@pytest.mark.parametrize(
    ("act", "error", "parts"),
    [
        (
            lambda p: p.lower("cpu", head_dim=64),
            mp.PlanTypeError,
            ["head_dim", "flex or fa4 alone"],
        ),
        (lambda p: p.lower("flex", backward=("loop_k",)), mp.PlanError, ["loop_k", "loop_q"]),
        (lambda p: p.lower("flex", heads=0), mp.PlanError, ["heads", "0"]),
        (lambda p: p.lower("flex", colour=1), mp.PlanTypeError, ["colour", "head_dim, head_dim_v"]),
        (lambda p: p.lower("flex", subtile=2), mp.PlanTypeError, ["subtile", "sm90 and sm100"]),
        (lambda p: p.lower("cpu", backward=None), mp.PlanTypeError, ["backward", "NoneType"]),
        (lambda p: p.lower("cpu", backward=[[]]), mp.PlanTypeError, ["backward", "[[]]"]),
        (lambda p: p.lower("flex", backward=3), mp.PlanTypeError, ["backward", "3 of type int"]),
        (lambda p: p.lower("flex", arch="sm90"), mp.PlanError, ["'sm90'", "'cuda' or 'cpu'"]),
        (lambda p: p.lower("fa4", arch="cpu"), mp.PlanError, ["'cpu'", "'sm90' or 'sm100'"]),
        (
            lambda p: p.lower("flex", heads=3, kv_heads=2),
            mp.PlanError,
            ["heads do not fit in lists for flex", "HQ=3 with HK=2", "a plan of 2 heads"],
        ),
        (lambda p: p.lower("fa4", arch="sm90", heads=2, kv_heads=4), mp.PlanError, ["HK=4"]),
        (lambda p: p.lower("fa4", arch="sm90", heads=8, kv_heads=4), mp.PlanError, ["of 2 heads"]),
        (lambda p: p.lower("cpu").to("bogus"), mp.PlanError, ["'bogus'", "wanted cpu"]),
        (lambda p: p.lower("cpu").to(None), mp.PlanTypeError, ["NoneType", "torch.device"]),
    ],
)
def test_lists_refuse(act, error, parts):
    with pytest.raises(error) as caught:
        act(problem(MASK, (16, 16)).plan)

    for part in parts:
        assert part in str(caught.value)


def test_the_architecture_of_a_machine_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(mp.UnsupportedError) as caught:
        problem(MASK, (16, 16)).plan.lower("fa4")

    assert str(caught.value) == (
        "no GPU to take the architecture from in device cpu: got no CUDA device, wanted one of "
        "compute capability 9.0 (sm90) or 10.0 (sm100); name the architecture: "
        'plan.lower("fa4", arch="sm90").'
    )


def test_a_lowered_plan_is_an_argument_of_an_exported_program():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v, plan):
            return attention(q, k, v, plan)

    call, other = (problem(mask, (16, 16), heads=2) for mask in (MASK, MASK.roll(5, 3)))
    tensors = (call.q, call.k, call.v)
    program = torch.export.export(Attend(), (*tensors, call.plan.lower("cpu"))).module()

    assert torch.equal(program(*tensors, call.plan.lower("cpu")), attention(*tensors, call.plan))
    assert len(other.plan.col) == len(call.plan.col)
    assert torch.equal(program(*tensors, other.plan.lower("cpu")), attention(*tensors, other.plan))
