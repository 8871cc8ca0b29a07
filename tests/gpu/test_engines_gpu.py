"""The fa4 and flex backends on a GPU, forward and backward, against loops in float64.

Run on an H100, H200, B200 or B300: pytest -m gpu tests/gpu.
"""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from maskplan.attention import fa4, fa4_kernels, flex
from maskplan.lower.engine_lists import fa4_lists, flex_lists
from tests.attention.problems import assert_close, problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # of the compilers that the engines bring
]
CPU = torch.device("cpu")


@pytest.fixture(params=["fa4", "flex"])
def backend(request):
    if request.param == "fa4":
        missing = fa4_kernels.missing()
        if missing is not None or fa4_kernels.architecture(torch.device("cuda", 0)) is None:
            pytest.skip(missing or "flash-attn-4 has no block-sparse kernels for this GPU")
    return request.param


def noise_mask(batch: int, heads: int, lengths: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Noise with whole blocks, empty rows, an empty block row and empty columns."""
    mask = torch.rand(batch, heads, *lengths, generator=torch.Generator().manual_seed(seed)) < 0.3
    mask[..., :128, 128:256] = True
    mask[..., 40:50, :] = False
    mask[..., 128:256, :] = False
    mask[..., 256:300] = False
    mask[..., 3, :] = False
    mask[..., 3, -1] = True  # one visible key, the last
    return mask


def whole_mask(batch: int, heads: int, lengths: tuple[int, int], block: int = 128) -> torch.Tensor:
    sizes = [-(-length // block) for length in lengths]
    blocks = torch.rand(batch, heads, *sizes, generator=torch.Generator().manual_seed(1)) < 0.5
    blocks[:, :, 1] = False
    blocks[..., 1] = False
    tokens = blocks.repeat_interleave(block, 2).repeat_interleave(block, 3)
    return tokens[:, :, : lengths[0], : lengths[1]].clone()


def check(case, backend, **options):
    """Results of `attention` on the GPU against loops; with a lowered plan and with a Plan."""
    here = replace(
        case,
        **{name: getattr(case, name).cuda() for name in ("q", "k", "v", "dout", "dlse")},
        plan=case.plan.lower(
            backend, head_dim=case.q.shape[3], head_dim_v=case.v.shape[3],
            heads=case.q.shape[2], kv_heads=case.k.shape[2],
            **arch_of(backend),
        ).to("cuda"),
    )  # fmt: skip
    found = {name: x.cpu() for name, x in here.run(backend, **options).items()}
    assert_close(found, case.expected(), case.q.dtype)
    return found


DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)]


@pytest.mark.parametrize("dims", DIMS)
def test_head_dims_batches_and_ragged_lengths(backend, dims):
    sm100 = torch.cuda.get_device_capability()[0] == 10
    if backend == "fa4" and sm100 and dims in {(192, 192), (256, 256)}:
        pytest.skip("flash-attn-4 has no such backward on SM100")
    mask = noise_mask(2, 2, (300, 421))
    check(problem(mask, (128, 128), batch=2, heads=2, dims=dims, dtype=torch.bfloat16), backend)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "plan_heads"), [(8, 2, 1), (8, 2, 2), (8, 2, 8), (4, 1, 1)]
)
@pytest.mark.parametrize("kind", [noise_mask, whole_mask])
def test_groups_of_heads(backend, heads, kv_heads, plan_heads, kind):
    case = problem(
        kind(1, plan_heads, (300, 421)), (128, 128), batch=2, heads=heads, kv_heads=kv_heads,
        dims=(128, 128), dtype=torch.bfloat16,
    )  # fmt: skip
    check(case, backend)


@pytest.mark.parametrize(("block_q", "group", "kv_heads"), [(16, 4, 2), (1, 128, 1), (2, 64, 1)])
def test_folded_heads(backend, block_q, group, kv_heads):
    """Blocks of a few queries, which heads of a group fill up to a tile."""
    case = problem(
        noise_mask(1, kv_heads, (90, 300)), (block_q, 128), heads=group * kv_heads,
        kv_heads=kv_heads, dims=(128, 128), dtype=torch.bfloat16,
    )  # fmt: skip
    check(case, backend)


@pytest.mark.parametrize(
    "block", [(64, 64), (128, 32), (16, 16), (256, 256), (320, 128), (192, 128)]
)
def test_blocks_of_other_sizes(backend, block):
    mask = noise_mask(1, 2, (700, 450))
    check(problem(mask, block, heads=2, dims=(128, 128), dtype=torch.float16), backend)


@pytest.mark.parametrize("lengths", [(1, 300), (300, 1), (129, 128), (5, 7)])
def test_short_lengths(backend, lengths):
    mask = torch.rand(1, 1, *lengths, generator=torch.Generator().manual_seed(0)) < 0.5
    check(problem(mask, (128, 128), heads=2, dims=(64, 64), dtype=torch.bfloat16), backend)


@pytest.mark.parametrize("value", [False, True])
def test_nothing_and_everything(backend, value):
    mask = torch.full((1, 1, 200, 200), value)
    check(problem(mask, (128, 128), heads=2, dims=(64, 64), dtype=torch.bfloat16), backend)


@pytest.mark.parametrize("lengths", [(0, 200), (200, 0)])
def test_no_tokens(backend, lengths):
    mask = torch.zeros(1, 1, *lengths, dtype=torch.bool)
    check(problem(mask, (128, 128), heads=2, dims=(64, 64), dtype=torch.bfloat16), backend)


@pytest.mark.parametrize("scale", [0.4, -0.4, 0.0])
def test_scales_and_layouts(backend, scale):
    mask = noise_mask(1, 1, (300, 421))
    case = problem(
        mask, (128, 128), heads=2, dims=(64, 64), dtype=torch.bfloat16, scale=scale, layout="bhsd"
    )
    check(case, backend)


def test_plans_on_the_gpu_give_the_same_bits(backend):
    """Lists made on the device, as wide as they can be, against lists made on the CPU."""
    mask = whole_mask(1, 2, (512, 1024))
    case = problem(mask, (128, 128), heads=2, dims=(128, 128), dtype=torch.bfloat16)
    exact = check(case, backend)
    moved = {name: getattr(case, name).cuda() for name in ("q", "k", "v", "dout", "dlse")}
    here = replace(case, **moved, plan=case.plan.to("cuda"))
    found = {name: x.cpu() for name, x in here.run(backend).items()}

    assert torch.equal(found["out"], exact["out"])
    assert torch.equal(found["lse"], exact["lse"])


def test_a_compiled_region_holds_the_whole_call(backend):
    case = problem(
        noise_mask(1, 2, (300, 421)), (128, 128), heads=2, dims=(128, 128), dtype=torch.bfloat16
    )
    lowered = case.plan.lower(backend, head_dim=128, heads=2, **arch_of(backend)).to("cuda")
    q, k, v = (x.cuda().requires_grad_() for x in (case.q, case.k, case.v))

    def block(q, k, v):
        return mp.attention(q, k, v, lowered, backend=backend, return_lse=True)

    out, lse = torch.compile(block, fullgraph=True)(q, k, v)
    grads = torch.autograd.grad((out, lse), (q, k, v), (case.dout.cuda(), case.dlse.cuda()))
    found = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    assert_close({n: x.detach().cpu() for n, x in found.items()}, case.expected(), torch.bfloat16)


def arch_of(backend: str) -> dict[str, str]:
    if backend != "fa4":
        return {}
    arch = fa4_kernels.architecture(torch.device("cuda", 0))
    assert arch is not None
    return {"arch": arch}


def test_a_backward_may_repeat(backend, monkeypatch):
    from torch._functorch import config

    monkeypatch.setattr(config, "donated_buffer", False)  # which FlexAttention asks for
    flex.compiled.cache_clear()
    case = problem(
        noise_mask(1, 1, (300, 421)), (128, 128), heads=2, dims=(64, 64), dtype=torch.bfloat16
    )
    q, k, v = (x.cuda().requires_grad_() for x in (case.q, case.k, case.v))
    lowered = case.plan.lower(backend, head_dim=64, heads=2, **arch_of(backend)).to("cuda")
    out = mp.attention(q, k, v, lowered, backend=backend)
    first, second = (
        torch.autograd.grad(out, (k, v), case.dout.cuda(), retain_graph=True) for _ in range(2)
    )

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_ten_plans_of_one_shape_compile_once():
    torch.compiler.reset()
    flex.compiled.cache_clear()
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    q, k, v = (torch.randn(1, 700, 2, 64, device="cuda", requires_grad=True) for _ in range(3))
    for seen in range(70, 770, 70):
        mask = noise_mask(1, 2, (700, 700), seed=seen)
        mask[..., seen:] = False
        plan = mp.from_token_mask(mask, block_size=(128, 128))
        lists = flex_lists(plan, head_dim=64, heads=2, kv_heads=2).to("cuda")
        out, _ = flex.flex_attend(q, k, v, lists, scale=0.125)
        out.sum().backward()

    assert graphs["unique_graphs"] == before + 1


def test_calls_of_fa4_by_hand_give_the_same_bits():
    if fa4_kernels.missing() is not None:
        pytest.skip(str(fa4_kernels.missing()))
    arch = fa4_kernels.architecture(torch.device("cuda", 0))
    plan = mp.from_block_mask(torch.ones(1, 1, 4, 8, dtype=torch.bool).tril(2), 512, 1024)
    q, k, v = (torch.randn(1, n, 2, 128, device="cuda").bfloat16() for n in (512, 1024, 1024))
    lists = fa4_lists(plan, arch=arch, head_dim=128, heads=2, kv_heads=2).to("cuda")
    out, lse = fa4.fa4_forward(q, k, v, lists, scale=0.1)
    given = plan.block_sparse_tensors()
    by_hand = fa4_kernels.list_type()(
        *(getattr(given, f"{kind}_block_{part}").cuda()
          for kind in ("mask", "full") for part in ("cnt", "idx")),
        block_size=(128, 128),
    )  # fmt: skip
    if arch == "sm90":  # whose blocks these are
        wanted, wanted_lse, *_ = fa4_kernels.interface()._flash_attn_fwd(
            q, k, v, softmax_scale=0.1, block_sparse_tensors=by_hand, return_lse=True
        )
        assert torch.equal(out, wanted)
        assert torch.equal(lse, wanted_lse)


def test_what_fa4_refuses_on_the_gpu():
    if fa4_kernels.missing() is not None:
        pytest.skip(str(fa4_kernels.missing()))
    x = torch.randn(1, 256, 1, 64, device="cuda")
    plan = mp.full(256, 256)
    with pytest.raises(mp.UnsupportedError, match="it computes bfloat16 and float16, not float32"):
        mp.attention(x, x, x, plan.to("cuda"), backend="fa4")
    if torch.cuda.get_device_capability() == (9, 0):
        half = x.bfloat16()
        with pytest.raises(mp.UnsupportedError, match="no fixed order on SM90"):
            mp.attention(half, half, half, plan.to("cuda"), backend="fa4", deterministic=True)
