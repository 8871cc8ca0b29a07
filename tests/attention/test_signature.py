"""NOTE [Settled calls]: what went through once is not checked again, and nothing else slips in."""

import pytest
import torch

import maskplan as mp
from maskplan.attention import dispatch, signature
from maskplan.attention.signature import SettledCalls
from tests.attention.problems import problem

MASK = torch.rand(1, 1, 12, 10, generator=torch.Generator().manual_seed(3)) < 0.5


@pytest.fixture
def settled(monkeypatch):
    fresh = SettledCalls()
    monkeypatch.setattr(dispatch, "_SETTLED", fresh)
    return fresh


def made():
    return problem(MASK, (4, 4), batch=2, heads=4, kv_heads=2, dims=(8, 6))


def arguments(case):
    return {"q": case.q, "k": case.k, "v": case.v, "plan": case.plan.lower("cpu")}


def test_the_second_call_is_not_checked_and_gives_the_same(settled, monkeypatch):
    given = arguments(made())
    first = mp.attention(**given)

    def refuse(*_, **__):
        raise AssertionError("checked again")

    monkeypatch.setattr(dispatch, "checked", refuse)
    assert torch.equal(mp.attention(**given), first)
    assert len(settled) == 1


def test_both_layouts(settled):
    given = arguments(made())
    wanted = mp.attention(**given)
    turned = {**given, **{name: given[name].transpose(1, 2) for name in "qkv"}}
    for _ in range(2):
        found = mp.attention(**turned, layout="bhsd")
        assert torch.equal(found.transpose(1, 2), wanted)
    assert len(settled) == 2


@pytest.mark.usefixtures("settled")
def test_another_plan_of_the_same_signature_is_followed():
    case = made()
    mp.attention(**arguments(case))
    other = problem(~MASK, (4, 4), batch=2, heads=4, kv_heads=2, dims=(8, 6)).plan
    found = mp.attention(case.q, case.k, case.v, other.lower("cpu"))
    wanted = mp.attention(case.q, case.k, case.v, other, backend="reference")
    torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("settled")
def test_a_new_scale_is_used():
    given = arguments(made())
    mp.attention(**given)
    found = mp.attention(**given, scale=0.3)
    wanted = mp.attention(**{**given, "q": given["q"] * (0.3 * 8**0.5)})
    torch.testing.assert_close(found, wanted)


WRONG = {
    "length": lambda x: {"q": x["q"][:, :11]},
    "keys": lambda x: {"k": x["k"][:, :9], "v": x["v"][:, :9]},
    "heads": lambda x: {"q": x["q"][:, :, :3]},
    "head dim": lambda x: {"k": x["k"][..., :7]},
    "batch": lambda x: {"v": x["v"][:1]},
    "rank": lambda x: {"q": x["q"][0]},
    "dtype": lambda x: {"k": x["k"].double()},
    "integers": lambda x: {name: x[name].int() for name in "qkv"},
    "sparse": lambda x: {"q": x["q"].to_sparse()},
    "device of k": lambda x: {"k": x["k"].to("meta")},
    "device of all": lambda x: {name: x[name].to("meta") for name in "qkv"},
    "no tensor": lambda x: {"v": x["v"].numpy()},
    "plan of another batch": lambda _: {
        "plan": problem(MASK.expand(3, 1, -1, -1), (4, 4)).plan.lower("cpu")
    },
    "no plan": lambda _: {"plan": None},
    "transposed": lambda _: {"plan": made().plan.transpose()},
    "layout": lambda _: {"layout": "sbhd"},
    "layout without a hash": lambda _: {"layout": ["bshd"]},
    "backend": lambda _: {"backend": "fa9"},
    "backend without a hash": lambda _: {"backend": {}},
    "backend that cannot": lambda _: {"backend": "flex"},
    "backward": lambda _: {"backward": "loop"},
    "flag": lambda _: {"deterministic": 1},
    "scale": lambda _: {"scale": "1"},
    "learned scale": lambda _: {"scale": torch.ones((), requires_grad=True)},
    "cache": lambda _: {"cache": {}},
    "layout that does not fit": lambda _: {"layout": "bhsd"},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_as_if_nothing_had_been_settled(settled, monkeypatch, what):
    given = arguments(made())
    mp.attention(**given)
    mp.attention(**given, deterministic=True)
    changed = {**given, **WRONG[what](given)}
    with pytest.raises(mp.MaskplanError) as found:
        mp.attention(**changed)
    monkeypatch.setattr(dispatch, "_SETTLED", SettledCalls())
    with pytest.raises(mp.MaskplanError) as wanted:
        mp.attention(**changed)

    assert type(found.value) is type(wanted.value)
    assert str(found.value) == str(wanted.value)
    assert len(settled) == 2


def test_whether_gradients_are_wanted_is_part_of_it(settled):
    case = made()
    plan = case.plan.lower("cpu")
    with torch.no_grad():
        assert not mp.attention(case.q.requires_grad_(), case.k, case.v, plan).requires_grad
    assert mp.attention(case.q, case.k, case.v, plan).requires_grad
    assert len(settled) == 2


def test_a_call_that_is_observed_has_no_signature():
    case = made()
    given = (case.q, case.k, case.v, case.plan.lower("cpu"), "bshd", "auto", "auto", False)
    assert signature.signature_of(*given) is not None
    assert signature.signature_of(*given[:3], case.plan, *given[4:]) is None

    class Tagged(torch.Tensor):
        pass

    assert signature.signature_of(case.q.as_subclass(Tagged), *given[1:]) is None
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert signature.signature_of(*given) is None


def test_a_signature_holds_no_tensor():
    case = made()
    found = signature.signature_of(
        case.q, case.k, case.v, case.plan.lower("cpu"), "bshd", "auto", "auto", False
    )
    assert not any(isinstance(part, torch.Tensor) for part in found)
    assert hash(found) == hash(found)


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(signature, "_ROOM", 3)
    kept = SettledCalls()
    for number in range(5):
        kept.add((number,), "cpu")
    assert [kept.get((number,)) for number in range(5)] == [None, None, "cpu", "cpu", "cpu"]
    assert len(kept) == 3
