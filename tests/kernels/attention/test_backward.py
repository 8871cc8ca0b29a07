"""Gradients of "sm100-emulated" against float64, where the covering array does not go."""

from dataclasses import dataclass

import pytest
import torch

import maskplan as mp
from maskplan.attention import sm100_backward
from maskplan.lower.lowering import backward_choice
from tests.kernels.attention.test_emulated import BACKEND, mask_of, plan_of


@dataclass(frozen=True, kw_only=True)
class Way:
    """One call; `packed` is decided by heads and lists, so it is what is expected."""

    direction: str
    kind: str  # of mask
    planned: tuple[int, int]  # plan batch, plan heads
    size: tuple[int, int, int]  # B, HQ, HK
    lengths: tuple[int, int]
    block: tuple[int, int]
    dims: tuple[int, int] = (64, 64)
    dtype: torch.dtype = torch.bfloat16
    packed: bool = False


PADDED = Way(direction="loop_q", kind="tokens", planned=(1, 1), size=(1, 1, 1), lengths=(200, 130),
             block=(64, 64), dims=(48, 112))  # fmt: skip
SHARED_ROWS = Way(direction="loop_q", kind="causal", planned=(1, 1), size=(1, 4, 1),
                  lengths=(256, 256), block=(256, 128), packed=True)  # fmt: skip
WIDE = Way(direction="loop_q", kind="tokens", planned=(1, 1), size=(1, 1, 1), lengths=(300, 257),
           block=(128, 128), dims=(128, 128))  # fmt: skip
BATCHED = Way(direction="loop_q", kind="blocks", planned=(2, 1), size=(2, 2, 2),
              lengths=(300, 200), block=(64, 64))  # fmt: skip


def draw(way, seed=0):
    """(q, k, v) that want gradients."""
    noise = torch.Generator().manual_seed(seed)
    batch, heads, kv_heads = way.size
    shapes = (
        (way.lengths[0], heads, way.dims[0]),
        (way.lengths[1], kv_heads, way.dims[0]),
        (way.lengths[1], kv_heads, way.dims[1]),
    )
    return [torch.randn(batch, *s, generator=noise).to(way.dtype).requires_grad_() for s in shapes]


def plan_for(way):
    return plan_of(mask_of(way.kind, (*way.planned, *way.lengths)), way.block)


@pytest.fixture
def launched(monkeypatch):
    """Configurations of the backwards that run."""
    found = []
    real = sm100_backward.backward_config

    def heard(*arguments):
        found.append(real(*arguments))
        return found[-1]

    monkeypatch.setattr(sm100_backward, "backward_config", heard)
    return found


@pytest.mark.parametrize("way", [PADDED, SHARED_ROWS], ids=["padded heads", "shared rows"])
def test_verify(launched, way):
    """Every (batch, head, block) of every gradient, within its error budget."""
    report = mp.verify(
        plan_for(way), backend=BACKEND, heads=way.size[1], kv_heads=way.size[2],
        head_dim=way.dims[0], head_dim_v=way.dims[1], dtype=way.dtype, samples=10**6,
        backward=way.direction,
    )  # fmt: skip

    report.raise_if_failed()
    assert [c.name for c in report.derivatives] == ["along q", "along k", "along v"]
    (config,) = launched
    assert (config.direction, config.pack_gqa) == (way.direction, way.packed)


@pytest.mark.parametrize(("lengths", "direction"), [((256, 256), "loop_q"), ((512, 128), "loop_k")])
def test_auto_takes_what_the_plan_is_for(launched, lengths, direction):
    """Four Q tiles that all see the one KV block are a column of four, or four rows of one."""
    plan = plan_of(mask_of("tokens", (1, 1, *lengths)), (128, 128))

    mp.verify(plan, backend=BACKEND).raise_if_failed()

    assert [config.direction for config in launched] == [direction]
    assert backward_choice(plan, mp.target("sm100", head_dim=64)).direction == direction


def test_a_group_is_split_where_kv_heads_are_few(launched):
    plan = plan_of(mask_of("tokens", (1, 2, 200, 100)), (128, 128))

    report = mp.verify(plan, backend=BACKEND, heads=2, kv_heads=1, backward="loop_q")

    report.raise_if_failed()
    assert [config.head_split for config in launched] == [2]


