"""Gradients against differences of attention: right ones agree, planted faults are found."""

import pytest
import torch

import maskplan as mp
from maskplan.attention import derivatives as module
from maskplan.attention import verification
from maskplan.attention.derivatives import derivatives, small
from maskplan.attention.noise import noise_call


def plan():
    """Rows and columns without a pair, two patterns."""
    mask = torch.ones(1, 2, 90, 70, dtype=torch.bool).tril(20)
    mask[:, 1, :, 40:] = False
    mask[:, :, 8:16] = False
    return mp.from_token_mask(mask, block_size=(16, 32))


def gradients_of(call, dout, dlse):
    """In float64, from autograd through the reference."""
    tensors = [x.detach().double().requires_grad_() for x in (call.q, call.k, call.v)]
    out, lse = mp.attention(*tensors, call.plan, backend="reference", return_lse=True)
    found = torch.autograd.grad(
        (out, lse), tensors, (dout.double(), dlse.float().masked_fill(lse.isneginf(), 0))
    )
    return dict(zip("qkv", found, strict=True))


def judged(change=None):
    call, dout, dlse = noise_call(plan(), (16, 24), (4, 2), torch.float64, "auto", 0)
    found = gradients_of(call, dout, dlse)
    if change is not None:
        change(found)
    noise = {name: torch.zeros(1, x.shape[2], dtype=torch.float64) for name, x in found.items()}
    return derivatives(call, found, noise, dout, dlse, seed=0)


def test_right_gradients_agree():
    found = judged()

    assert [c.name for c in found] == ["along q", "along k", "along v"]
    assert [c.blocks for c in found] == [4, 2, 2]
    assert all(c.ok for c in found)


@pytest.mark.parametrize(("name", "head"), [("q", 3), ("k", 1), ("v", 0)])
def test_one_head_that_is_wrong_is_found(name, head):
    def scaled(found):
        found[name][:, :, head] *= 1 + 1e-5

    wrong = {c.name: c for c in judged(scaled) if not c.ok}

    assert list(wrong) == [f"along {name}"]
    assert [fault.head for fault in wrong[f"along {name}"].faults] == [head]


def test_gradients_of_another_function_are_found():
    """Of out alone, where lse has a gradient too; v does not see it."""
    call, dout, dlse = noise_call(plan(), (16, 24), (4, 2), torch.float64, "auto", 0)
    found = gradients_of(call, dout, torch.zeros_like(dlse))
    noise = {name: torch.zeros(1, x.shape[2], dtype=torch.float64) for name, x in found.items()}

    said = {c.name: c.ok for c in derivatives(call, found, noise, dout, dlse, seed=0)}

    assert said == {"along q": False, "along k": False, "along v": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backward", ["loop_q", "loop_k"])
def test_verify_reports_them(dtype, backward):
    report = mp.verify(
        plan(), "cpu", heads=4, kv_heads=2, dtype=dtype, backward=backward, deterministic=True
    )

    assert report.ok
    assert [c.name for c in report.derivatives] == ["along q", "along k", "along v"]
    assert "along q       4  " in str(report)


def test_verify_fails_by_them_alone(monkeypatch):
    real = verification.derivatives

    def wrong(call, gradients, *rest):
        return real(call, gradients | {"q": gradients["q"] * 1.01}, *rest)

    monkeypatch.setattr(verification, "derivatives", wrong)
    report = mp.verify(plan(), "cpu", heads=4, kv_heads=2)

    assert all(c.ok for c in report.comparisons)
    assert not report.ok
    with pytest.raises(mp.MaskplanError, match="along q of backend cpu is wrong in batch 0, head "):
        report.raise_if_failed()


def test_large_calls_have_none(monkeypatch):
    call, *_ = noise_call(plan(), (16, 24), (4, 2), torch.float32, "auto", 0)
    assert small(call)
    monkeypatch.setattr(module, "LARGEST", 4 * 90 * 70 - 1)
    assert not small(call)
    assert mp.verify(plan(), "cpu", heads=4, kv_heads=2).derivatives == ()
