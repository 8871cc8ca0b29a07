"""NOTE [Direct calls]: eager calls go past the operator, and nobody can tell."""

from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import maskplan as mp
from maskplan.attention import choice, cpu, direct, operators
from tests.attention.problems import problem


class Watching(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    """A subclass, which may want to see what is called."""


def case_of():
    mask = torch.rand(1, 2, 40, 50, generator=torch.Generator().manual_seed(0)) < 0.4
    return problem(mask, (16, 16), batch=2, heads=4, kv_heads=2)


@pytest.fixture
def counted(monkeypatch):
    calls = []
    real = direct.attention
    monkeypatch.setattr(direct, "attention", lambda *given: calls.append(1) or real(*given))
    return calls


def gradients(case, lowered):
    leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    out, lse = mp.attention(*leaves, lowered, return_lse=True)
    grads = torch.autograd.grad((out, lse), leaves, (case.dout, case.dlse.nan_to_num()))
    return out.detach(), lse.detach(), *grads


def test_a_mode_sees_the_operator_and_the_same_bits(counted):
    case = case_of()
    lowered = case.plan.lower("cpu")
    found = gradients(case, lowered)
    assert counted == [1]
    with Watching() as watching:
        wanted = gradients(case, lowered)

    assert counted == [1]
    assert operators.attention in watching.seen
    assert operators.attention_backward in watching.seen
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_backward_under_a_mode_is_seen(counted):
    case = case_of()
    leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    out = mp.attention(*leaves, case.plan.lower("cpu"))
    with Watching() as watching:
        torch.autograd.grad(out, leaves, case.dout)

    assert counted == [1]
    assert operators.attention_backward in watching.seen


def test_a_second_derivative_is_refused(counted):
    case = case_of()
    q = case.q.clone().requires_grad_()
    out = mp.attention(q, case.k, case.v, case.plan.lower("cpu"))
    (dq,) = torch.autograd.grad(out, q, case.dout, create_graph=True)
    with pytest.raises(mp.UnsupportedError, match="double backward is not supported"):
        torch.autograd.grad(dq.sum(), q)

    assert counted == [1]


def test_a_plan_overwritten_before_the_backward_is_refused(counted):
    case = case_of()
    lowered = case.plan.lower("cpu")
    q = case.q.clone().requires_grad_()
    out = mp.attention(q, case.k, case.v, lowered)
    lowered.forward.col.add_(0)
    with pytest.raises(mp.PlanError, match="overwritten between forward and backward"):
        out.sum().backward()

    assert counted == [1]


@pytest.mark.parametrize("kind", ["subclass", "transform"])
def test_what_is_not_plain_goes_by_the_operator(counted, kind):
    case = case_of()
    lowered = case.plan.lower("cpu")
    wanted = mp.attention(case.q, case.k, case.v, lowered)
    counted.clear()
    if kind == "subclass":
        found = mp.attention(case.q.as_subclass(Tagged), case.k, case.v, lowered)
    else:
        found = torch.func.vmap(lambda q, k, v: mp.attention(q, k, v, lowered))(
            *(x[None] for x in (case.q, case.k, case.v))
        )[0]

    assert counted == []
    torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted)


class Traced:
    """A backend that leaves lse out where it may."""

    NAME = "traced-without-lse"
    ENGINES = ("cpu",)
    OPERATOR = False
    asked: ClassVar[list[bool]] = []

    @staticmethod
    def supports(asked):
        del asked

    @classmethod
    def attend(cls, call):
        cls.asked.append(call.lse)
        out, lse = cpu.forward(call)
        return out, lse if call.lse else None


def test_a_traced_backend_may_leave_lse_out_where_nobody_wants_it(monkeypatch):
    monkeypatch.setattr(choice, "BACKENDS", (Traced,))
    monkeypatch.setattr(Traced, "asked", [])
    case = case_of()
    lowered = case.plan.lower("cpu")
    given = {"backend": Traced.NAME}
    wanted, lse = mp.attention(case.q, case.k, case.v, lowered, return_lse=True, **given)
    for _ in range(2):
        assert torch.equal(mp.attention(case.q, case.k, case.v, lowered, **given), wanted)

    assert lse.isfinite().any()
    assert Traced.asked == [True, False, False]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of shapes that were compared
def test_a_trace_records_the_operator():
    case = case_of()
    lowered = case.plan.lower("cpu")
    inputs = (case.q, case.k, case.v)
    traced = torch.jit.trace(lambda q, k, v: mp.attention(q, k, v, lowered), inputs)
    others = (case.k.new_empty(case.q.shape).normal_(), case.k + 1, case.v * 2)
    assert torch.equal(traced(*others), mp.attention(*others, lowered))


def test_tensors_without_storage_have_the_shapes_of_the_operator(counted):
    case = case_of()
    lowered = case.plan.lower("cpu").to("meta")
    q, k, v = (x.to("meta").requires_grad_() for x in (case.q, case.k, case.v))
    for _ in range(2):
        out, lse = mp.attention(q, k, v, lowered, return_lse=True)
        assert out.is_meta
        assert (out.shape, lse.shape) == (case.q.shape[:3] + case.v.shape[3:], (2, 4, 40))
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert [grad.shape for grad in grads] == [x.shape for x in (q, k, v)]
    assert counted == []