@pytest.mark.parametrize(("subtile", "spt"), [(1, False), (2, True), (4, False)])
def test_coarse_q_blocks(launched, subtile, spt):
    """An odd number of Q tiles, an empty column, rows that start late; both orders of turns."""
    mask = mask_of("blocks", (1, 2, 640, 200)).copy()
    mask[..., 128:] = False
    mask[..., 0, :128] = True
    plan = plan_of(mask, (64, 64))
    way = Way(direction="loop_q", kind="blocks", planned=(1, 2), size=(1, 2, 2),
              lengths=(640, 200), block=(64, 64))  # fmt: skip
    q, k, v = draw(way)
    target = mp.target("sm100", head_dim=64)
    lowered = plan.lower(target, subtile=subtile, spt=spt)
    out = mp.attention(q, k, v, lowered, backend=BACKEND, deterministic=True)
    got = torch.autograd.grad(out.double().square().sum(), (q, k, v))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = mp.attention(*wide, plan, backend="reference")
    wanted = torch.autograd.grad(exact.square().sum(), wide)

    assert {config.parts for config in launched} == {subtile}
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=0.03, rtol=0.02)
    assert not got[1][:, 128:].any()


def test_deterministic_gradients_have_equal_bits():
    way = BATCHED
    plan, inputs = plan_for(way), draw(way)
    grads = []
    for _ in range(2):
        out = mp.attention(*inputs, plan, backend=BACKEND, deterministic=True)
        grads.append(torch.autograd.grad(out.float().sum(), inputs))

    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("direction", "scale"),
    [("loop_q", 0.3), ("loop_q", -0.2), ("loop_q", 0.0), ("loop_k", -0.2)],
)
def test_scales_of_either_sign(direction, scale):
    way = Way(direction="loop_q", kind="causal", planned=(1, 4), size=(1, 4, 2),
              lengths=(130, 130), block=(128, 128), dtype=torch.float16)  # fmt: skip
    if direction == "loop_k":
        way = Way(direction="loop_k", kind="causal", planned=(1, 1), size=(1, 1, 1),
                  lengths=(100, 130), block=(128, 128), dims=(128, 128),
                  dtype=torch.float16)  # fmt: skip
    plan, inputs = plan_for(way), draw(way)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    noise = torch.Generator().manual_seed(1)
    grad = torch.randn(inputs[0].shape, generator=noise)

    out = mp.attention(*inputs, plan, backend=BACKEND, scale=scale, backward=direction)
    got = torch.autograd.grad(out, inputs, grad.half())
    exact = mp.attention(*wide, plan, backend="reference", scale=scale)
    wanted = torch.autograd.grad(exact, wide, grad.half().double())

    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=5e-3, rtol=5e-3)


def test_neither_queries_nor_keys():
    nobody = plan_of(mask_of("none", (1, 1, 0, 128)), (128, 128))
    q, k, v = (torch.zeros(1, n, 1, 64, dtype=torch.bfloat16) for n in (0, 128, 128))
    for x in (q, k, v):
        x.requires_grad_()

    out = mp.attention(q, k, v, nobody, backend=BACKEND)
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))

    assert dq.shape == q.shape
    assert not dk.any()
    assert not dv.any()


def test_a_compiled_region_and_broadcast_gradients():
    way = Way(direction="loop_q", kind="causal", planned=(1, 1), size=(1, 2, 1),
              lengths=(130, 130), block=(128, 128), dtype=torch.float16)  # fmt: skip
    lowered = plan_for(way).lower(mp.target("sm100", head_dim=64, group=2))
    q, k, v = draw(way)

    def run(q, k, v):
        return mp.attention(q, k, v, lowered, backend=BACKEND)

    eager = torch.autograd.grad(run(q, k, v).sum(), (q, k, v))
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))

    assert all(torch.equal(a, b) for a, b in zip(got[1:], eager[1:], strict=True))
    torch.testing.assert_close(got[0], eager[0])


def test_verify_finds_a_backward_that_is_wrong(monkeypatch):
    """Its walk is that of another plan; the forward is right."""
    way = WIDE
    real = sm100_backward.walk
    other = plan_of(mask_of("tokens", (1, 1, 300, 257), seed=1), (128, 128)).lower("sm100")
    monkeypatch.setattr(
        sm100_backward, "walk", lambda call: real(type(call)(**_fields(call) | {"lowered": other}))
    )

    report = mp.verify(plan_for(way), backend=BACKEND, head_dim=64, backward="loop_q")

    wrong = {c.name for c in report.comparisons if not c.ok}
    assert wrong == {"dq", "dk", "dv"}
    assert {c.name for c in report.derivatives if not c.ok} == {"along q", "along k", "along v"}


def _fields(call):
    return {name: getattr(call, name) for name in call.__dataclass_fields__}
