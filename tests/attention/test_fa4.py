"""The fa4 backend where there is no GPU: what it refuses, and how it calls flash-attn-4."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

import maskplan as mp
from maskplan.attention import fa4, fa4_inputs, fa4_kernels
from maskplan.attention.metadata import LoweredFor, Metadata
from maskplan.lower.engine_lists import fa4_lists

FOLD_SHAPES = [(2, 5, 8, 3, 4), (1, 4, 6, 2, 6), (1, 3, 2, 5, 1)]  # B, S, H, F, rows a token


def asked(**changed):
    """Metadata of a call on a GPU that the backend takes."""
    usual = {
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 0),
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 128,
        "head_dim_v": 128,
        "plan_heads": 1,
        "partial": True,
        "layout": "bshd",
        "backward": "auto",
        "deterministic": False,
        "differentiable": True,
        "engine": "plan",
        "lowered_for": LoweredFor(),
    }
    return Metadata(**(usual | changed))


@pytest.fixture
def gpu(monkeypatch):
    """A machine with flash-attn-4 and a GPU of a given capability."""

    def pretend(capability=(9, 0)):
        monkeypatch.setattr(fa4_kernels, "missing", lambda: None)
        monkeypatch.setattr(fa4_kernels, "overridden", lambda: None)
        monkeypatch.setattr(fa4_kernels, "_capability", lambda _index: capability)

    return pretend


@pytest.mark.parametrize(
    ("capability", "changed", "reason"),
    [
        ((9, 0), {}, None),
        ((10, 0), {}, None),
        ((10, 3), {}, None),
        ((8, 0), {}, "block-sparse kernels for SM90 and SM100 alone, others ignore lists"),
        ((12, 0), {}, "others ignore lists"),
        ((9, 0), {"device": torch.device("cpu")}, "tensors are on cpu"),
        ((9, 0), {"dtype": torch.float32}, "not float32"),
        ((9, 0), {"head_dim": 20, "head_dim_v": 20}, "do not take head dims (20, 20)"),
        ((9, 0), {"head_dim": 256, "head_dim_v": 256, "engine": "fa4"}, None),
        (
            (9, 0),
            {"head_dim": 256, "head_dim_v": 256},
            None,
        ),  # blocks are cut where they do not fit
        ((9, 0), {"head_dim": 192, "head_dim_v": 128}, None),
        ((9, 0), {"head_dim": 192, "head_dim_v": 128, "differentiable": False}, None),
        ((10, 0), {"head_dim": 192, "head_dim_v": 192}, "do not take head dims (192, 192)"),
        ((10, 0), {"head_dim": 256, "head_dim_v": 256}, "no backward for head dim 256"),
        ((10, 0), {"head_dim": 256, "head_dim_v": 256, "differentiable": False}, None),
        ((9, 0), {"deterministic": True}, "no fixed order on SM90"),
        ((10, 0), {"deterministic": True}, None),
    ],
)
def test_what_is_supported(gpu, capability, changed, reason):
    gpu(capability)
    said = fa4.supports(asked(**changed))

    assert said is None if reason is None else reason in said


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (None, "flash-attn-4 is not installed: pip install maskplan[fa4] brings 4.0.0b36"),
        ("4.0.0b37", "flash-attn-4 4.0.0b37 is installed, and 4.0.0b36 alone is known to be right"),
    ],
)
def test_versions(monkeypatch, found, sentence):
    def version(_name):
        if found is None:
            raise fa4_kernels.PackageNotFoundError
        return found

    monkeypatch.setattr(fa4_kernels, "version", version)

    assert fa4_kernels.missing.__wrapped__() == sentence


def test_another_architecture_by_the_environment(monkeypatch):
    """With FLASH_ATTENTION_ARCH=sm_80 flash-attn-4 would run its SM80 kernels, which are dense."""
    monkeypatch.delenv("FLASH_ATTENTION_ARCH", raising=False)
    assert fa4_kernels.overridden.__wrapped__() is None
    monkeypatch.setenv("FLASH_ATTENTION_ARCH", "sm_80")

    assert fa4_kernels.overridden.__wrapped__() == "FLASH_ATTENTION_ARCH=sm_80 is set"


class Recorder:
    """Stands for flash-attn-4: keeps the arguments, and gives results of the right shape."""

    def __init__(self):
        self.calls = []

    def _flash_attn_fwd(self, q, k, v, **given):
        self.calls.append((q, k, v, given))
        out = (
            given["out"] if given.get("out") is not None else q.new_zeros(*q.shape[:3], v.shape[3])
        )
        return out, q.new_zeros(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32), None

    def _flash_attn_bwd(self, q, k, v, *results, **given):
        self.calls.append((q, k, v, *results, given))
        return torch.ones_like(q), torch.ones_like(k), torch.ones_like(v)


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    masks = SimpleNamespace(
        scalar_mask=lambda *of: ("scalar", *of), vector_mask=lambda *of: ("vector", *of)
    )
    monkeypatch.setattr(fa4_kernels, "interface", lambda: made)
    monkeypatch.setattr(fa4_kernels, "masks", lambda: masks)
    monkeypatch.setattr(fa4_kernels, "list_type", lambda: SimpleNamespace)
    return made


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def results(q, v):
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    return out, torch.zeros(q.shape[0], q.shape[2], q.shape[1]), torch.ones_like(out)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_each_direction_has_its_own_lists_and_mask(recorder, arch):
    plan = mp.causal(300, 300, align="top_left", block_size=(128, 128))
    lists = fa4_lists(plan, arch=arch, head_dim=128, heads=2, kv_heads=2)
    q, k, v = (draw(1, 300, 2, 128) for _ in range(3))
    fa4.fa4_forward(q, k, v, lists, scale=0.5)
    fa4.fa4_backward(q, k, v, *results(q, v), None, lists, scale=0.5)
    forward, backward = recorder.calls[0][-1], recorder.calls[1][-1]
    vector = "vector" if arch == "sm100" else "scalar"  # everywhere else it is miscompiled

    assert forward["mask_mod"] == (vector, lists.bits.block_size, 1)
    assert backward["mask_mod"] == ("scalar", lists.bits.block_size, 1)
    assert forward["block_sparse_tensors"].mask_block_idx is lists.forward.mask_block_idx
    assert backward["block_sparse_tensors"].mask_block_idx is lists.backward.mask_block_idx
    assert not hasattr(backward["block_sparse_tensors"], "dq_write_order")
    assert [x.__leading_dim__ for x in forward["aux_tensors"]] == [1, 1, 1, 0, 2]


def test_a_deterministic_backward_says_in_which_order(recorder):
    plan = mp.causal(300, 300, align="top_left", block_size=(128, 128))
    lists = fa4_lists(plan, arch="sm100", head_dim=128, heads=2, kv_heads=2)
    q, k, v = (draw(1, 300, 2, 128) for _ in range(3))
    fa4.fa4_backward(q, k, v, *results(q, v), None, lists, scale=0.5, deterministic=True)
    given = recorder.calls[0][-1]

    assert given["deterministic"]
    assert given["block_sparse_tensors"].dq_write_order is lists.backward.dq_write_order
    assert given["block_sparse_tensors"].spt is False


def test_native_lists_are_made_once_and_live_no_longer_than_the_plan(recorder):
    plan = mp.causal(300, 300, align="top_left", block_size=(128, 128))
    lists = fa4_lists(plan, arch="sm100", head_dim=128, heads=2, kv_heads=2)
    q, k, v = (draw(1, 300, 2, 128) for _ in range(3))
    held = len(fa4_inputs._made)
    for deterministic in (False, True, False, True):
        fa4.fa4_forward(q, k, v, lists, scale=0.5)
        given = (*results(q, v), None)
        fa4.fa4_backward(q, k, v, *given, lists, scale=0.5, deterministic=deterministic)
    forward = {id(call[-1]["block_sparse_tensors"]) for call in recorder.calls[0::2]}
    backward = [id(call[-1]["block_sparse_tensors"]) for call in recorder.calls[1::2]]
    gone = weakref.ref(lists)
    recorder.calls.clear()
    del lists
    gc.collect()

    assert len(forward) == 1
    assert backward[:2] == backward[2:]
    assert backward[0] != backward[1]
    assert gone() is None
    assert len(fa4_inputs._made) == held


def test_whole_plans_have_no_mask_function(recorder):
    lists = fa4_lists(mp.full(256, 256), arch="sm90", head_dim=64, heads=1, kv_heads=1)
    q, k, v = (draw(1, 256, 1, 64) for _ in range(3))
    fa4.fa4_forward(q, k, v, lists, scale=1.0)

    assert recorder.calls[0][-1]["mask_mod"] is None
    assert recorder.calls[0][-1]["aux_tensors"] is None


def test_a_backward_without_lists_is_refused(recorder):
    """flash-attn-4 would run a dense one without a word."""
    lists = fa4_lists(
        mp.full(256, 256), arch="sm90", head_dim=64, heads=1, kv_heads=1, backward=False
    )
    q, k, v = (draw(1, 256, 1, 64) for _ in range(3))
    with pytest.raises(mp.UnsupportedError) as caught:
        fa4.fa4_backward(q, k, v, *results(q, v), None, lists, scale=1.0)

    assert str(caught.value) == (
        "there are no lists for the backward in the fa4 backend: got lists of the forward alone, "
        "for sm90 and head dims (64, 64), wanted lists of both directions; lower the plan with its "
        "backward, or use backend flex."
    )
    assert recorder.calls == []


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_no_tokens_start_no_kernel(recorder, lengths):
    lists = fa4_lists(mp.full(*lengths), arch="sm90", head_dim=64, heads=2, kv_heads=2)
    q, k, v = draw(1, lengths[0], 2, 64), draw(1, lengths[1], 2, 64), draw(1, lengths[1], 2, 64)
    out, lse = fa4.fa4_forward(q, k, v, lists, scale=1.0)
    grads = fa4.fa4_backward(q, k, v, out, lse, out, None, lists, scale=1.0)

    assert torch.equal(out, torch.zeros(1, lengths[0], 2, 64))
    assert torch.equal(lse, torch.full((1, 2, lengths[0]), -torch.inf))
    assert all(torch.equal(a, torch.zeros_like(b)) for a, b in zip(grads, (q, k, v), strict=True))
    assert recorder.calls == []


@pytest.mark.parametrize(("batch", "length", "heads", "features", "rows"), FOLD_SHAPES)
def test_folding(batch, length, heads, features, rows):
    """Row token * G + g of KV head h is query head h * G + g."""
    x = draw(batch, length, heads, features)
    folded = fa4.fold(x, rows)
    lse = draw(batch, heads, length)
    folded_lse = fa4.fold_lse(lse, rows)

    for token in range(length):
        for head in range(heads):
            row, kv_head = token * rows + head % rows, head // rows
            assert torch.equal(folded[:, row, kv_head], x[:, token, head])
            assert torch.equal(folded_lse[:, kv_head, row], lse[:, head, token])
    assert torch.equal(fa4.unfold(folded, rows), x)
    assert torch.equal(fa4.unfold_lse(folded_lse, rows), lse)


def test_one_kv_head_is_folded_without_a_copy():
    x = draw(2, 5, 8, 3)

    assert fa4.fold(x, 8).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.0])
def test_signs_of_the_scale(recorder, scale):
    """flash-attn-4 takes the row maximum before it scales, so a scale has to be above 0."""
    plan = mp.full(256, 256)
    lists = fa4_lists(plan, arch="sm90", head_dim=64, heads=1, kv_heads=1)
    q, k, v = (draw(1, 256, 1, 64) for _ in range(3))
    call = SimpleNamespace(
        q=q, k=k, v=v, scale=scale, lowered=SimpleNamespace(lists=lists), deterministic=False,
        layout="bhsd",
        new=lambda like, features, dtype: like.new_zeros(*like.shape[:3], features, dtype=dtype),
    )  # fmt: skip
    fa4.forward(call)
    dq, _, _ = fa4.backward(call, *results(q, v), None)
    for given in recorder.calls:
        assert given[-1]["softmax_scale"] > 0
        torch.testing.assert_close(given[0] * given[-1]["softmax_scale"], q * scale)

    # The recorder gives ones for the gradient of what it was given as q.
    torch.testing.assert_close(dq, torch.full_like(q, float((scale > 0) - (scale < 0))))
