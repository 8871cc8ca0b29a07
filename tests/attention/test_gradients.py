"""autograd around attention: gradcheck, the log-sum-exp, what is asked of it twice, sharing."""

import pytest
import torch

import maskplan as mp
from maskplan.attention import attention
from tests.attention.problems import WAYS, problem

MASK = torch.rand(1, 2, 9, 11, generator=torch.Generator().manual_seed(4)) < 0.5


@pytest.mark.parametrize("way", WAYS)
def test_gradcheck(way):
    MASK[:, :, 2] = False
    made = problem(MASK, (4, 3), heads=4, kv_heads=2, dims=(3, 2), dtype=torch.float64)

    def out(q, k, v):
        return attention(q, k, v, made.plan, backend=way[0], backward=way[1])

    inputs = [x.requires_grad_() for x in (made.q, made.k, made.v)]
    assert torch.autograd.gradcheck(out, inputs, fast_mode=way[0] == "reference")


@pytest.mark.parametrize("way", WAYS)
def test_the_log_sum_exp_alone_has_a_gradient(way):
    made = problem(MASK, (4, 3), heads=2, dims=(3, 2), dtype=torch.float64)
    q, k, v = (x.requires_grad_() for x in (made.q, made.k, made.v))
    _, lse = attention(q, k, v, made.plan, backend=way[0], backward=way[1], return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse[lse.isfinite()].sum(), (q, k, v), materialize_grads=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 3**-0.5
    dense = torch.where(MASK, scores, -torch.inf).logsumexp(-1)
    wanted = torch.autograd.grad(dense[dense.isfinite()].sum(), (q, k))

    torch.testing.assert_close((dq, dk), wanted)
    assert (dv == 0).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_double_backward_says_that_it_is_not_supported(backend):
    made = problem(MASK, (4, 3), heads=2)
    q = made.q.requires_grad_()
    out = attention(q, made.k, made.v, made.plan, backend=backend)
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)

    with pytest.raises(mp.UnsupportedError) as caught:
        dq.sum().backward()

    assert str(caught.value) == (
        "double backward is not supported in the backward of attention: got a gradient of its "
        "gradient, wanted first derivatives of q, k and v; detach the gradients, or differentiate "
        "a dense softmax."
    )


def test_a_graph_kept_for_more_is_no_error_by_itself():
    made = problem(MASK, (4, 3), heads=2)
    q = made.q.requires_grad_()
    out = attention(q, made.k, made.v, made.plan)
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)

    assert dq.isfinite().all()


def test_an_input_changed_in_place_is_caught():
    made = problem(MASK, (4, 3), heads=2)
    q = made.q.requires_grad_()
    out = attention(q, made.k, made.v, made.plan)
    made.k.zero_()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_changed_in_place_is_caught():
    made = problem(MASK, (4, 3), heads=2)
    out = attention(made.q.requires_grad_(), made.k, made.v, made.plan)
    out.mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_one_tensor_as_query_key_and_value():
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    made = problem(mask, (4, 4), dtype=torch.float64)
    x = made.q.clone().requires_grad_()
    attention(x, x, x, made.plan).sum().backward()
    y = made.q.transpose(1, 2).clone().requires_grad_()
    torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).sum().backward()

    torch.testing.assert_close(x.grad, y.grad.transpose(1, 2))


def test_without_gradients_nothing_is_kept():
    made = problem(MASK, (4, 3), heads=2)

    assert attention(made.q, made.k, made.v, made.plan).grad_fn is None
