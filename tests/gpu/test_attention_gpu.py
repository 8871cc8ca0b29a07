"""Attention on a CUDA GPU: every backend there against float64, and under every mode of torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import maskplan as mp
from maskplan.attention import attention, operators
from maskplan.attention.dispatch import operands
from tests.attention.problems import problem
from tests.oracle import plan_of_dense

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU"),
    # Compilers, on their way, import parts of torch that torch has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

CUDA = "cuda"
ENGINES = ("flex", "fa4")
HEADS = ((2, 2), (4, 2), (4, 1))  # MHA, GQA, MQA
NARROW = torch.bfloat16
TOKENS = 400  # three whole blocks and a part of one: more than one tile


def usable(backend: str, plan: mp.Plan, heads: tuple[int, int], dims: tuple[int, int], **options):
    """Skip, with the backend's own reason, where it does not make such a call."""
    dtype = options.pop("dtype", NARROW)
    q = torch.empty(1, plan.seqlen_q, heads[0], dims[0], device=CUDA, dtype=dtype)
    k = torch.empty(1, plan.seqlen_k, heads[1], dims[0], device=CUDA, dtype=dtype)
    v = torch.empty(1, plan.seqlen_k, heads[1], dims[1], device=CUDA, dtype=dtype)
    one = plan.with_heads(heads[0]) if plan.heads > 1 else plan
    one = replace(one, pattern_id=one.pattern_id[:1])
    said = mp.backends(q.requires_grad_(), k, v, one.to(CUDA), **options)
    (reason,) = (status.reason for status in said if status.name == backend)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")


def right(plan: mp.Plan, backend: str, heads=(2, 2), dims=(64, 64), **options: object) -> None:
    usable(backend, plan, heads, dims, dtype=options.get("dtype", NARROW))
    report = mp.verify(
        plan, backend, device=CUDA, heads=heads[0], kv_heads=heads[1], head_dim=dims[0],
        head_dim_v=dims[1], samples=64, **({"dtype": NARROW} | options),
    )  # fmt: skip

    assert report.backend == backend
    assert report.ok, str(report)


def plan_of(mask: Tensor, block_size: tuple[int, int]) -> mp.Plan:
    """The plan of bool [batch, heads, SQ, SK]."""
    batch, heads = mask.shape[:2]
    ids = torch.arange(batch * heads).view(batch, heads)
    return plan_of_dense(mask.flatten(0, 1), ids, block_size).canonical()


def random_mask(*shape: int, density: float, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize(
    "dims", [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)]
)
def test_causal_by_head_dim(backend, dims):
    """Elsewhere the forward was exact at head dim 64 and dQ, dK and dV were off by hundreds."""
    right(mp.causal(333, 333, block_size=(128, 128)), backend, dims=dims)


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_size", [(64, 64), (128, 128), (16, 128)])
def test_groups_of_heads_over_ragged_lengths(backend, heads, block_size):
    window = mp.sliding_window(
        300, 411, block_size=block_size, left=70, right=90, align="bottom_right"
    )
    right(window, backend, heads)


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes(backend, dtype):
    right(mp.causal(200, 200, block_size=(128, 128)), backend, dtype=dtype)


@pytest.mark.parametrize("backend", ENGINES)
def test_each_batch_and_head_has_its_own_mask(backend):
    right(plan_of(random_mask(2, 4, 210, 260, density=0.3), (64, 128)), backend, (4, 2))
    right(plan_of(random_mask(2, 2, 210, 260, density=0.3), (64, 128)), backend, (4, 2))


@pytest.mark.parametrize("backend", ENGINES)
def test_a_random_block_mask(backend):
    """A context mask of random blocks differed from dense in a third of its elements."""
    blocks = random_mask(1, 2, 5, 4, density=0.4, seed=6)
    mask = blocks.repeat_interleave(64, 2).repeat_interleave(128, 3)[:, :, :300, :500]
    right(plan_of(mask, (64, 128)), backend)


