"""The comparator itself: rounding passes, and every planted fault is caught and named."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import maskplan as mp
from maskplan.attention import choice, cpu
from maskplan.attention.budget import compare
from maskplan.attention.results import Results, expected, judge
from maskplan.attention.verification import verify
from tests.attention.problems import problem

BLOCK = 16
NAMES = ("out", "lse", "dq", "dk", "dv")


@pytest.fixture(scope="module")
def judged():
    """(call, dout, rows, keys, exact, peer, found) of a causal call with two heads a group."""
    mask = torch.ones(1, 2, 64, 64, dtype=torch.bool).tril()
    made = problem(mask, (BLOCK, BLOCK), heads=4, kv_heads=2, dims=(24, 24))
    from maskplan.attention.call import make_call

    call = make_call(
        made.q, made.k, made.v, made.plan, scale=None, layout="bshd", backward="auto",
        deterministic=False,
    )  # fmt: skip
    rows = torch.arange(64)
    out, lse = cpu.forward(call)
    grads = cpu.backward(call, out, lse, made.dout, made.dlse)
    exact, peer = (
        expected(call, dtype, made.dout, made.dlse, rows, rows, None)
        for dtype in (torch.float64, torch.float32)
    )
    found = Results(
        out=out, lse=lse.transpose(1, 2)[..., None], dq=grads[0], dk=grads[1], dv=grads[2]
    )
    return call, made.dout, rows, exact, peer, found


def faulty(judged, name: str, change) -> dict:
    """Comparisons by name, after `change` was applied to a copy of one result."""
    call, dout, rows, exact, peer, found = judged
    tensor = getattr(found, name).clone()
    changed = change(tensor)
    bad = replace(found, **{name: tensor if changed is None else changed})
    return {c.name: c for c in judge(bad, exact, peer, call, dout, rows, rows)}


def drop_last_block(tensor: Tensor) -> None:
    tensor[:, -BLOCK:] = 0


def lose_block_0(tensor: Tensor) -> None:
    tensor[:, :BLOCK] = 0


def leave_out_a_head(tensor: Tensor) -> None:
    tensor[:, :, 1] = 0


def one_head_nan(tensor: Tensor) -> None:
    tensor[:, :, -1] = torch.nan


def one_infinity(tensor: Tensor) -> None:
    tensor[0, 5, 0, 0] = torch.inf


def swap_axes(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).reshape(tensor.shape)


def shift_by_one(tensor: Tensor) -> Tensor:
    return tensor.roll(1, 1)


def scale_by_one_percent(tensor: Tensor) -> Tensor:
    return tensor * 1.01


FAULTS = (
    drop_last_block, lose_block_0, leave_out_a_head, one_head_nan, one_infinity, swap_axes,
    shift_by_one, scale_by_one_percent,
)  # fmt: skip


def test_the_cpu_backend_keeps_its_budget(judged):
    comparisons = faulty(judged, "out", lambda _: None)

    assert all(c.ok for c in comparisons.values())
    assert all(0 <= c.worst <= 1 for c in comparisons.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_in_the_tensor_that_has_it(judged, name, fault):
    comparisons = faulty(judged, name, fault)

    assert [n for n in NAMES if not comparisons[n].ok] == [name]


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_a_scale_of_one_in_a_hundred_thousand_is_caught(judged, name):
    """Every block of it, by the norm: no element of float32 stands out by so little."""
    comparisons = faulty(judged, name, lambda x: x * (1 + 1e-5))

    assert [n for n in NAMES if not comparisons[n].ok] == [name]
    assert len(comparisons[name].faults) == comparisons[name].blocks


def test_dq_scaled_by_1_29_is_named_with_its_norm(judged):
    comparison = faulty(judged, "dq", lambda x: x * 1.29)["dq"]

    assert comparison.worst > 1
    assert comparison.faults[0].norm_ratio == pytest.approx(1.29, rel=1e-4)
    assert "norm ratio 1.29" in str(comparison.faults[0])


def test_a_scale_within_every_element_s_rounding_is_caught_by_the_norm():
    """bfloat16: 0.8% on each element hides in the budget of the largest one, not in the norm's."""
    exact = torch.randn(1, 64, 1, 32, generator=torch.Generator().manual_seed(0)).double()
    peer, block = exact.bfloat16(), torch.arange(64) // 16
    scaled = (exact * 1.008).bfloat16()
    right = compare("out", peer, exact, peer, block=block)
    wrong = compare("out", scaled, exact, peer, block=block)

    assert right.ok
    assert wrong.worst <= 1, "no element is beyond its budget"
    assert len(wrong.faults) == 4


def test_the_block_at_fault_is_named(judged):
    def spoil(tensor):
        tensor[0, 2 * BLOCK + 3, 1] += 1e-3

    (fault,) = faulty(judged, "dv", spoil)["dv"].faults

    assert (fault.batch, fault.head, fault.block) == (0, 1, 2)


