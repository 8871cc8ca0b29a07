"""`TokenTiles.from_topk` on a device, judged by the CPU's, which loops judge in their turn."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

import maskplan as mp
from maskplan.errors import PlanError, PlanTypeError
from tests.device.planning import COMPILERS, generator, on_the_cpu

POLICIES = ("uniform", "union", "representative")


def same_tiles(made: mp.TokenTiles, wanted: mp.TokenTiles) -> None:
    """Check every field of exact tiles."""
    for field in fields(wanted):
        one, other = getattr(made, field.name), getattr(wanted, field.name)
        if isinstance(other, Tensor):
            assert one.shape == other.shape, field.name
            assert one.dtype == other.dtype, field.name
            assert torch.equal(one, other), field.name
        elif field.name == "blocks":
            for part in fields(other):
                a, b = getattr(one, part.name), getattr(other, part.name)
                equal = torch.equal(a, b) if isinstance(b, Tensor) else a == b
                assert equal, part.name
        else:
            assert one == other, field.name


def both(place, indices, seqlen_k, *, form="tokens", **options):
    """(tiles made on the device, tiles of the CPU)."""
    there = {
        name: value.to(place) if isinstance(value, Tensor) else value
        for name, value in options.items()
    }
    made = mp.TokenTiles.from_topk(indices.to(place), seqlen_k, form=form, **there)
    with on_the_cpu():
        return made, mp.TokenTiles.from_topk(indices, seqlen_k, form=form, **options)


def check(place, indices, seqlen_k, **options):
    """Tiles of a device are those of the CPU, and bound by shapes before they are trimmed."""
    made, wanted = both(place, indices, seqlen_k, **options)
    assert made.status is not None
    assert "on " in repr(made)
    if made.form == "tokens":
        assert made.tile_token_indices.shape[3] >= wanted.tile_token_indices.shape[3]
        beyond = torch.arange(made.tile_token_indices.shape[3], device=made.device)
        beyond = beyond >= made.valid_counts[..., None]
        assert bool((made.tile_token_indices[beyond] == -1).all())
    same_tiles(made.cpu(), wanted)


def random_lists(shape, topk, seqlen_k, seed=0, holes=True):
    """Any keys, -1 and duplicates among them."""
    low = -1 if holes else 0
    g = generator(seed)
    return torch.randint(low, seqlen_k, (*shape, topk), generator=g, dtype=torch.int32)


@pytest.mark.parametrize("policy", ["union", "representative"])
@pytest.mark.parametrize(
    ("shape", "topk", "seqlen_k", "group"),
    [
        ((1, 1, 5), 9, 300, 64),  # three tiles, the last of one token
        ((2, 2, 3), 40, 33, 128),  # topk > SK, batches that differ, a token a tile
        ((1, 1, 1), 1, 1, 1),
        ((1, 2, 4), 150, 700, 64),
    ],
)
def test_lists_that_differ(place, shape, topk, seqlen_k, group, policy):
    indices = random_lists(shape, topk, seqlen_k)
    check(place, indices, seqlen_k, policy=policy, group=group, max_coverage=1.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seqlen_k", [131, 600])
def test_rows_that_are_alike(place, policy, seqlen_k):
    """Order, -1 and duplicates do not matter; unequal rows of other tiles either."""
    keys = torch.randperm(seqlen_k, generator=generator(1))[:130]
    row = torch.cat([keys, keys[:3], torch.full((4,), -1)])
    g = generator(2)
    rows = [row[torch.randperm(len(row), generator=g)] for _ in range(4)]
    rows += [torch.where(row > 40, row, -1)] * 2  # a tile of other, shorter lists
    indices = torch.stack(rows)[None, None].int()
    check(place, indices, seqlen_k, policy=policy, group=32)


@pytest.mark.parametrize("tile_rows", [128, 256])
def test_heads_of_a_group_may_have_lists_of_their_own(place, tile_rows):
    indices = random_lists((2, 4, 3), 12, 200, seed=3)
    options = {"policy": "union", "group": 64, "kv_heads": 2, "max_coverage": 1.0}
    group = 2
    check(place, indices, 200, **{**options, "group": group, "tile_rows": tile_rows})


@pytest.mark.parametrize("policy", POLICIES)
def test_expanded_axes_are_planned_once(place, policy):
    own = random_lists((1, 1, 3), 20, 90, seed=4)
    made = mp.TokenTiles.from_topk(
        own.to(place).expand(3, 4, 3, 20), 90, policy=policy, group=128, form="tokens"
    )
    assert made.tile_token_indices.stride()[:2] == (0, 0)
    with on_the_cpu():
        wanted = mp.TokenTiles.from_topk(
            own.expand(3, 4, 3, 20), 90, policy=policy, group=128, form="tokens"
        )
    same_tiles(made.cpu(), wanted)


def test_strides_of_any_kind(place):
    base = random_lists((1, 3, 2), 18, 64, seed=5)
    for view in (lambda x: x.transpose(1, 2), lambda x: x[..., 1::2], lambda x: x[..., 3:16]):
        made = mp.TokenTiles.from_topk(
            view(base.to(place)), 64, policy="union", form="tokens", group=64, max_coverage=1.0
        )
        with on_the_cpu():
            wanted = mp.TokenTiles.from_topk(
                view(base), 64, policy="union", form="tokens", group=64, max_coverage=1.0
            )
        same_tiles(made.cpu(), wanted)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (1, 1, 1)])
def test_lengths_and_global_keys(place, shape):
    """Lanes beyond a length hold anything; keys count over all batches."""
    local = torch.randint(0, 64, (2, 3, 4, 8), generator=generator(6))
    indices = local + torch.arange(2).view(2, 1, 1, 1) * 64
    lengths = torch.randint(0, 9, shape, generator=generator(7))
    indices = torch.where(torch.arange(8) < lengths[..., None], indices, 10**6)
    check(
        place, indices, 64, policy="union", group=64, base="global", lengths=lengths,
        max_coverage=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("sq", "sk", "topk"), [(0, 8, 3), (3, 0, 0), (3, 16, 0)])
def test_nothing_to_gather(place, sq, sk, topk):
    indices = torch.zeros(1, 2, sq, topk, dtype=torch.int32)
    for policy in POLICIES:
        check(place, indices, sk, policy=policy, group=64)


def block_lists(blocks, seqlen_k):
    """int32 [1, 1, rows, topk] of whole blocks of 128 keys, in an order of their own."""
    rows = []
    for row, own in enumerate(blocks):
        keys = torch.cat([torch.arange(128 * n, 128 * n + 128) for n in own])
        keys = torch.where(keys < seqlen_k, keys, -1)
        rows.append(keys[torch.randperm(len(keys), generator=generator(row))])
    return torch.stack(rows)[None, None].int()


@pytest.mark.parametrize("form", ["auto", "blocks", "tokens"])
@pytest.mark.parametrize("policy", ["uniform", "union"])
def test_whole_blocks(place, policy, form):
    """The ragged last block among them."""
    alike = block_lists([[0, 2], [2, 0], [1, 2], [1, 2]], 300)
    check(place, alike, 300, policy=policy, group=64, form=form, max_coverage=1.0)
    if policy == "union":
        differ = block_lists([[0, 2], [0, 1], [1, 2], [0, 2]], 300)
        check(place, differ, 300, policy=policy, group=64, form=form, max_coverage=1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_form_is_measured(place, policy):
    """As on the CPU; one key less and a list is one of tokens."""
    lists = block_lists([[0, 2], [0, 2]], 300)
    assert both(place, lists, 300, policy=policy, group=64, form="auto")[0].form == "blocks"
    check(place, lists, 300, policy=policy, group=64, form="auto")
    lists = torch.where(lists == 7, -1, lists)
    assert both(place, lists, 300, policy=policy, group=64, form="auto")[0].form == "tokens"
    check(place, lists, 300, policy=policy, group=64, form="auto")
    differ = block_lists([[0, 2], [1, 2]], 300)
    if policy == "representative":
        made, wanted = both(place, differ, 300, policy=policy, group=64, form="auto")
        assert made.form == wanted.form == "tokens"
        same_tiles(made.cpu(), wanted)


def test_partial_blocks_of_a_union_stay_exact(place):
    indices = random_lists((1, 1, 3), 30, 300, seed=8)
    made, wanted = both(place, indices, 300, policy="union", group=64, form="blocks")
    same_tiles(made.cpu(), wanted)
    with on_the_cpu():
        assert made.cpu().to_plan() == mp.from_topk(indices, 300, block_size=(2, 128))


# What is wrong.


def test_tiles_that_differ_are_empty_recorded_and_named(place):
    indices = torch.arange(5).expand(2, 1, 6, 5).clone().int()
    indices[1, 0, 4, 2] = 77
    made = mp.TokenTiles.from_topk(indices.to(place), 100, group=64, form="tokens")
    assert int(made.status) == 32
    assert made.valid_counts.tolist() == [[[5, 5, 5]], [[5, 5, 0]]]
    where = r"different keys in tile 2 of batch 1, head 0 \(queries 4 to 5\): got 6 keys in their"
    for act in (made.cpu, made.validate):
        with pytest.raises(PlanError, match=where):
            act()
    with on_the_cpu(), pytest.raises(PlanError, match=where):
        mp.TokenTiles.from_topk(indices, 100, group=64, form="tokens")


def test_a_union_that_covers_most_keys_is_recorded_and_named(place):
    indices = torch.stack([torch.arange(20), torch.arange(20, 40)])[None, None].int()
    made = mp.TokenTiles.from_topk(indices.to(place), 64, group=64, policy="union", form="tokens")
    assert int(made.status) == 64
    assert made.valid_counts.tolist() == [[[40]]]
    with pytest.raises(PlanError, match=r"covers most keys in tile 0 of batch 0, head 0 .*62% of"):
        made.cpu()


def test_bad_indices_are_dropped_and_recorded(place):
    indices = random_lists((1, 1, 4), 8, 64, seed=9)
    bad, cleaned = indices.clone(), indices.clone()
    bad[0, 0, 3, 5], cleaned[0, 0, 3, 5] = 64, -1
    options = {"policy": "union", "group": 64, "form": "tokens", "max_coverage": 1.0}
    made = mp.TokenTiles.from_topk(bad.to(place), 64, **options)
    with on_the_cpu():
        wanted = mp.TokenTiles.from_topk(cleaned, 64, **options)
    with pytest.raises(PlanError, match="index out of range in the tiles' status word"):
        made.cpu()
    made.status.zero_()
    same_tiles(made.cpu(), wanted)


def test_keys_beyond_the_capacity_are_dropped_and_recorded(place):
    indices = torch.arange(300)[None, None, None].int()
    made = mp.TokenTiles.from_topk(indices.to(place), 400, form="tokens", capacity=200)
    assert made.tile_token_indices.shape == (1, 1, 1, 256)
    assert made.valid_counts.tolist() == [[[256]]]
    assert int(made.status) == 2
    with pytest.raises(PlanError, match="more blocks than there is room for"):
        made.cpu()


def test_blocks_seen_in_part_are_dropped_and_recorded(place):
    lists = block_lists([[0], [1]], 300)
    made = mp.TokenTiles.from_topk(lists.to(place), 300, group=64, form="blocks")
    assert int(made.status) == 8
    with pytest.raises(PlanError, match=r"or a block is not whole in the tiles' status word \(8\)"):
        made.validate()


def test_what_is_not_known_is_refused(place):
    indices = torch.zeros(1, 1, 2, 3, dtype=torch.int32)
    made = mp.TokenTiles.from_topk(indices.to(place), 8, form="tokens")
    with pytest.raises(PlanTypeError, match=r"pairs are not counted in lost_pairs"):
        _ = made.lost_pairs
    with pytest.raises(PlanError, match="form is not known without waiting"):
        mp.TokenTiles.from_topk(indices.to(place), 8, form="blocks", policy="representative")


# Moves.


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["tokens", "blocks"])
def test_exact_tiles_move_there_and_back(place, form):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    lists = block_lists([[0, 2], [0, 1]], 300).expand(3, 2, 2, 256)
    tiles = mp.TokenTiles.from_topk(lists, 300, policy="union", form=form, group=64,
                                    max_coverage=1.0)  # fmt: skip
    there = tiles.to("cuda")
    assert there.device.type == "cuda"
    assert there.valid_counts.stride()[0] == tiles.valid_counts.stride()[0]
    assert there.to(there.device) is there
    same_tiles(there.cpu(), tiles)
    same_tiles(there.to("cpu"), tiles)
    assert tiles.cpu() is tiles


@pytest.mark.gpu
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("group", [1, 8, 128])
def test_large_lists(place, policy, group):
    """Several chunks of words, tiles of many tokens, several KV heads."""
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    sq, sk, topk = 300, 70_000, 1000
    indices = random_lists((2, 3, sq), topk, sk, seed=10)
    if policy == "uniform":
        step = 128 // group
        indices = indices[:, :, : -(-sq // step)].repeat_interleave(step, 2)[:, :, :sq]
        indices = indices.contiguous()
    check(place, indices, sk, policy=policy, group=group, max_coverage=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", POLICIES)
def test_triton_alone_gives_the_same(place, policy, monkeypatch):
    """Where CUDA C++ cannot be compiled."""
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    for name in COMPILERS:
        monkeypatch.setattr(f"{name}.runs", lambda tensor: False)  # noqa: ARG005
    indices = random_lists((2, 3, 1), 3000, 70_000, seed=10).expand(2, 3, 70, 3000)
    check(place, indices, 70_000, policy=policy, group=8, max_coverage=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["tokens", "blocks"])
def test_a_graph_replays_with_new_lists(place, form):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    options = {"policy": "union", "form": form, "group": 32, "max_coverage": 1.0}
    first, second = (random_lists((1, 2, 50), 60, 2000, seed=seed) for seed in (11, 12))
    given = first.to(place)
    mp.TokenTiles.from_topk(given, 2000, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = mp.TokenTiles.from_topk(given, 2000, **options)
    for indices in (second, first):
        given.copy_(indices)
        graph.replay()
        torch.cuda.synchronize()
        same_tiles(made.cpu(), mp.TokenTiles.from_topk(indices, 2000, **options))
