"""Attention on a CUDA GPU under every mode of torch, and again and again."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import maskplan as mp
from maskplan.attention import attention, operators
from maskplan.attention.facts import operands
from tests.gpu.calls import (
    CUDA,
    ENGINES,
    MARKS,
    NARROW,
    TOKENS,
    Block,
    close,
    gradients,
    lowered_plans,
    plan_of,
    random_mask,
    usable,
)

pytestmark = MARKS


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


def operator_call(backend: str) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[object, ...]]:
    """((q, k, v), the other arguments of the operator) for a backend."""
    plan = mp.causal(150, 150, block_size=(128, 128))
    dtype = torch.float32 if backend == "reference" else NARROW
    usable(backend, plan, (2, 2), (64, 64), dtype=dtype)
    plan = plan.to(CUDA)
    packed = operands(plan if backend == "reference" else plan.lower(backend, head_dim=64, heads=2))
    q, k, v = (torch.randn(1, 150, 2, 64, device=CUDA, dtype=dtype) for _ in range(3))
    return (q, k, v), (list(packed.tensors), packed.spec, backend, 0.125, "bshd", "auto", False)


@pytest.mark.parametrize("backend", ["reference", "fa4"])
def test_opcheck_of_the_forward(backend):
    (q, k, v), rest = operator_call(backend)
    q, k, v = (x.requires_grad_() for x in (q, k, v))

    torch.library.opcheck(
        operators.attention, (q, k, v, *rest), test_utils=("test_schema", "test_faketensor")
    )
    torch.library.opcheck(
        operators.attention, (q, k, v, *rest), atol=0.05, rtol=0.05,
        test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["reference", "fa4"])
@pytest.mark.parametrize("dlse", [False, True])
def test_opcheck_of_the_backward(backend, dlse):
    (q, k, v), rest = operator_call(backend)
    out, lse = operators.attention(q, k, v, *rest)
    given = (out, lse, torch.randn_like(out), torch.randn_like(lse) if dlse else None)

    torch.library.opcheck(
        operators.attention_backward, (q, k, v, *given, *rest),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


# Equal calls: kernels that overlap have read what the one before had not yet written.


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_calls_give_equal_bits(backend, seed):
    """The forward always; gradients of flex too, and those of fa4 where they can be had."""
    plan = plan_of(random_mask(1, 2, 700, 900, density=0.3, seed=seed), (128, 128))
    usable(backend, plan, (4, 2), (64, 64))
    asked = {"backend": backend, "deterministic": False}
    q, k, v = (
        torch.randn(2, length, heads, 64, device=CUDA, dtype=NARROW).requires_grad_()
        for length, heads in ((700, 4), (900, 2), (900, 2))
    )
    shape = {"head_dim": 64, "heads": 4, "kv_heads": 2}
    lowered = plan.lower(backend, **shape).to(CUDA)
    said = {x.name: x for x in mp.backends(q, k, v, lowered, deterministic=True)}
    asked["deterministic"] = said[backend].usable
    dout = torch.randn(2, 700, 4, 64, device=CUDA, dtype=NARROW)

    def once() -> list[Tensor]:
        out, lse = attention(q, k, v, lowered, return_lse=True, **asked)
        return [out, lse, *torch.autograd.grad((out, lse), (q, k, v), (dout, torch.ones_like(lse)))]

    first = once()
    names = ("out", "lse", "dq", "dk", "dv") if asked["deterministic"] else ("out", "lse")
    for _ in range(10):
        for name, one, other in zip(names, first, once(), strict=False):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("backend", ENGINES)
def test_repeated_gradients_stay_within_rounding(backend):
    """A race would leave garbage in a few of them; sums in another order differ by rounding."""
    lowered, _ = lowered_plans(backend, 900)
    q, k, v = (
        torch.randn(1, 900, 2, 64, device=CUDA, dtype=NARROW).requires_grad_() for _ in range(3)
    )
    dout = torch.randn(1, 900, 2, 64, device=CUDA, dtype=NARROW)

    def once() -> list[Tensor]:
        return list(torch.autograd.grad(attention(q, k, v, lowered), (q, k, v), dout))

    first = once()
    for _ in range(20):
        close(once(), first)


def test_planning_twice_gives_equal_bits():
    """Threads race to set bits; which came first leaves no trace in lists, tiles or status."""
    drawn = torch.Generator().manual_seed(0)
    indices = torch.randint(-1, 2000, (1, 2, 500, 300), dtype=torch.int32, generator=drawn).to(CUDA)

    def once() -> list[Tensor]:
        plan = mp.from_topk(indices, 2000, block_size=(64, 128))
        turned = plan.transpose().block_sparse_tensors(width="dense", spt=True)
        held = plan.tile_id[plan.tile_id >= 0].long()
        lists = (turned.mask_block_idx, turned.full_block_idx, turned.dq_write_order)
        return [plan.row_ptr, plan.col, plan.tile_id, plan.tiles[held], plan.status, *lists]

    first = once()
    for _ in range(10):
        assert all(torch.equal(one, other) for one, other in zip(first, once(), strict=True))