@pytest.mark.parametrize("backend", ENGINES)
def test_empty_rows_empty_columns_and_one_visible_key(backend):
    mask = torch.zeros(1, 1, 260, 390, dtype=torch.bool)
    mask[..., 130:200, 5:300] = random_mask(70, 295, density=0.2)
    mask[..., 7, 389] = True
    right(plan_of(mask, (64, 128)), backend, (4, 2))
    made = on_gpu(problem(mask, (64, 128), heads=2, dims=(64, 64), dtype=NARROW), backend)
    usable(backend, made.plan.cpu(), (2, 2), (64, 64))
    found = made.run(backend)

    assert (found["out"][:, 200:] == 0).all()
    assert (found["lse"][:, :, 200:] == -torch.inf).all()
    assert (found["dq"][:, 200:] == 0).all()
    assert (found["dk"][:, 300:389] == 0).all()
    assert (found["dv"][:, 300:389] == 0).all()
    torch.testing.assert_close(found["out"][0, 7], made.v[0, 389])


@pytest.mark.parametrize("backend", ENGINES)
def test_full_blocks_alone_are_not_taken_for_dense(backend):
    """A kernel ignored its lists and gave dense attention: every row visits KV block 0 alone."""
    mask = torch.zeros(1, 1, 512, 512, dtype=torch.bool)
    mask[..., :128] = True
    right(plan_of(mask, (128, 128)), backend)


@pytest.mark.parametrize("backend", ENGINES)
def test_one_token(backend):
    right(mp.full(1, 1, block_size=(128, 128)), backend)


def on_gpu(made, backend: str):
    """The problem there; a Plan becomes a device plan."""
    del backend
    moved = {name: getattr(made, name).to(CUDA) for name in ("q", "k", "v", "dout", "dlse")}
    return replace(made, plan=made.plan.to(CUDA), **moved)


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("shape", [(1, 0, 5), (1, 5, 0), (0, 5, 5)])
def test_nothing_to_attend(backend, shape):
    """Empty lengths and an empty batch: out 0, LSE -inf, gradients 0, no crash."""
    batch, seqlen_q, seqlen_k = shape
    mask = torch.ones(1, 1, seqlen_q, seqlen_k, dtype=torch.bool)
    made = on_gpu(problem(mask, (64, 128), batch=batch, dims=(64, 64), dtype=NARROW), backend)
    usable(backend, made.plan.cpu(), (1, 1), (64, 64))
    found = made.run(backend)

    assert (found["lse"] == -torch.inf).all()
    assert all((found[name] == 0).all() for name in ("out", "dq", "dk", "dv"))


@pytest.mark.parametrize("backend", ENGINES)
def test_keys_that_nobody_lists_may_hold_anything(backend):
    mask = torch.zeros(1, 1, 256, 512, dtype=torch.bool)
    mask[..., :256] = torch.ones(256, 256, dtype=torch.bool).tril()
    made = on_gpu(problem(mask, (128, 128), heads=2, dims=(64, 64), dtype=NARROW), backend)
    usable(backend, made.plan.cpu(), (2, 2), (64, 64))
    poisoned = replace(made, k=made.k.clone(), v=made.v.clone())
    poisoned.k[:, 256:], poisoned.v[:, 256:] = torch.nan, torch.inf
    found, wanted = poisoned.run(backend), made.run(backend)

    assert torch.equal(found["out"], wanted["out"])
    assert (found["dk"][:, 256:] == 0).all()
    assert all(tensor.isfinite().all() for name, tensor in found.items() if name != "lse")


@pytest.mark.parametrize("backend", ENGINES)
def test_strides_and_layouts(backend):
    """Views of one projection, heads first, and a broadcast head."""
    plan = mp.causal(200, 200, block_size=(128, 128)).to(CUDA)
    usable(backend, plan.cpu(), (2, 2), (64, 64))
    packed = torch.randn(2, 200, 3, 2, 64, device=CUDA, dtype=NARROW)
    q, k, v = packed.unbind(2)
    k = k[:, :, :1].expand(-1, -1, 2, -1)
    wanted = attention(q.contiguous(), k.contiguous(), v.contiguous(), plan, backend=backend)
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    turned = attention(*heads_first, plan, backend=backend, layout="bhsd")

    assert torch.equal(attention(q, k, v, plan, backend=backend), wanted)
    assert torch.equal(turned.transpose(1, 2), wanted)


