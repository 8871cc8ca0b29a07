"""Plans are made and used alike under another default device or dtype, as programs set them."""

import pytest
import torch

import maskplan as mp

SIZE = {"block_size": (16, 16)}
INDICES = torch.randint(0, 80, (1, 1, 80, 4), generator=torch.Generator().manual_seed(4))
GRID = mp.video.Grid(2, 5, 8, text=3)
MASK = torch.ones(80, 80, dtype=torch.bool).tril(3)
INPUTS = torch.randn(3, 1, 80, 2, 16, generator=torch.Generator().manual_seed(5))


def below(b, h, q, k):
    del b, h
    return q >= k


def lists(plan: mp.Plan, **bits) -> mp.Plan:
    made = plan.block_sparse_tensors()
    return mp.from_block_lists(
        made.full_block_cnt, made.full_block_idx, 80, 80, **SIZE,
        mask_cnt=made.mask_block_cnt, mask_idx=made.mask_block_idx, **bits,
    )  # fmt: skip


def plans() -> list[mp.Plan]:
    window = mp.sliding_window(80, 80, left=20, right=0, **SIZE)
    plan = mp.documents([50, 30], causal=True, **SIZE) - window
    made = plan.block_sparse_tensors()
    return [
        plan,
        mp.from_topk(INDICES, 80, **SIZE),
        mp.from_topk(INDICES, 80, lengths=INDICES[..., 0] % 4, **SIZE),
        mp.from_block_mask(MASK[:5, :5], 80, 80, **SIZE),
        mp.from_token_mask(MASK, **SIZE),
        mp.from_mask_fn(below, 80, 80, **SIZE),
        mp.from_bsr([0, 1, 1, 1, 1, 1], [0], 80, 80, **SIZE),
        lists(plan, tile_id=made.mask_tile_id, tiles=made.tiles),
        lists(plan, mask_fn=below),
        plan.reblock((32, 8)).transpose().transpose(),
        plan.crop(q=(3, 50)),
        plan.shard("q", 0, 2),
        mp.video.sliding_tile(GRID, tile=(1, 4, 4), window=(1, 1, 2), **SIZE),
        mp.video.neighborhood(GRID, kernel=(1, 3, 3), tile=(1, 4, 4), **SIZE),
        mp.video.radial(GRID, decay=0.5, least=4, split=4, **SIZE),
        mp.PlanBook.from_plans({(0, 0, 0): window, (0, 0, 1): plan}).plan(0, 0),
    ]


def results(backend: str) -> list[torch.Tensor]:
    plan = plans()[0]
    q, k, v = (tensor.clone().requires_grad_() for tensor in INPUTS)
    out, lse = mp.attention(q, k, v, plan, backend=backend, return_lse=True)
    (out.sum() + lse[lse.isfinite()].sum()).backward()
    mp.verify(plan, backend, samples=20).raise_if_failed()
    lowered = plan.lower("cpu", backward=("loop_q", "loop_k"), subtile=2, spt=True)
    order = plan.transpose().block_sparse_tensors(spt=True).dq_write_order
    return [out, lse, q.grad, k.grad, v.grad, lowered.loop_q.write_order, order, plan.to_dense()]


@pytest.fixture(params=["device", "dtype"])
def other_default(request):
    if request.param == "device":
        with torch.device("meta"):
            yield
    else:
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("other_default")
def test_plans_do_not_depend_on_torch_s_defaults():
    found = [plan.digest for plan in plans()]
    torch.set_default_dtype(torch.float32)
    with torch.device("cpu"):
        assert found == [plan.digest for plan in plans()]


@pytest.mark.usefixtures("other_default")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_attention_does_not_depend_on_torch_s_defaults(backend):
    found = results(backend)
    torch.set_default_dtype(torch.float32)
    with torch.device("cpu"):
        for one, other in zip(found, results(backend), strict=True):
            assert torch.equal(one, other)
