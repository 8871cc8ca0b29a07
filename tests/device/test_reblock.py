"""Blocks joined into larger ones on a device, and walks of several rows, judged by the CPU's."""

import pytest
import torch

import maskplan as mp
from maskplan.device.move import as_device_plan
from maskplan.errors import UnsupportedError
from maskplan.lower.walk import forward_walk, loop_q_walk
from tests.device.planning import generator, on_the_cpu, same_lists, spare_is_minus_one

SIZES = [
    ((4, 32), (8, 64)),
    ((4, 8), (12, 24)),
    ((1, 1), (4, 6)),
    ((3, 5), (3, 35)),
    ((2, 32), (2, 32)),
]


def some_plan(size, *, whole: bool = False) -> mp.Plan:
    sq, sk = (13, 70) if size != (1, 1) else (6, 20)
    mask = torch.rand(1, 2, sq, sk, generator=generator(1)) < 0.1
    mask[:, 0, :9, 10:50], mask[:, 1, :4] = True, False
    plan = mp.from_token_mask(mask, block_size=size)
    return plan.reblock(size, superset=True) if whole else plan


@pytest.mark.parametrize(("size", "larger"), SIZES)
@pytest.mark.parametrize("whole", [False, True])
def test_joined_blocks(place, size, larger, whole):
    plan = some_plan(size, whole=whole)
    made, wanted = as_device_plan(plan, place).reblock(larger), plan.reblock(larger)

    spare_is_minus_one(made)
    assert made.cpu() == wanted
    same_lists(made.block_sparse_tensors(width="dense"), wanted.block_sparse_tensors(width="dense"))
    turned = as_device_plan(plan.transpose(), place).reblock(larger)
    assert turned.cpu() == wanted.transpose()
    assert tuple(made.provenance.parameters["block_size"]) == larger


def test_a_superset_on_request(place):
    plan = some_plan((4, 8))
    made = as_device_plan(plan, place).reblock((8, 16), superset=True)

    assert made.tile_id is None
    assert made.cpu() == plan.reblock((8, 16), superset=True)


@pytest.mark.parametrize("size", [(6, 8), (4, 12), (2, 8)])
def test_other_sizes_are_refused(place, size):
    with pytest.raises(UnsupportedError, match=r"a device plan joins whole blocks in reblock"):
        as_device_plan(some_plan((4, 8)), place).reblock(size)


@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (5, 0)])
def test_nothing_to_join(place, sq, sk):
    with on_the_cpu():
        plan = mp.from_block_mask(torch.ones(sq, sk, dtype=torch.bool), sq, sk, block_size=(1, 1))
    made = as_device_plan(plan, place).reblock((2, 2))

    assert made.cpu() == plan.reblock((2, 2))


def same_walk(made, wanted):
    """Entries, each entry's bits, order and numbers of two walks."""
    used = int(made.row_ptr[-1])
    assert torch.equal(made.row_ptr.cpu(), wanted.row_ptr)
    assert torch.equal(made.col[:used].cpu(), wanted.col)
    assert torch.equal(made.order.cpu(), wanted.order)
    ids, wanted_ids = made.tile_id[:used].cpu(), wanted.tile_id
    assert torch.equal(ids.clamp(max=0), wanted_ids.clamp(max=0))
    bits = ids >= 0
    assert torch.equal(made.tiles.cpu()[ids[bits].long()], wanted.tiles[wanted_ids[bits].long()])
    if wanted.write_order is not None:
        assert torch.equal(made.write_order[:used].cpu(), wanted.write_order)
    for name in ("rows", "parts", "part_tokens", "col_tokens"):
        assert getattr(made, name) == getattr(wanted, name)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("whole", [False, True])
def test_walks(place, parts, whole):
    plan = some_plan((4, 8), whole=whole)
    moved = as_device_plan(plan, place)

    same_walk(forward_walk(moved, parts=parts), forward_walk(plan, parts=parts))
    for spt in (False, True):
        options = {"parts": parts, "spt": spt}
        same_walk(loop_q_walk(moved, **options), loop_q_walk(plan, **options))


@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (5, 0)])
def test_walks_of_nothing(place, sq, sk):
    with on_the_cpu():
        plan = mp.from_block_mask(torch.ones(sq, sk, dtype=torch.bool), sq, sk, block_size=(1, 1))
    moved = as_device_plan(plan, place)

    same_walk(forward_walk(moved, parts=2), forward_walk(plan, parts=2))
    same_walk(loop_q_walk(moved, parts=2), loop_q_walk(plan, parts=2))


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_lowered_plans(place, arch):
    """The whole of `lower`: joined to legal tiles, two Q tiles a walk on sm100."""
    options = {"left": 150, "right": 30, "block_size": (64, 64)}
    wanted = mp.sliding_window(420, 420, **options).lower(arch, backward=("loop_q",), spt=True)
    made = mp.sliding_window(420, 420, **options, device=place).lower(
        arch, backward=("loop_q",), spt=True
    )

    for direction in ("forward", "loop_q"):
        same_walk(getattr(made, direction), getattr(wanted, direction))
