"""When the SM100 backends are taken, and what they say when they are not."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from maskplan.attention import choice, sm100, sm100_emulated, sm100_kernels
from maskplan.attention.call import make_call
from maskplan.attention.metadata import LoweredFor, Metadata

CUDA = torch.device("cuda", 0)
HEAD_DIMS = (
    "its kernels take head dims that are multiples of 16 up to 128, not {}: pad q, k and v with "
    "zeros"
)
NO_ORDER = (
    'its loop_k adds dK and dV in any order, and equal bits are wanted: pass backward="loop_q", or '
    "deterministic=False"
)


def asked(**changes):
    usual = {
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 64,
        "head_dim_v": 64,
        "plan_heads": 1,
        "partial": True,
        "layout": "bshd",
        "backward": "auto",
        "deterministic": False,
        "differentiable": False,
        "engine": "plan",
        "lowered_for": LoweredFor(),
    }
    return Metadata(**(usual | changes))


@pytest.fixture
def gpu(monkeypatch):
    """What torch says of the GPU at hand."""

    def pretend(capability, name):
        monkeypatch.setattr(sm100, "_gpu", lambda _: (capability, name, 148))

    return pretend


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": CUDA}, "tensors are on cuda:0, and the emulator works on the CPU"),
        ({"dtype": torch.float32}, "it computes bfloat16 and float16, not float32"),
        (
            {"head_dim": 72, "head_dim_v": 72},
            HEAD_DIMS.format((72, 72)),
        ),
        (
            {"head_dim": 192, "head_dim_v": 128},
            HEAD_DIMS.format((192, 128)),
        ),
        ({"differentiable": True, "backward": "loop_k", "deterministic": True}, NO_ORDER),
        ({"differentiable": True, "backward": "loop_q", "deterministic": True}, None),
        ({"backward": "loop_k", "deterministic": True}, None),  # no gradient, no order
        ({"differentiable": True, "backward": "loop_k"}, None),
        ({"differentiable": True}, None),
        ({}, None),
        ({"deterministic": True, "heads": 12}, None),
    ],
)
def test_what_the_emulated_backend_says(changes, reason):
    assert sm100_emulated.supports(asked(**changes)) == reason


@pytest.mark.parametrize("backend", [sm100, sm100_emulated])
def test_what_is_not_installed(monkeypatch, gpu, backend):
    gpu((10, 0), "NVIDIA B200")
    monkeypatch.setattr(sm100_kernels, "find_spec", lambda _: None)
    sm100_kernels.missing.cache_clear()
    device = CUDA if backend is sm100 else torch.device("cpu")

    assert backend.supports(asked(device=device)) == (
        "nvidia-cutlass-dsl and apache-tvm-ffi not installed: pip install 'maskplan[sm100]' brings "
        "it"
    )
    sm100_kernels.missing.cache_clear()


def test_the_wrong_gpu(gpu):
    assert sm100.supports(asked()) == (
        "tensors are on cpu, and its kernels are for SM100 GPUs (B200, B300)"
    )
    gpu((9, 0), "NVIDIA H200")
    assert sm100.supports(asked(device=CUDA)) == (
        "its kernels are for SM100 GPUs (B200, B300), of compute capability 10.0 or 10.3, and "
        "cuda:0 is NVIDIA H200, of 9.0"
    )
    gpu((12, 0), "NVIDIA GeForce RTX 5090")
    assert "of 12.0" in sm100.supports(asked(device=CUDA))


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_an_sm100(gpu, capability):
    gpu(capability, "NVIDIA B200")

    assert sm100.supports(asked(device=CUDA)) is None
    assert sm100.supports(asked(device=CUDA, differentiable=True)) is None


@pytest.mark.parametrize(
    ("block", "group", "packed"),
    [
        ((128, 128), 1, False),
        ((128, 128), 2, True),
        ((96, 80), 4, True),
        ((128, 128), 3, False),
        ((1, 128), 128, True),
    ],
)
def test_plans_on_a_gpu_are_packed_whatever_their_blocks(gpu, block, group, packed):
    gpu((10, 0), "NVIDIA B200")
    call = asked(device=CUDA, heads=4 * group, differentiable=True)
    assert sm100.supports(call) is None

    asks = sm100.lowering(call)
    assert asks.target.pack_gqa == packed
    lowered = mp.causal(512, 512, block_size=block).lower(asks.target, backward=asks.backward)
    assert lowered.forward.rows * lowered.forward.parts >= 512 * (group if packed else 1) / 128


def test_heads_with_lists_of_their_own_are_not_packed():
    assert not sm100_kernels.packs(asked(heads=8, kv_heads=2, plan_heads=8))
    assert sm100_kernels.packs(asked(heads=8, kv_heads=2, plan_heads=2))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"heads": 8}, "its plan is lowered for packed groups of 4 heads, not 2"),
        (
            {"heads": 16, "plan_heads": 16},
            "its plan is lowered for packed groups, whose heads share one list",
        ),
        ({"heads": 16, "plan_heads": 4}, None),
    ],
)
def test_a_plan_lowered_for_packed_heads(changes, reason):
    call = asked(engine="sm100", lowered_for=LoweredFor(arch="sm100", packed=4), **changes)

    assert choice.status(sm100_emulated, call).reason == reason


def test_auto_never_emulates():
    lowered = asked(engine="sm100", lowered_for=LoweredFor(arch="sm100"))

    assert choice.status(sm100_emulated, lowered).usable
    with pytest.raises(mp.UnsupportedError, match="no backend can make this call"):
        choice.choose(lowered, "auto")
    assert choice.choose(lowered, "sm100-emulated") is sm100_emulated


def test_auto_prefers_what_has_run_on_such_a_gpu(monkeypatch, gpu):
    gpu((10, 0), "NVIDIA B200")
    call = asked(device=CUDA)
    monkeypatch.setattr(choice.fa4, "supports", lambda _: None)
    assert choice.choose(call, "auto") is choice.fa4
    monkeypatch.setattr(choice.fa4, "supports", lambda _: "not installed")
    assert choice.choose(call, "auto") is sm100
    order = {"differentiable": True, "backward": "loop_k", "deterministic": True}
    monkeypatch.setattr(choice.flex, "supports", lambda _: None)
    assert choice.choose(replace(call, **order), "auto") is choice.flex


def test_both_are_listed():
    plan = mp.causal(8, 8, block_size=(4, 4))
    q = torch.zeros(1, 8, 1, 16, dtype=torch.bfloat16)

    said = {status.name: status.reason for status in mp.backends(q, q, q, plan)}

    assert said["sm100"] == "tensors are on cpu, and its kernels are for SM100 GPUs (B200, B300)"
    assert said["sm100-emulated"] is None


def test_a_call_that_would_take_minutes():
    plan = mp.causal(16384, 16384, block_size=(128, 128))
    q = torch.zeros(1, 16384, 1, 64, dtype=torch.bfloat16)

    with pytest.raises(mp.UnsupportedError) as caught:
        mp.attention(q, q, q, plan, backend="sm100-emulated")

    assert str(caught.value) == (
        "call is too large to emulate in attention(backend='sm100-emulated'): got 8,448 steps of "
        "128 x 128, about 2 minutes, wanted at most 4,096, about a minute; crop the plan or take "
        "fewer heads, or set sm100_emulated.MAX_STEPS, imported by 'from maskplan.attention import "
        "sm100_emulated'."
    )


@pytest.mark.parametrize(
    ("changes", "backward"),
    [
        ({}, ()),
        ({"differentiable": True}, ("auto",)),
        ({"differentiable": True, "backward": "loop_k"}, ("loop_k",)),
        ({"differentiable": True, "backward": "loop_q"}, ("loop_q",)),
        ({"differentiable": True, "deterministic": True}, ("loop_q",)),
    ],
)
def test_what_a_plan_is_lowered_with(changes, backward):
    assert sm100_emulated.lowering(asked(**changes)).backward == backward


@pytest.mark.parametrize(
    ("lowered", "changes", "reason"),
    [
        (("loop_q",), {}, None),
        (("loop_k",), {}, None),
        (("loop_q", "loop_k"), {"backward": "loop_k"}, None),
        (("loop_k",), {"differentiable": False, "backward": "loop_q"}, None),
        (
            ("loop_q",),
            {"backward": "loop_k"},
            'its plan is lowered for loop_q, and loop_k is wanted: lower it with backward="loop_k"',
        ),
        (
            ("loop_k",),
            {"deterministic": True},
            'its plan is lowered for loop_k, and loop_q is wanted: lower it with backward="loop_q"',
        ),
        ((), {}, "its plan is lowered without a backward, and gradients are wanted"),
    ],
)
def test_a_plan_lowered_for_some_directions(lowered, changes, reason):
    plan = mp.causal(256, 256, block_size=(128, 128)).lower("sm100", backward=lowered)
    call = asked(
        engine="sm100", lowered_for=LoweredFor.of(plan), **{"differentiable": True} | changes
    )

    assert plan.backward == lowered
    assert choice.status(sm100_emulated, call).reason == reason


def test_a_backward_that_would_take_minutes():
    plan = mp.causal(4096, 4096, block_size=(128, 128))
    q = torch.zeros(1, 4096, 3, 64, dtype=torch.bfloat16, requires_grad=True)
    call = call_of(q, plan, "loop_q")

    with pytest.raises(mp.UnsupportedError, match=r"got 5,040 steps of 128 x 128, about a minute"):
        sm100_emulated.backward(call, q, q, q, None)


def call_of(q, plan, backward):
    lowered = plan.lower("sm100", backward=backward)
    return make_call(
        q, q, q, lowered, scale=None, layout="bshd", backward=backward, deterministic=False
    )
