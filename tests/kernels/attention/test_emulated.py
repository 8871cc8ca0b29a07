"""Backend "sm100-emulated" against float64 by the error budget, and against dense attention."""

import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.attention import sm100_kernels
from tests.kernels.forward import masks
from tests.oracle import plan_of_dense

BACKEND = "sm100-emulated"


def plan_of(mask, block_size):
    """The plan of bool [batch, heads, SQ, SK]."""
    batch, heads = mask.shape[:2]
    patterns = torch.arange(batch * heads).view(batch, heads)
    dense = torch.from_numpy(np.array(mask)).flatten(0, 1)
    return plan_of_dense(dense, patterns, block_size).canonical()


def mask_of(kind, shape, seed=0):
    """bool [batch, heads, SQ, SK]."""
    rng = np.random.default_rng(seed)
    *outer, seqlen_q, seqlen_k = shape
    if kind == "causal":
        return np.broadcast_to(np.tri(seqlen_q, seqlen_k, seqlen_k - seqlen_q, dtype=bool), shape)
    if kind == "tokens":
        return rng.random(shape) < 0.3
    if kind == "full":
        return np.ones(shape, dtype=bool)
    if kind == "skewed":
        return np.broadcast_to(masks.skewed(seqlen_q, seqlen_k, seed=seed), shape)
    if kind == "blocks":
        blocks = rng.random((*outer, -(-seqlen_q // 64), -(-seqlen_k // 64))) < 0.5
        blocks[..., 1:2, :] = False  # 64 queries see nothing
        return blocks.repeat(64, -2).repeat(64, -1)[..., :seqlen_q, :seqlen_k]
    assert kind == "none"
    return np.zeros(shape, dtype=bool)


def test_verify_runs_the_backward_too():
    """Of packed rows that share a list; what else there is, the covering arrays have."""
    plan = plan_of(mask_of("causal", (1, 1, 256, 256)), (256, 128))

    report = mp.verify(plan, backend=BACKEND, heads=4, kv_heads=1, head_dim=64)

    report.raise_if_failed()
    assert report.backend == BACKEND
    assert [c.name for c in report.comparisons] == ["out", "lse", "dq", "dk", "dv"]
    assert report.no_backward is None


def inputs(size, seqlen_q, seqlen_k, head_dim=64, dtype=torch.bfloat16, seed=0):
    noise = torch.Generator().manual_seed(seed)
    batch, heads, kv_heads = size
    shapes = ((seqlen_q, heads), (seqlen_k, kv_heads), (seqlen_k, kv_heads))
    return [torch.randn(batch, *s, head_dim, generator=noise).to(dtype) for s in shapes]


def dense(q, k, v, mask, scale):
    """(out, lse) in float64 by the formula."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.double().repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) * scale
    scores = scores.masked_fill(~torch.from_numpy(mask.copy()), -torch.inf)
    weights = torch.nan_to_num(scores.softmax(-1), nan=0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), scores.logsumexp(-1)


@pytest.mark.parametrize("scale", [None, 0.3, -0.2, 0.0])
def test_attention_is_the_formula(scale):
    mask = mask_of("blocks", (1, 1, 300, 257))
    q, k, v = inputs((1, 4, 2), 300, 257)

    out, lse = mp.attention(
        q, k, v, plan_of(mask, (64, 64)), backend=BACKEND, scale=scale, return_lse=True
    )

    wanted, wanted_lse = dense(q, k, v, mask, 0.125 if scale is None else scale)
    torch.testing.assert_close(out.double(), wanted, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-4, rtol=0)
    assert torch.isneginf(lse[:, :, 64:128]).all()
    assert not out[:, 64:128].any()


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_scale_that_float32_does_not_hold_is_refused(scale):
    q, k, v = inputs((1, 1, 1), 128, 128)

    with pytest.raises(mp.UnsupportedError, match="scale is no number that the kernels can hold"):
        mp.attention(q, k, v, mp.full(128, 128), backend=BACKEND, scale=scale)


@pytest.mark.parametrize("scale", [1e-46, 1.2e-38])
def test_a_scale_near_the_end_of_float32_is_next_to_none(scale):
    q, k, v = inputs((1, 1, 1), 130, 130)

    out, lse = mp.attention(
        q, k, v, mp.full(130, 130), backend=BACKEND, scale=scale, return_lse=True
    )

    wanted = v.double().mean(1, keepdim=True).expand(-1, 130, -1, -1)
    torch.testing.assert_close(out.double(), wanted, atol=2e-3, rtol=0)
    torch.testing.assert_close(lse.double(), torch.full_like(lse, 130).double().log())


def test_strided_and_broadcast_tensors_and_layouts():
    mask = mask_of("causal", (1, 1, 130, 130))
    plan = plan_of(mask, (128, 128))
    q, k, v = inputs((1, 2, 1), 130, 130)
    wanted, _ = dense(q, k, v, mask, 0.125)
    together = torch.cat([q, k, v], 2)  # one allocation, as a fused projection gives it
    parts = together.split([2, 1, 1], 2)
    odd = [torch.nn.functional.pad(x, (1, 2))[..., 1:-2] for x in (q, k, v)]
    wide = [x.expand(2, -1, -1, -1) for x in (q, k, v)]
    turned = [x.transpose(1, 2) for x in (q, k, v)]

    for given in (parts, odd, wide):
        out = mp.attention(*given, plan, backend=BACKEND)
        torch.testing.assert_close(
            out.double(), wanted.expand(len(out), -1, -1, -1), atol=0.02, rtol=0.02
        )
    out = mp.attention(*turned, plan, backend=BACKEND, layout="bhsd")
    assert out.is_contiguous()
    torch.testing.assert_close(out.double().transpose(1, 2), wanted, atol=0.02, rtol=0.02)


def test_neither_queries_nor_keys():
    nobody = plan_of(np.ones((1, 1, 0, 128), dtype=bool), (128, 128))
    nothing = plan_of(np.ones((1, 1, 3, 0), dtype=bool), (128, 128))
    q, k, v = inputs((1, 1, 1), 3, 128)

    assert mp.attention(q[:, :0], k, v, nobody, backend=BACKEND).shape == (1, 0, 1, 64)
    out, lse = mp.attention(q, k[:, :0], v[:, :0], nothing, backend=BACKEND, return_lse=True)
    assert not out.any()
    assert torch.isneginf(lse).all()


@pytest.mark.parametrize("group", [2, 4])
def test_a_lowered_plan(group):
    mask = mask_of("tokens", (1, 2, 150, 200))
    q, k, v = inputs((1, 2 * group, 2), 150, 200)
    target = mp.target("sm100", head_dim=64, group=group, pack_gqa=group == 4)
    lowered = plan_of(mask, (32, 32)).lower(target, backward=())

    out = mp.attention(q, k, v, lowered, backend=BACKEND)

    wanted, _ = dense(q, k, v, mask.repeat(group, 1), 0.125)
    torch.testing.assert_close(out.double(), wanted, atol=0.02, rtol=0.02)


def test_a_compiled_region():
    mask = mask_of("causal", (1, 1, 130, 130))
    lowered = plan_of(mask, (128, 128)).lower("sm100", backward=())
    q, k, v = inputs((1, 1, 1), 130, 130)

    def run(q):
        return mp.attention(q, k, v, lowered, backend=BACKEND) * 2

    out = torch.compile(run, backend="aot_eager", fullgraph=True)(q)
    wanted, _ = dense(q, k, v, mask, 0.125)
    torch.testing.assert_close(out.double() / 2, wanted, atol=0.02, rtol=0.02)


def test_verify_finds_a_kernel_that_is_wrong(monkeypatch):
    """Its walk is that of another plan."""
    real = sm100_kernels.forward_walk
    other = plan_of(mask_of("tokens", (1, 1, 300, 300), seed=1), (128, 128)).lower("sm100")
    plan = plan_of(mask_of("tokens", (1, 1, 300, 300)), (128, 128))
    monkeypatch.setattr(sm100_kernels, "forward_walk", lambda _: real(other))

    report = mp.verify(plan, backend=BACKEND)

    assert not report.ok
    with pytest.raises(mp.MaskplanError, match="of backend sm100-emulated is wrong"):
        report.raise_if_failed()