class Block(nn.Module):
    """LayerNorm, projection to q, k and v, attention, projection of its output."""

    def __init__(self, heads: int = 2, dim: int = 64) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.norm, self.qkv = nn.LayerNorm(heads * dim), nn.Linear(heads * dim, 3 * heads * dim)
        self.project = nn.Linear(heads * dim, heads * dim)

    def forward(self, x: Tensor, plan: object) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, self.dim)).unbind(2)
        return x + self.project(attention(q, k, v, plan).flatten(2))


def lowered_plans(backend: str, tokens: int = TOKENS) -> tuple[mp.LoweredPlan, mp.LoweredPlan]:
    plans = (
        mp.causal(tokens, tokens, block_size=(128, 128)),
        mp.sliding_window(tokens, tokens, block_size=(128, 128), left=90, right=40),
    )
    usable(backend, plans[0], (2, 2), (64, 64))
    first, second = (plan.lower(backend, head_dim=64, heads=2).to(CUDA) for plan in plans)
    return first, second


def gradients(block: nn.Module, run, plan: object, x: Tensor) -> list[Tensor]:
    block.zero_grad()
    x = x.detach().requires_grad_()
    out = run(x, plan)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


def close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        size = float(other.float().abs().max())
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.02 * size)


@pytest.mark.parametrize("backend", ENGINES)
def test_a_compiled_block_is_one_graph_for_two_plans(backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    torch.manual_seed(0)
    block = Block().to(CUDA, NARROW)
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    x = torch.randn(2, TOKENS, 128, device=CUDA, dtype=NARROW)
    for lowered in (*lowered_plans(backend), *lowered_plans(backend)):
        close(gradients(block, compiled, lowered, x), gradients(block, block, lowered, x))

    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ENGINES)
