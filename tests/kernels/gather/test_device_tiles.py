"""Token tiles made on a GPU, walked by the kernels there: the same tables, and nothing waits.

Without a GPU the tensors are on the CPU, or on `meta`, which has no values to wait for: reading one
is an error there, and so is an operation between devices.
"""

from contextlib import nullcontext

import pytest
import torch

import maskplan as mp
from maskplan.attention import sm100, sm100_backward, sm100_gathered, sm100_kernels
from maskplan.attention.call import AttentionCall
from tests.kernels.gather.device_tiles import as_made_on_a_gpu
from tests.kernels.gather.test_tables import CASES, dense, indices

META = torch.device("meta")


def tiles_of(name):
    """(tiles of a case of the tables, (HQ, HK))."""
    policy, (listed, heads, kv_heads), packed, tile_rows, seqlen_q, (topk, share, pool) = CASES[
        name
    ]
    lists = indices((1, listed, seqlen_q, topk), 260, share=share, pool=pool, seed=len(name))
    tiles = mp.TokenTiles.from_topk(
        lists, 260, policy=policy, tile_rows=tile_rows, group=heads // kv_heads if packed else 1,
        kv_heads=kv_heads, max_coverage=1.0,
    )  # fmt: skip
    return tiles, (heads, kv_heads)


def call_of(tiles, size, device="cpu"):
    heads, kv_heads = size
    q = torch.zeros(1, tiles.seqlen_q, heads, 64, dtype=torch.bfloat16, device=device)
    kv = torch.zeros(1, tiles.seqlen_k, kv_heads, 64, dtype=torch.bfloat16, device=device)
    return AttentionCall(q=q, k=kv, v=kv, lowered=tiles.lower(), scale=1.0)


@pytest.mark.parametrize("name", CASES)
def test_tables_with_room_to_spare_say_the_same(name):
    tiles, size = tiles_of(name)
    made = as_made_on_a_gpu(tiles, spare=256)
    call = call_of(made, size)

    found = dense(call, sm100_gathered.tables(call), sm100_gathered.forward_config(call))

    wanted = tiles.to_plan().to_dense().numpy()
    assert (found == wanted.repeat(size[0] // wanted.shape[1], axis=1)).all()
    assert made.to_plan() == tiles.to_plan()


@pytest.fixture
def launched(monkeypatch):
    """Names of kernels that were to run on an SM100, in order; none does."""
    names = []

    class Kernel:
        def __init__(self, name):
            self.name = name

        def on_device(self, *arguments):
            assert all(x.device == META for x in arguments if isinstance(x, torch.Tensor))
            names.append(self.name)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(sm100, "_index", lambda _: 0)
    monkeypatch.setattr(sm100, "_gpu", lambda _: ((10, 0), "B200", 148))
    monkeypatch.setattr(sm100_kernels, "compiled_forward", lambda *_: Kernel("forward"))
    monkeypatch.setattr(
        sm100_backward, "compiled", lambda build, *_: Kernel(build.__name__.removeprefix("build_"))
    )
    return names


@pytest.mark.parametrize("name", CASES)
def test_nothing_waits_for_the_device(launched, name):
    """From tiles to launches, forward and backward, no value of a tensor is looked at."""
    tiles, size = tiles_of(name)
    call = call_of(as_made_on_a_gpu(tiles, device=META), size, META)

    out, lse = sm100.forward(call)
    grads = sm100.backward(call, out, lse, torch.empty_like(out), None)

    kernels = ["forward", "preprocess", "backward", "postprocess", "postprocess"]
    assert launched == kernels
    assert [x.shape for x in grads] == [x.shape for x in (call.q, call.k, call.v)]
    with pytest.raises(RuntimeError, match="meta"):
        sm100_gathered.steps(call)  # what looks at values, and only the emulator asks for
    with pytest.raises(mp.PlanError, match="device meta"):
        call.lowered.to("cpu")
