"""Bad calls: one sentence that says what, where, what came, what was wanted and what to do."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from maskplan.attention import attention, backends
from tests.attention.problems import Problem, problem

BACKENDS = ["fa4", "sm100", "flex", "cpu", "reference", "sm100-emulated"]
MASK = torch.rand(1, 1, 12, 10, generator=torch.Generator().manual_seed(10)) < 0.5


def made(**options: object) -> Problem:
    return problem(MASK, (4, 4), **{"heads": 4, "kv_heads": 2, "dims": (8, 6), **options})


def refusal(kind: type[Exception], call: Problem, **options: object) -> str:
    """The message of a call that has to be refused; asking for backends refuses it alike."""
    with pytest.raises(kind) as caught:
        attention(call.q, call.k, call.v, call.plan, **options)
    return str(caught.value)


def test_another_length_of_queries():
    call = made()

    assert refusal(mp.PlanError, replace(call, q=call.q[:, :11])) == (
        "plan is for another length in q: got 11 tokens, wanted 12 tokens, as the plan's seqlen_q; "
        "build the plan for this length, crop it, or check the layout."
    )


def test_another_length_of_keys():
    call = made()

    assert refusal(mp.PlanError, replace(call, k=call.k[:, :9], v=call.v[:, :9])) == (
        "plan is for another length in k: got 9 tokens, wanted 10 tokens, as the plan's seqlen_k; "
        "build the plan for this length, crop it, or check the layout."
    )


def test_heads_that_do_not_divide():
    call = made()

    assert refusal(mp.PlanError, replace(call, q=call.q[:, :, :3])) == (
        "query heads do not divide among KV heads in q: got HQ=3 with HK=2, wanted HQ a multiple "
        "of HK; repeat KV heads, or check which axis is heads."
    )


def test_query_heads_without_kv_heads():
    call = made()

    assert "HQ=4 with HK=0" in refusal(
        mp.PlanError, replace(call, k=call.k[:, :, :0], v=call.v[:, :, :0])
    )


def test_a_plan_for_other_heads():
    call = made()
    plan = problem(MASK.expand(1, 3, -1, -1), (4, 4), heads=3).plan

    assert refusal(mp.PlanError, replace(call, plan=plan)) == (
        "plan has another number of heads in plan: got 3, wanted one of [1, 2, 4] (1, KV heads, "
        "query heads); use plan.with_heads, or check which axis is heads."
    )


def test_a_plan_for_another_batch():
    call = made()
    plan = problem(MASK.expand(2, 1, -1, -1), (4, 4), batch=2).plan

    assert refusal(mp.PlanError, replace(call, plan=plan)) == (
        "plan has another batch size in plan: got 2, wanted 1; build the plan for this batch."
    )


@pytest.mark.parametrize("name", ["k", "v"])
def test_dtypes_that_differ(name):
    call = made()
    call = replace(call, **{name: getattr(call, name).bfloat16()})

    assert refusal(mp.PlanTypeError, call) == (
        f"dtypes differ in {name}: got bfloat16, wanted float32, as q; convert {name} or q."
    )


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_wrong_rank(name):
    call = made()
    shape = list(getattr(call, name)[0].shape)

    assert refusal(mp.PlanTypeError, replace(call, **{name: getattr(call, name)[0]})) == (
        f"argument is not a dense float tensor of rank 4 in {name}: got float32 {shape}, wanted "
        "a dense float tensor [b, s, h, d]; add the missing axes, or convert it."
    )


def test_integers_are_not_attended():
    call = made()

    assert "got int64 [1, 12, 4, 8]" in refusal(mp.PlanTypeError, replace(call, q=call.q.long()))


def test_an_array_is_not_a_tensor():
    call = made()

    assert "got ndarray" in refusal(mp.PlanTypeError, replace(call, v=call.v.numpy()))


def test_head_dims_that_differ():
    call = made()

    assert refusal(mp.PlanError, replace(call, k=call.k[..., :7])) == (
        "head dims do not fit in q, k and v: got 8, 7 and 6, wanted q and k alike, none zero; "
        "pass q and k with one head dim; v may have its own."
    )


def test_keys_and_values_of_other_tokens():
    call = made()

    assert refusal(mp.PlanError, replace(call, v=call.v[:, :9])) == (
        "k and v differ in length or heads in v: got 9 tokens, 2 heads, wanted 10 tokens, 2 heads, "
        "as k; pass k and v of the same tokens."
    )


def test_batches_that_differ():
    call = made(batch=2)

    assert refusal(mp.PlanError, replace(call, k=call.k[:1])) == (
        "batch sizes differ in k: got 1, wanted 2, as q; expand k to the batch of q."
    )


def test_devices_that_differ():
    call = made()

    assert refusal(mp.PlanError, replace(call, k=call.k.to("meta"))) == (
        "devices differ in k: got meta, wanted cpu, as q; move k to cpu."
    )
    tensors = {name: getattr(call, name).to("meta") for name in ("q", "k", "v")}
    assert refusal(mp.PlanError, replace(call, **tensors)) == (
        "devices differ in plan: got cpu, wanted meta, as q; move q, k and v to cpu, or "
        "the plan to meta."
    )


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("layout", "'bshd' or 'bhsd'"),
        ("backward", "'auto' or 'loop_q' or 'loop_k'"),
        ("backend", " or ".join(map(repr, ("auto", *BACKENDS)))),
    ],
)
def test_unknown_choices(name, choices):
    assert refusal(mp.PlanError, made(), **{name: "flash"}) == (
        f"unknown {name} in attention: got 'flash', wanted {choices}; pass one of these as {name}."
    )


def test_a_transposed_plan():
    call = made()
    transposed = call.plan.transpose()

    assert refusal(mp.PlanTypeError, replace(call, plan=transposed)) == (
        "plan lists queries per key block in plan: got TransposedPlan, wanted a Plan, which lists "
        "keys per query block; pass plan.transpose()."
    )
    attention(call.q, call.k, call.v, transposed.transpose())


def test_something_else_as_a_plan():
    assert refusal(mp.PlanTypeError, replace(made(), plan=MASK)) == (
        "plan is of the wrong type in plan: got Tensor, wanted a Plan, which lists keys per query "
        "block; make one with a builder."
    )


def test_a_backend_that_cannot():
    call = made(dtype=torch.bfloat16)

    assert refusal(mp.UnsupportedError, call, backend="reference") == (
        "backend cannot in attention(backend='reference'): got bfloat16 on cpu, backward='auto', "
        "wanted a call that it supports (reference: it computes float32 and float64, not "
        "bfloat16); convert the tensors, or choose by maskplan.backends(q, k, v, plan)."
    )


def test_a_dtype_that_nobody_computes():
    call = made()
    call = replace(call, **{n: getattr(call, n).to(torch.float8_e4m3fn) for n in ("q", "k", "v")})
    message = refusal(mp.UnsupportedError, call)

    assert "no backend can make this call" in message
    assert "cpu: it does not compute float8_e4m3fn; reference: it computes float32" in message


def test_backends_say_why():
    call = made(dtype=torch.bfloat16)
    said = {status.name: status for status in backends(call.q, call.k, call.v, call.plan)}
    assert list(said) == BACKENDS
    fa4, flex, cpu, reference = (said[name] for name in ("fa4", "flex", "cpu", "reference"))
    assert str(fa4).startswith("fa4: tensors are on cpu")
    assert str(flex).startswith("flex: tensors are on cpu")

    assert (cpu.name, cpu.usable, str(cpu)) == ("cpu", True, "cpu: usable")
    assert not reference.usable
    assert reference.reason == "it computes float32 and float64, not bfloat16"
    with pytest.raises(mp.PlanError, match="plan is for another length"):
        backends(call.q[:, 1:], call.k, call.v, call.plan)


def test_the_reference_has_no_loops_to_choose():
    message = refusal(mp.UnsupportedError, made(), backend="reference", backward="loop_q")

    assert "its gradients come from autograd, so backward='loop_q' means nothing" in message


def test_a_lowered_plan_is_the_plan():
    call = made()
    found, wanted = replace(call, plan=call.plan.lower("cpu")).run(), call.run()

    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_plan_lowered_for_another_target():
    call = made(dims=(64, 64))
    lowered = call.plan.reblock((64, 64)).lower("sm90")

    assert "plan is lowered for another target in plan" in refusal(
        mp.UnsupportedError, replace(call, plan=lowered)
    )


def test_layouts_agree():
    call = made()
    found, wanted = replace(call, layout="bhsd").run(), call.run()

    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor)
    heads_first = [x.transpose(1, 2).contiguous() for x in (call.q, call.k, call.v)]
    assert attention(*heads_first, call.plan, layout="bhsd").is_contiguous()
    assert attention(call.q, call.k, call.v, call.plan).is_contiguous()


@pytest.mark.parametrize("scale", ["a", torch.tensor(0.5, requires_grad=True)])
def test_a_scale_that_is_no_plain_number(scale):
    message = refusal(mp.PlanTypeError, made(), scale=scale)

    assert message.startswith("scale is not a plain number in scale: got ")
    assert message.endswith("pass a float; multiply q by a scale that is learned.")


@pytest.mark.parametrize("scale", [1e300, -1e300, float("nan")])
def test_a_scale_beyond_the_dtype_warns_of_nothing_and_is_not_hidden(scale):
    call = made()

    out = attention(call.q, call.k, call.v, call.plan, scale=scale)

    assert out.isnan().any()


def test_a_sparse_tensor():
    call = made()

    assert "wanted a dense float tensor [b, s, h, d]" in refusal(
        mp.PlanTypeError, replace(call, q=call.q.detach().to_sparse())
    )