def test_nan_where_nan_belongs_is_right():
    exact = torch.randn(1, 8, 2, 4, dtype=torch.float64)
    exact[0, 3, 1] = torch.nan
    exact[0, 4, 0, 0] = torch.inf
    result = exact.float()
    block = torch.arange(8) // 4

    assert compare("out", result, exact, result, block=block).ok
    result = result.clone()
    result[0, 4, 0, 0] = -torch.inf
    assert not compare("out", result, exact, exact.float(), block=block).ok
    result[0, 4, 0, 0] = torch.inf
    result[0, 3, 1, 2] = 0.0
    assert not compare("out", result, exact, exact.float(), block=block).ok


def test_a_peer_that_fails_does_not_widen_the_budget():
    exact = torch.randn(1, 8, 1, 4, dtype=torch.float64)
    peer = exact.float()
    peer[0, 2] = torch.nan

    assert not compare("out", exact.float() * 1.5, exact, peer, block=torch.arange(8) // 4).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("backward", ["loop_q", "loop_k"])
def test_verify_passes_what_is_right(backward, dtype):
    mask = torch.rand(2, 2, 60, 70, generator=torch.Generator().manual_seed(9)) < 0.2
    plan = problem(mask, (16, 32), batch=2, heads=2).plan
    report = verify(plan, "cpu", heads=4, kv_heads=2, head_dim_v=24, dtype=dtype, backward=backward)

    report.raise_if_failed()
    assert report.ok
    assert not report.sampled
    assert [c.name for c in report.comparisons] == list(NAMES)
    assert "right on every query and key" in str(report)


def test_verify_samples_a_long_plan():
    mask = torch.ones(1, 1, 600, 500, dtype=torch.bool).tril(50)
    report = verify(problem(mask, (64, 64)).plan, "cpu", samples=20)

    assert report.ok
    assert report.sampled
    assert "right on sampled queries and keys" in str(report)


def test_verify_takes_lowered_plans():
    mask = torch.ones(1, 1, 60, 50, dtype=torch.bool).tril(5)
    report = verify(problem(mask, (16, 16)).plan.lower("cpu"), "auto", device="cpu", heads=2)

    assert report.ok
    assert report.backend == "cpu"


def test_verify_says_why_a_backend_cannot():
    plan = problem(torch.ones(1, 1, 8, 8, dtype=torch.bool), (4, 4)).plan

    with pytest.raises(mp.UnsupportedError, match="flex: tensors are on cpu"):
        verify(plan, "flex", dtype=torch.bfloat16)


def test_verify_of_nothing():
    mask = torch.zeros(1, 1, 5, 0, dtype=torch.bool)

    assert verify(problem(mask, (2, 2)).plan, "cpu").ok


@pytest.mark.parametrize(("name", "place"), [("out", 0), ("dq", 0), ("dk", 1), ("dv", 2)])
def test_verify_fails_what_is_wrong(monkeypatch, name, place):
    """A backend that scales one result, as a wrong softmax scale in a backward does."""

    class Wrong:
        NAME, ENGINES, OPERATOR = "wrong", cpu.ENGINES, True
        supports = staticmethod(cpu.supports)

        @staticmethod
        def forward(call):
            out, lse = cpu.forward(call)
            return (out * 1.29, lse) if name == "out" else (out, lse)

        @staticmethod
        def backward(call, out, lse, dout, dlse):
            grads = list(cpu.backward(call, out, lse, dout, dlse))
            if name != "out":
                grads[place] = grads[place] * 1.29
            return tuple(grads)

    monkeypatch.setattr(choice, "BACKENDS", (Wrong,))
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    report = verify(problem(mask, (16, 16)).plan, "wrong")

    assert not report.ok
    assert name in [c.name for c in report.comparisons if not c.ok]
    assert "WRONG" in str(report)
    with pytest.raises(mp.MaskplanError, match=f"{name} of backend wrong is wrong in batch 0"):
        report.raise_if_failed()


def test_verify_holds_a_backend_to_its_forward_where_it_cannot_do_the_backward_asked_for(
    monkeypatch,
):
    class NeverEqual:
        NAME, ENGINES, OPERATOR = "never equal", cpu.ENGINES, True
        forward = staticmethod(cpu.forward)

        @staticmethod
        def supports(asked):
            if asked.differentiable and asked.deterministic:
                return "it adds in any order"
            return cpu.supports(asked)

    monkeypatch.setattr(choice, "BACKENDS", (NeverEqual,))
    plan = problem(torch.ones(1, 1, 8, 8, dtype=torch.bool), (4, 4)).plan

    report = verify(plan, "never equal", deterministic=True)

    assert report.ok
    assert report.no_backward == "it adds in any order"
    assert [comparison.name for comparison in report.comparisons] == ["out", "lse"]