def test_a_cuda_graph_of_forward_and_backward(backend):
    lowered, _ = lowered_plans(backend)
    q, k, v = (
        torch.randn(2, TOKENS, 2, 64, device=CUDA, dtype=NARROW).requires_grad_() for _ in range(3)
    )
    dout = torch.randn(2, TOKENS, 2, 64, device=CUDA, dtype=NARROW)

    def step() -> list[Tensor]:
        out = attention(q, k, v, lowered)
        return [out, *torch.autograd.grad(out, (q, k, v), dout)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in (q, k, v):
            tensor.copy_(torch.randn_like(tensor))
    graph.replay()

    close(captured, step())


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("backend", ENGINES)
def test_a_cuda_graph_plans_lowers_and_attends(backend, whole):
    """The mask of each replay comes from indices that the graph reads; no step meets the host."""
    tokens, chosen = 512, 2 if whole else 160

    def drawn(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        rows, items = (4, 4) if whole else (tokens, tokens)
        order = torch.rand(1, 1, rows, items, generator=generator).argsort(-1)
        return order[..., :chosen].to(torch.int32)

    def planned(indices: Tensor) -> mp.Plan:
        if not whole:
            return mp.from_topk(indices, tokens)
        return mp.from_topk(indices, tokens, rows="block", unit="block", seqlen_q=tokens)

    usable(backend, planned(drawn(0)), (2, 2), (64, 64))
    indices = drawn(0).to(CUDA)
    q, k, v = (torch.randn(1, tokens, 2, 64, device=CUDA, dtype=NARROW) for _ in range(3))

    def step() -> Tensor:
        lowered = planned(indices).lower(backend, head_dim=64, heads=2, backward=())
        return attention(q, k, v, lowered)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for seed in (1, 2):
        indices.copy_(drawn(seed))
        out.fill_(float("nan"))
        graph.replay()
        wanted = attention(
            q.float().cpu(), k.float().cpu(), v.float().cpu(), planned(drawn(seed)),
            backend="reference",
        )  # fmt: skip
        torch.testing.assert_close(out.float().cpu(), wanted, rtol=0.03, atol=0.02)


@pytest.mark.parametrize("backend", ENGINES)
def test_no_call_waits_for_the_gpu(backend):
    lowered, _ = lowered_plans(backend)
    q, k, v = (
        torch.randn(1, TOKENS, 2, 64, device=CUDA, dtype=NARROW).requires_grad_() for _ in range(3)
    )
    attention(q, k, v, lowered).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention(q, k, v, lowered).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(backend, reentrant):
    torch.manual_seed(0)
    block, (lowered, _) = Block().to(CUDA, NARROW), lowered_plans(backend)
    x = torch.randn(2, TOKENS, 128, device=CUDA, dtype=NARROW)

    def run(x: Tensor, plan: object) -> Tensor:
        return checkpoint(block, x, plan, use_reentrant=reentrant)

    close(gradients(block, run, lowered, x), gradients(block, block, lowered, x))


@pytest.mark.parametrize("backend", ENGINES)
def test_autocast_and_inference(backend):
    lowered, _ = lowered_plans(backend)
    q, k, v = (torch.randn(1, TOKENS, 2, 64, device=CUDA) for _ in range(3))
    wanted = attention(q.to(NARROW), k.to(NARROW), v.to(NARROW), lowered)
    with torch.autocast("cuda", dtype=NARROW):
        found = attention(q, k, v, lowered)
    with torch.inference_mode():
        inferred = attention(q.to(NARROW), k.to(NARROW), v.to(NARROW), lowered)

    assert found.dtype == NARROW
    assert torch.equal(found, wanted)
    assert torch.equal(inferred, wanted)


@pytest.mark.parametrize("backend", ENGINES)
def test_a_cache_moves_a_plan_once(backend):
    plan, cache = mp.causal(TOKENS, TOKENS, block_size=(128, 128)), mp.PlanCache()
    usable(backend, plan, (2, 2), (64, 64))
    q, k, v = (torch.randn(1, TOKENS, 2, 64, device=CUDA, dtype=NARROW) for _ in range(3))
    found = [attention(q, k, v, plan, backend=backend, cache=cache) for _ in range(3)]

    assert (cache.stats.hits, cache.stats.misses) == (2, 1)
    assert torch.equal(found[0], attention(q, k, v, plan.to(CUDA), backend=backend))


@pytest.mark.parametrize("backend", ENGINES)
def test_an_exact_plan_and_a_device_plan_lower_alike(backend):
    exact, _ = lowered_plans(backend)
    device = exact.plan.cpu().to(CUDA).lower(backend, head_dim=64, heads=2)
    q, k, v = (torch.randn(1, TOKENS, 2, 64, device=CUDA, dtype=NARROW) for _ in range(3))

    assert torch.equal(attention(q, k, v, device), attention(q, k, v, exact))


@pytest.mark.parametrize("backend", ["reference", "fa4"])
def test_opcheck(backend):
    plan = mp.causal(150, 150, block_size=(128, 128))
    dtype = torch.float32 if backend == "reference" else NARROW
    usable(backend, plan, (2, 2), (64, 64), dtype=dtype)
    plan = plan.to(CUDA)
    packed = operands(plan if backend == "reference" else plan.lower(backend, head_dim=64, heads=2))
    q, k, v = (
        torch.randn(1, 150, 2, 64, device=CUDA, dtype=dtype).requires_grad_() for _ in range(3)
    )
    rest = (list(packed.tensors), packed.spec, backend, 0.125, "bshd", "auto", False)

    torch.library.opcheck(
        operators.attention, (q, k, v, *rest), test_utils=("test_schema", "test_faketensor")
    )
    torch.library.opcheck(
        operators.attention, (q, k, v, *rest), atol=0.05, rtol=0.05,
        test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"),
    )  # fmt: skip


def test_the_reference_runs_there_too():
    right(mp.causal(70, 70, block_size=(16, 16)), "reference", (4, 2), dtype=torch.float32)


def test_auto_takes_the_fastest_that_can():
    plan = mp.causal(256, 256, block_size=(128, 128)).to(CUDA)
    q = torch.randn(1, 256, 2, 64, device=CUDA, dtype=NARROW)
    said = mp.backends(q, q, q, plan)
    (first, *_) = (status.name for status in said if status.usable)

    assert [status.name for status in said].index(first) == min(
        i for i, status in enumerate(said) if status.usable
    )
    assert first in ENGINES
    assert not next(status for status in said if status.name == "cpu").usable
