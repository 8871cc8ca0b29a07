"""Blocks joined and cut on a device, and walks of several rows, judged by the CPU's."""

import pytest
import torch

import maskplan as mp
from maskplan.device.move import as_device_plan
from maskplan.device.part_tiles import PartTiles, met
from maskplan.lower.walk import forward_walk, loop_q_walk
from tests.device.planning import generator, on_the_cpu, same_lists, spare_is_minus_one

SIZES = [
    ((4, 32), (8, 64)),
    ((4, 8), (12, 24)),
    ((1, 1), (4, 6)),
    ((3, 5), (3, 35)),
    ((2, 32), (2, 32)),
]
CUTS = [
    ((4, 64), (2, 32)),  # cut, words kept
    ((4, 96), (4, 64)),  # and joined; ragged
    ((8, 32), (6, 64)),  # rows cut and joined, keys joined
    ((4, 8), (6, 8)),
    ((4, 8), (4, 12)),
    ((4, 70), (3, 7)),  # within words
    ((5, 33), (2, 5)),
    ((6, 64), (13, 48)),
    ((13, 70), (64, 128)),  # one block into one
]


def some_plan(size, *, whole: bool = False) -> mp.Plan:
    sq, sk = (13, 70) if size != (1, 1) else (6, 20)
    mask = torch.rand(1, 2, sq, sk, generator=generator(1)) < 0.1
    mask[:, 0, :9, 10:50], mask[:, 1, :4] = True, False
    plan = mp.from_token_mask(mask, block_size=size)
    return plan.reblock(size, superset=True) if whole else plan


@pytest.mark.parametrize(("size", "larger"), SIZES + CUTS)
@pytest.mark.parametrize("whole", [False, True])
def test_blocks_of_other_sizes(place, size, larger, whole):
    plan = some_plan(size, whole=whole)
    made, wanted = as_device_plan(plan, place).reblock(larger), plan.reblock(larger)

    spare_is_minus_one(made)
    assert made.cpu() == wanted
    same_lists(made.block_sparse_tensors(width="dense"), wanted.block_sparse_tensors(width="dense"))
    turned = as_device_plan(plan.transpose(), place).reblock(larger)
    assert turned.cpu() == wanted.transpose()
    assert tuple(made.provenance.parameters["block_size"]) == larger


@pytest.mark.parametrize("size", [(8, 16), (3, 7)])
def test_a_superset_on_request(place, size):
    plan = some_plan((4, 8))
    made = as_device_plan(plan, place).reblock(size, superset=True)

    assert made.tile_id is None
    assert made.cpu() == plan.reblock(size, superset=True)


@pytest.mark.parametrize(
    ("size", "new"),
    [
        ((4, 6), (4, 12)),  # 2 parts
        ((4, 6), (3, 6)),  # 2 parts in 4 places
        ((2, 3), (3, 2)),  # 2 x 2 parts in 2 x 3 places
        ((2, 1), (1, 9)),  # 9 parts: too many
        ((4, 6), (2, 3)),  # pieces
    ],
)
def test_tiles_of_whole_blocks_are_few(place, size, new):
    """Made from which parts are listed, whatever the number of blocks; exact at ragged ends."""
    sq, sk = 29, 40
    mask = torch.rand(2, -(-sq // size[0]), -(-sk // size[1]), generator=generator(3)) < 0.5
    mask[0] = True
    with on_the_cpu():
        plan = mp.from_block_mask(mask[None], sq, sk, block_size=size)
    moved = as_device_plan(plan, place)
    wanted = plan.reblock(new)
    for made, right in (
        (moved.reblock(new), wanted),
        (moved.transpose().reblock(new), wanted.transpose()),
    ):
        assert made.cpu() == right
        count = PartTiles(
            plan.axes if isinstance(made, mp.Plan) else plan.axes.transposed, made.axes
        ).count
        if new == (2, 3):
            assert made.tile_id is None
            assert made.num_tiles == 0
        elif new == (1, 9):
            assert count is None
            assert made.num_tiles == len(made.col)
        else:
            assert made.num_tiles == count < len(made.col)


@pytest.mark.parametrize(("old", "new"), [(1, 5), (5, 1), (6, 4), (4, 6), (7, 5), (8, 8), (9, 2)])
def test_room_for_cut_blocks_is_what_they_can_take(old, new):
    """By laying out intervals until they repeat."""
    most = 0
    for start in range(0, old * new, old):
        most = max(most, (start + old - 1) // new - start // new + 1)
    assert met(new, old) == most


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


@pytest.mark.parametrize(
    ("arch", "size", "group"),
    [
        ("sm90", (64, 64), 1),
        ("sm100", (64, 64), 1),
        ("sm100", (96, 80), 1),
        ("sm100", (128, 128), 4),  # one list for two pairs of tiles; cut for the backward
    ],
)
def test_lowered_plans(place, arch, size, group):
    """The whole of `lower`: legal tiles, two Q tiles a walk on sm100."""
    options = {"left": 150, "right": 30, "block_size": size}
    target = mp.target(arch, head_dim=128, group=group, pack_gqa=group > 1)
    wanted = mp.sliding_window(420, 420, **options).lower(target, backward=("loop_q",), spt=True)
    made = mp.sliding_window(420, 420, **options, device=place).lower(
        target, backward=("loop_q",), spt=True
    )

    for direction in ("forward", "loop_q"):
        same_walk(getattr(made, direction), getattr(wanted, direction))
