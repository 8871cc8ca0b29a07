"""The registered operators: torch's own checks of them, and every mode of torch they run under."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import maskplan as mp
from maskplan.attention import attention, operators
from maskplan.attention.facts import operands
from tests.attention.problems import problem

BACKENDS = ("cpu", "reference")
# torch.func.jvp imports parts of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
MASK = torch.rand(1, 2, 19, 21, generator=torch.Generator().manual_seed(12)) < 0.4
MASK[:, :, 5], MASK[:, :, :, 9] = False, False


def made(**options: object):
    return problem(
        MASK, (4, 8), **{"batch": 2, "heads": 4, "kv_heads": 2, "dims": (8, 6)} | options
    )


def arguments(call, plan, backend: str, layout: str, *, grad: bool) -> tuple:
    packed = operands(plan)
    q, k, v = (x.clone().requires_grad_(grad) for x in (call.q, call.k, call.v))
    rest = (list(packed.tensors), packed.spec, backend, 0.3, layout, "auto", False)
    return q, k, v, *rest


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("lowered", [False, True])
def test_opcheck_of_the_forward(backend, layout, lowered):
    """torch's own tests: schema, autograd, fake tensors, and compiled with open shapes."""
    call = made()
    plan = call.plan.lower("cpu") if lowered else call.plan

    torch.library.opcheck(operators.attention, arguments(call, plan, backend, layout, grad=True))
    torch.library.opcheck(operators.attention, arguments(call, plan, backend, layout, grad=False))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dlse", [False, True])
def test_opcheck_of_the_backward(backend, layout, dlse):
    call = made()
    q, k, v, *rest = arguments(call, call.plan.lower("cpu"), backend, layout, grad=False)
    out, lse = operators.attention(q, k, v, *rest)
    given = (out, lse, call.dout, call.dlse if dlse else None)

    torch.library.opcheck(operators.attention_backward, (q, k, v, *given, *rest))


