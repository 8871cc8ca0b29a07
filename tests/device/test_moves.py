"""Plans that move, and calls that device plans refuse."""

import pytest
import torch

import maskplan as mp
from maskplan.device.move import as_device_plan
from maskplan.errors import PlanError, PlanTypeError
from tests.device.planning import generator, same_lists, same_plan


@pytest.fixture
def plan() -> mp.Plan:
    mask = torch.rand(1, 3, 50, 70, generator=generator(1)) < 0.03
    mask[:, 0, :24], mask[:, 2] = True, mask[:, 1]
    return mp.from_token_mask(mask, block_size=(8, 16))


def test_a_plan_moves_there_and_back(place, plan):
    moved = as_device_plan(plan, place)

    assert moved.num_patterns == 2
    same_plan(moved, plan, turned=True)
    assert as_device_plan(plan.transpose(), place).cpu() == plan.transpose()


@pytest.mark.gpu
def test_to_a_gpu_and_back(place, plan):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    moved = plan.to("cuda")

    assert moved.device.type == "cuda"
    assert moved.to(moved.device) is moved
    assert moved.to("cpu") == plan
    same_plan(moved, plan)


def test_a_plan_on_the_cpu_stays_what_it_is(plan):
    assert plan.to("cpu") is plan
    assert plan.cpu() is plan
    assert plan.status is None


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
    moved = as_device_plan(plan, place)

    with pytest.raises(PlanTypeError) as caught:
        REFUSED[name](moved)
    text = str(caught.value)
    assert text.startswith(f"plan is on {moved.device} in ")
    assert text.endswith("use plan.cpu(), which waits for the device.")


def test_compact_lists_of_a_device_plan_are_refused(place, plan):
    with pytest.raises(PlanError, match=r"width='compact', wanted \"dense\" or a number of slots"):
        as_device_plan(plan, place).block_sparse_tensors()


def test_lists_of_a_given_width(place, plan):
    moved, slots = as_device_plan(plan, place), plan.axes.cols + 3
    same_lists(moved.block_sparse_tensors(width=slots), plan.block_sparse_tensors(width=slots))
    assert int(moved.status) == 0
    made = moved.block_sparse_tensors(width=2)
    wanted = plan.block_sparse_tensors(width="dense")

    assert int(moved.status) == 2
    assert torch.equal(made.mask_block_cnt.cpu(), wanted.mask_block_cnt.clamp(max=2))
    assert torch.equal(made.full_block_idx.cpu(), wanted.full_block_idx[..., :2])
    with pytest.raises(PlanError, match=r"at least .*, the longest list"):
        plan.block_sparse_tensors(width=2)


def test_names_do_not_wait(place, plan):
    moved = as_device_plan(plan, place)

    assert "room for" in repr(moved)
    assert str(moved) == repr(moved)
    assert "room for" in moved._repr_html_()


def test_heads_of_a_device_plan(place, plan):
    moved = as_device_plan(plan, place).with_heads(6)

    assert moved.cpu() == plan.with_heads(6)
