"""Plans that move, and calls that device plans refuse."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from maskplan.device.move import as_device_plan
from maskplan.errors import PlanError, PlanTypeError
from maskplan.lower.lowered import moved
from tests.device.planning import generator, same_lists, same_plan


@pytest.fixture
def plan() -> mp.Plan:
    mask = torch.rand(1, 3, 50, 70, generator=generator(1)) < 0.03
    mask[:, 0, :24], mask[:, 2] = True, mask[:, 1]
    return mp.from_token_mask(mask, block_size=(8, 16))


def test_a_plan_moves_there_and_back(place, plan):
    there = as_device_plan(plan, place)

    assert there.num_patterns == 2
    same_plan(there, plan, turned=True)
    assert as_device_plan(plan.transpose(), place).cpu() == plan.transpose()


@pytest.mark.gpu
def test_to_a_gpu_and_back(place, plan):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    there = plan.to("cuda")

    assert there.device.type == "cuda"
    assert there.to(there.device) is there
    assert there.to("cpu") == plan
    same_plan(there, plan)


def test_a_plan_on_the_cpu_stays_what_it_is(plan):
    assert plan.to("cpu") is plan
    assert plan.cpu() is plan
    assert plan.status is None


def test_a_lowered_device_plan_comes_to_the_cpu_as_it_is_numbered(place):
    """Walks name patterns and tiles by number, and the exact plan on the CPU has other numbers."""
    indices = torch.randint(0, 90, (1, 2, 40, 1), dtype=torch.int32, generator=generator(2))
    made = mp.from_topk(indices.to(place), 90, block_size=(8, 8))
    made = replace(made, pattern_id=1 - made.pattern_id)  # pattern 1 is used first
    came = moved(made.lower("cpu", backward=("loop_q", "loop_k")), torch.device("cpu"))
    exact = made.cpu()
    q, k, v = torch.randn(3, 1, 90, 2, 8, generator=generator(3)).requires_grad_()
    q = q[:, :40]

    assert came.plan.status is None
    came.plan.validate()
    assert came.plan == exact
    for backward in ("loop_q", "loop_k"):
        found, wanted = (
            torch.autograd.grad(mp.attention(q, k, v, plan, backward=backward).sum(), (q, k, v))
            for plan in (came, exact)
        )
        # Not bit for bit: a plan that was on a GPU is read by blocks, and this one token by token.
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_a_fault_comes_with_a_lowered_plan(place):
    bad = torch.full((1, 1, 8, 2), 99, dtype=torch.int32, device=place)
    lowered = mp.from_topk(bad, 40, block_size=(8, 8)).lower("cpu")

    with pytest.raises(PlanError, match="index out of range in the plan's status word"):
        moved(lowered, torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("bogus", PlanError, r"no such device here in device: got 'bogus', wanted cpu"),
        ("cuda:99", PlanError, r"no such device here in device: got 'cuda:99', wanted cpu"),
        (None, PlanTypeError, "argument is not a device in device: got None of type NoneType"),
        (torch.float32, PlanTypeError, 'wanted a torch.device, or its name, as "cuda:0"'),
        (3, PlanTypeError, "got 3 of type int"),
    ],
)
def test_no_such_device(plan, device, error, message):
    for act in (plan.to, plan.transpose().to, plan.lower("cpu").to):
        with pytest.raises(error, match=message):
            act(device)


REFUSED = {
    "stats": lambda plan: plan.stats(),
    "digest": lambda plan: plan.digest,
    "canonical": lambda plan: plan.canonical(),
    "to_dense": lambda plan: plan.to_dense(),
    "save": lambda plan: plan.save("never.safetensors"),
    "plot": lambda plan: plan.plot(),
    "explore": lambda plan: plan.explore("never.html"),
    "==": lambda plan: plan == plan,  # noqa: PLR0124 - the call is what is tested
    "&": lambda plan: plan & plan,
    "|": lambda plan: plan | plan,
    "-": lambda plan: plan - plan,
    "crop": lambda plan: plan.crop(q=(0, 3)),
    "shard": lambda plan: plan.shard("heads", 0, 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_exact_plans_says_so(place, plan, name):
    there = as_device_plan(plan, place)

    with pytest.raises(PlanTypeError) as caught:
        REFUSED[name](there)
    text = str(caught.value)
    assert text.startswith(f"plan is on {there.device} in ")
    assert text.endswith("use plan.cpu(), which waits for the device.")


def test_compact_lists_of_a_device_plan_are_refused(place, plan):
    with pytest.raises(PlanError, match=r"width='compact', wanted \"dense\" or a number of slots"):
        as_device_plan(plan, place).block_sparse_tensors()


def test_lists_of_a_given_width(place, plan):
    there, slots = as_device_plan(plan, place), plan.axes.cols + 3
    same_lists(there.block_sparse_tensors(width=slots), plan.block_sparse_tensors(width=slots))
    assert int(there.status) == 0
    made = there.block_sparse_tensors(width=2)
    wanted = plan.block_sparse_tensors(width="dense")

    assert int(there.status) == 2
    assert torch.equal(made.mask_block_cnt.cpu(), wanted.mask_block_cnt.clamp(max=2))
    assert torch.equal(made.full_block_idx.cpu(), wanted.full_block_idx[..., :2])
    with pytest.raises(PlanError, match=r"at least .*, the longest list"):
        plan.block_sparse_tensors(width=2)


def test_names_do_not_wait(place, plan):
    there = as_device_plan(plan, place)

    assert "room for" in repr(there)
    assert str(there) == repr(there)
    assert "room for" in there._repr_html_()


def test_heads_of_a_device_plan(place, plan):
    there = as_device_plan(plan, place).with_heads(6)

    assert there.cpu() == plan.with_heads(6)
