"""A block with attention inside, compiled in one graph: equal to eager, and compiled once."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func

import maskplan as mp
from maskplan.attention import attention, choice, cpu, dispatch
from tests.attention.problems import problem

HEADS, DIM, TOKENS = 2, 16, 70
COMPILERS = ("aot_eager", "inductor")
# Inductor, on its way, imports parts of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class Block(nn.Module):
    """LayerNorm, projection to q, k and v, attention, projection of its output."""

    def __init__(self, layout: str = "bshd") -> None:
        super().__init__()
        width = HEADS * DIM
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.layout = layout
        self.plan: object = None

    def forward(self, x: Tensor, plan: object = None) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, DIM)).unbind(2)
        if self.layout == "bhsd":
            parts = tuple(part.transpose(1, 2) for part in parts)
        given = self.plan if plan is None else plan
        out, lse = attention(*parts, given, layout=self.layout, return_lse=True)
        if self.layout == "bhsd":
            out = out.transpose(1, 2)
        weighted = out * lse.transpose(1, 2)[..., None].sigmoid()
        return x + self.project(weighted.flatten(2))


def plans() -> tuple[mp.Plan, mp.Plan]:
    """Two masks of one geometry, with other numbers of blocks and of tiles."""
    window = mp.sliding_window(TOKENS, TOKENS, block_size=(16, 16), left=20, right=3)
    causal = mp.causal(TOKENS, TOKENS, block_size=(16, 16))
    assert len(window.col) != len(causal.col)
    assert len(window.tiles) != len(causal.tiles)
    return causal, window


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def gradients(block: nn.Module, run, *plan: object) -> list[Tensor]:
    block.zero_grad()
    x = torch.randn(2, TOKENS, HEADS * DIM, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    out = run(x, *plan)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in block.parameters())]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("way", ["argument", "attribute"])
def test_a_block_is_one_graph_for_all_plans_of_one_shape(compiler, layout, way):
    block = Block(layout)
    lowered = [plan.lower("cpu") for plan in plans()]
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    for i in (0, 1, 0, 1):
        given = (lowered[i],) if way == "argument" else ()
        if way == "attribute":
            block.plan = lowered[i]
        found = gradients(block, compiled, *given)
        torch.testing.assert_close(found, gradients(block, block, *given), rtol=2e-4, atol=2e-5)

    assert counter.frame_count == 1


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_plan_from_outside_the_function(compiler):
    block = Block()
    lowered = plans()[1].lower("cpu")
    run = torch.compile(lambda x: block(x, lowered), backend=compiler, fullgraph=True)

    torch.testing.assert_close(
        gradients(block, run), gradients(block, block, lowered), rtol=2e-4, atol=2e-5
    )


def test_a_plan_of_another_geometry_compiles_again():
    block, counter = Block(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    for plan in (plans()[0], plans()[0].reblock((32, 16))):
        torch.testing.assert_close(
            gradients(block, compiled, plan.lower("cpu")), gradients(block, block, plan)
        )

    assert counter.frame_count == 2


def test_a_plan_as_it_is_compiles_too():
    """The CPU runs it without lowering."""
    block, (plan, _) = Block(), plans()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(gradients(block, compiled, plan), gradients(block, block, plan))


def test_the_graph_holds_one_node_of_each_direction():
    graphs = []

    def record(graph, inputs):
        del inputs
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=record, bw_compiler=record)
    block = Block()
    lowered = plans()[0].lower("cpu")
    gradients(block, torch.compile(block, backend=backend, fullgraph=True), lowered)

    assert [sum("maskplan" in name for name in names) for names in graphs] == [1, 1]
    assert "maskplan.attention.default" in graphs[0]
    assert "maskplan.attention_backward.default" in graphs[1]


def test_modes_of_a_compiled_block():
    block = Block()
    lowered = plans()[0].lower("cpu")
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, TOKENS, HEADS * DIM)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, lowered), block(x, lowered))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, lowered), block(x, lowered))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = compiled(x, lowered), block(x, lowered)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_compiled_block(reentrant):
    block = Block()
    lowered = plans()[1].lower("cpu")
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)

    def run(x):
        return torch.utils.checkpoint.checkpoint(compiled, x, lowered, use_reentrant=reentrant)

    torch.testing.assert_close(gradients(block, run), gradients(block, block, lowered))


class Traced:
    """A backend of plain operations, as FlexAttention is one: dense attention under a mask."""

    NAME, ENGINES, OPERATOR = "traced", ("cpu",), False

    @staticmethod
    def supports(asked):
        del asked

    @staticmethod
    def lowering(asked):
        return cpu.lowering(asked)

    @staticmethod
    def attend(call):
        listed = torch.zeros(call.lowered.geometry.num_k_blocks, dtype=torch.bool)
        listed[call.lowered.forward.col.long()] = True
        scores = torch.einsum("bqhd,bkhd->bhqk", call.q, call.k) * call.scale
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), call.v)
        return out * listed.all(), scores.logsumexp(-1)


@pytest.mark.parametrize("eager", [False, True])
def test_a_traced_backend_is_seen_through(monkeypatch, eager):
    """It is not put behind the operator, in compiled regions or out of them."""
    monkeypatch.setattr(choice, "BACKENDS", (Traced,))
    made = problem(torch.ones(1, 1, 12, 12, dtype=torch.bool), (4, 4), heads=2)
    counter = CompileCounterWithBackend("aot_eager")

    def run(q, plan):
        return attention(q, made.k, made.v, plan, backend="traced")

    q = made.q.requires_grad_()
    call = run if eager else torch.compile(run, backend=counter, fullgraph=True)
    out = call(q, made.plan if eager else made.plan.lower("cpu"))
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, made.k, made.v))
    )
    torch.testing.assert_close(out, dense.transpose(1, 2))
    (found,) = torch.autograd.grad(out.sum(), q)
    (wanted,) = torch.autograd.grad(dense.sum(), q)
    torch.testing.assert_close(found, wanted)
    if not eager:
        names = [str(node.target) for node in counter.graphs[0].graph.nodes]
        assert not any("maskplan" in name for name in names)


def test_a_plan_that_would_have_to_be_lowered_inside_is_refused(monkeypatch):
    monkeypatch.setattr(choice, "BACKENDS", (Traced,))
    made = problem(torch.ones(1, 1, 12, 12, dtype=torch.bool), (4, 4))
    run = torch.compile(
        lambda q: attention(q, made.k, made.v, made.plan), backend="eager", fullgraph=True
    )

    with pytest.raises(Exception, match="cannot be lowered in a compiled region"):
        run(made.q)


@pytest.mark.parametrize("name", ["fa4", "sm100", "flex", "cpu", "reference", "sm100-emulated"])
def test_the_remedy_of_a_plan_inside_is_a_target_that_lower_takes(name, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    plan = plans()[0]

    with pytest.raises(mp.UnsupportedError, match=r"pass plan.lower\(\"") as caught:
        dispatch._lowered(plan, choice.named(name), (), mp.PlanCache())
    target = str(caught.value).split('"')[-2]
    assert plan.lower(target, **({"arch": "sm90"} if target == "fa4" else {})).engine == target


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_heads_and_head_dims_compile_again(dynamic):
    lowered = plans()[0].lower("cpu")
    run = torch.compile(attention, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for heads, kv_heads, dim, dim_v in ((2, 2, 8, 8), (4, 2, 16, 8), (6, 3, 24, 12)):
        q = torch.randn(1, TOKENS, heads, dim)
        k, v = (torch.randn(1, TOKENS, kv_heads, width) for width in (dim, dim_v))
        assert torch.equal(run(q, k, v, lowered), attention(q, k, v, lowered))


@pytest.mark.parametrize("scales", [(1, 2, 3), (0.1, 0.2, 0.3)])
def test_scales_of_several_values(scales):
    lowered = plans()[0].lower("cpu")
    run = torch.compile(attention, backend="aot_eager", fullgraph=True)
    q, k, v = (torch.randn(1, TOKENS, HEADS, DIM) for _ in range(3))
    for scale in scales:
        found = run(q, k, v, lowered, scale=scale)
        assert torch.equal(found, attention(q, k, v, lowered, scale=scale))