def test_the_schema_holds_tensors_numbers_and_text_alone():
    for operator in (operators.attention, operators.attention_backward):
        kinds = {str(argument.type) for argument in operator._schema.arguments}

        assert kinds <= {"Tensor", "Optional[Tensor]", "List[Tensor]", "str", "float", "bool"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_results_lie_in_memory_as_the_layout_says(backend, layout):
    """Compiled code is made for the strides of the fakes, whatever a backend finds handy."""
    call = made()
    q, k, v, *rest = arguments(call, call.plan, backend, layout, grad=False)
    out, lse = operators.attention(q, k, v, *rest)
    grads = operators.attention_backward(q, k, v, out, lse, call.dout, None, *rest)

    for tensor in (out, *grads):
        dense = tensor if layout == "bshd" else tensor.transpose(1, 2)
        assert dense.is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(backend, reentrant):
    call = made()
    q, k, v = (x.requires_grad_() for x in (call.q, call.k, call.v))

    def block(q, k, v):
        return attention(q * 2, k, v, call.plan, backend=backend).square()

    wanted = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    checkpoint(block, q, k, v, use_reentrant=reentrant).sum().backward()

    torch.testing.assert_close((q.grad, k.grad, v.grad), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_narrows_what_it_narrows_for_dense_attention(dtype):
    """float32, bfloat16 and float16, mixed or not, take the dtype of autocast; gradients do not."""
    call = made()
    q = call.q.requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out = attention(q, call.k.to(dtype), call.v, call.plan)
        dense = torch.nn.functional.scaled_dot_product_attention(call.q, call.q, call.q)
        usable = [s.name for s in mp.backends(q, call.k, call.v, call.plan) if s.usable]
    out.float().sum().backward()
    narrow = [x.detach().to(dtype) for x in (call.q, call.k, call.v)]

    assert out.dtype == dense.dtype == dtype
    assert torch.equal(out, attention(*narrow, call.plan))
    assert q.grad.dtype == torch.float32
    assert usable == ["cpu"], "the reference does not compute narrow dtypes"


def test_autocast_leaves_float64_alone():
    call = made(dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(call.q, call.k, call.v, call.plan, backend="reference")

    assert torch.equal(out, attention(call.q, call.k, call.v, call.plan, backend="reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_and_no_grad(backend):
    call = made()
    q = call.q.requires_grad_()
    wanted = attention(q, call.k, call.v, call.plan, backend=backend).detach()
    with torch.no_grad():
        out = attention(q, call.k, call.v, call.plan, backend=backend)
    with torch.inference_mode():
        inferred = attention(q, call.k, call.v, call.plan, backend=backend)

    assert out.grad_fn is None
    assert inferred.is_inference()
    assert torch.equal(out, wanted)
    assert torch.equal(inferred, wanted)


def test_a_plan_made_in_inference_mode_can_be_trained_with():
    call = made()
    with torch.inference_mode():
        plan = call.plan.reblock((8, 8))
    assert plan.col.is_inference()
    q = call.q.requires_grad_()
    attention(q, call.k, call.v, plan).sum().backward()
    (wanted,) = torch.autograd.grad(attention(q, call.k, call.v, call.plan).sum(), q)

    torch.testing.assert_close(q.grad, wanted)


def test_a_plan_overwritten_before_the_backward_is_refused():
    """Lists in static memory, refilled for the next layer: else gradients of another mask."""
    call = made()
    lowered = call.plan.lower("cpu")
    out = attention(call.q.requires_grad_(), call.k, call.v, lowered)
    lowered.loop_q.col.zero_()

    with pytest.raises(mp.PlanError, match="overwritten between forward and backward"):
        out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_func_grad_and_vmap(backend):
    """A vmapped axis is a batch; gradients of each are those of each alone."""
    call = made()
    many = torch.stack([call.q, call.q.flip(1), call.q * 2], dim=1)
    plan = call.plan.lower("cpu")

    def loss(q, k):
        out, lse = attention(q, k, call.v, plan, backend=backend, return_lse=True)
        return out.square().sum() + torch.where(lse.isfinite(), lse, 0).sum()

    gradient = torch.func.grad(loss, (0, 1))
    found = torch.vmap(gradient, in_dims=(1, None))(many, call.k)
    for i in range(3):
        q, k = many[:, i].detach().requires_grad_(), call.k.detach().requires_grad_()
        wanted = torch.autograd.grad(loss(q, k), (q, k))
        torch.testing.assert_close((found[0][i], found[1][i]), wanted)
        torch.testing.assert_close(gradient(many[:, i], call.k), wanted)


@pytest.mark.parametrize("how", ["lower", "cache", "tiles"])
def test_a_plan_is_lowered_in_the_middle_of_a_transform(how):
    call, cache = made(), mp.PlanCache()
    tiles = call.plan.token_tiles(mp.target("cpu"), policy="union", max_coverage=1.0)

    def loss(q):
        plan = {"lower": call.plan.lower("cpu"), "cache": call.plan, "tiles": tiles}[how]
        kept = cache if how == "cache" else None
        return attention(q, call.k, call.v, plan, backend="cpu", cache=kept).square().sum()

    found = torch.func.grad(loss)(call.q)

    q = call.q.detach().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(loss(q), q)[0])
    assert cache.stats.hits == (how == "cache"), "what was made inside is of use outside"


def test_vmap_needs_a_plan_for_every_element():
    call = problem(MASK.expand(2, -1, -1, -1).clone(), (4, 8), batch=2, heads=2)
    call.plan.pattern_id.copy_(torch.tensor([[0, 1], [1, 0]]))

    with pytest.raises(mp.UnsupportedError) as caught:
        torch.vmap(lambda q: attention(q, call.k, call.v, call.plan))(call.q[None])

    assert str(caught.value) == (
        "transform is not supported in attention: got vmap with a plan of batch 2, wanted a plan "
        "of batch 1; use torch.func.grad or vjp, and vmap over q, k and v alone."
    )


def test_functionalize_is_refused():
    call = made()

    def loss(q):
        return attention(q, call.k, call.v, call.plan, backend="cpu").sum()

    for function in (loss, torch.func.grad(loss)):
        with pytest.raises(
            mp.UnsupportedError, match=r"in attention: got torch\.func\.functionalize"
        ):
            torch.func.functionalize(function)(call.q)


def test_forward_mode_is_refused_and_no_tangent_is_lost():
    call = made()
    message = "got a tangent of q, k or v, wanted gradients in reverse mode"

    def run(q):
        return attention(q, call.k, call.v, call.plan)

    with pytest.raises(mp.UnsupportedError, match=message):
        torch.func.jvp(run, (call.q,), (call.q,))
    with forward_ad.dual_level(), pytest.raises(mp.UnsupportedError, match=message):
        run(forward_ad.make_dual(call.q, call.q))
    with forward_ad.dual_level():
        assert run(call.q).shape == (2, 19, 4, 6), "numbers that are not dual are nothing special"


def test_a_second_derivative_by_torch_func_is_refused():
    call = made()

    def loss(q):
        return attention(q, call.k, call.v, call.plan).square().sum()

    with pytest.raises(mp.UnsupportedError, match="double backward is not supported"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(call.q)
