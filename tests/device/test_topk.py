"""`from_topk` on a device, judged by the CPU's, which loops judge in their turn."""

import pytest
import torch

import maskplan as mp
from maskplan.device import topk_padded
from maskplan.errors import PlanError
from tests.device.planning import (
    COMPILERS,
    generator,
    on_the_cpu,
    same_lists,
    same_plan,
    same_slots,
    spare_is_minus_one,
)

# SQ, SK, block size: ragged in Q, in K, in words of 32 keys; one token; one block; blocks of 1.
SHAPES = [
    (5, 300, (1, 128)),
    (3, 77, (1, 8)),
    (1, 1, (1, 1)),
    (9, 100, (4, 48)),
    (10, 12, (4, 1)),
    (6, 6, (64, 64)),
]


def lists_of(kind: str, rows: int, limit: int, topk: int, heads: int, seed: int) -> torch.Tensor:
    """int64 [1, heads, rows, topk] of indices below `limit`."""
    g = generator(seed)
    if kind == "random":
        return torch.randint(-1, limit, (1, heads, rows, topk), generator=g)
    if kind == "runs":  # whole stretches of keys, in any order
        start = torch.randint(0, limit, (1, heads, rows, -(-topk // 32)), generator=g) // 32 * 32
        keys = (start[..., None] + torch.arange(32)).flatten(3)[..., :topk]
        return torch.where(keys < limit, keys, -1)
    if kind == "all":
        return torch.stack([torch.randperm(max(limit, topk), generator=g)[:topk] % limit
                            for _ in range(heads * rows)]).view(1, heads, rows, topk)  # fmt: skip
    return torch.full((1, heads, rows, topk), -1)


def both(place, indices, seqlen_k, **options):
    """(device plan, plan of the CPU), and a look at the lists that are made without a plan."""
    made = mp.from_topk(indices.to(place), seqlen_k, **options)
    with on_the_cpu():
        wanted = mp.from_topk(indices, seqlen_k, **options)
    if topk_padded.runs(made.col):
        width = {"width": "dense"}
        lists = mp.BlockSparseTensors.from_topk(indices.to(place), seqlen_k, **options, **width)
        lists.validate()
        same_lists(lists, wanted.block_sparse_tensors(**width))
        same_slots(lists, made.block_sparse_tensors(**width))
    return made, wanted


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["random", "runs", "all", "none"])
def test_token_lists(place, shape, kind):
    sq, sk, size = shape
    dtype = torch.int64 if kind == "all" else torch.int32
    indices = lists_of(kind, sq, sk, min(sk, 96), 2, 1).to(dtype)

    same_plan(*both(place, indices, sk, block_size=size))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["random", "none"])
def test_block_lists_of_queries(place, shape, kind):
    sq, sk, size = shape
    blocks = -(-sk // size[1])
    indices = lists_of(kind, sq, blocks, 3, 1, 2)

    same_plan(*both(place, indices, sk, block_size=size, unit="block"))


@pytest.mark.parametrize("unit", ["token", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_lists_of_q_blocks(place, shape, unit):
    sq, sk, size = shape
    limit = sk if unit == "token" else -(-sk // size[1])
    indices = lists_of("random", -(-sq // size[0]), limit, 5, 2, 3)
    options = {"block_size": size, "unit": unit, "rows": "block", "seqlen_q": sq}

    same_plan(*both(place, indices, sk, **options))


@pytest.mark.parametrize("unit", ["token", "block"])
def test_global_indices_of_three_batches(place, unit):
    sk, size = 100, (4, 16)
    limit = sk if unit == "token" else 7
    local = torch.randint(0, limit, (3, 2, 10, 6), generator=generator(4))
    indices = local + torch.arange(3).view(3, 1, 1, 1) * limit
    indices[..., 2] = -1
    made, wanted = both(place, indices, sk, block_size=size, unit=unit, base="global")

    same_plan(made, wanted)


@pytest.mark.parametrize("shape", [(2, 3, 9), (1, 3, 1), (1, 1, 1)])
def test_lanes_beyond_a_length_are_ignored(place, shape):
    indices = torch.randint(0, 64, (2, 3, 9, 8), generator=generator(5))
    lengths = torch.randint(0, 9, shape, generator=generator(6))
    made = mp.from_topk(indices.to(place), 64, block_size=(4, 16), lengths=lengths.to(place))
    with on_the_cpu():
        wanted = mp.from_topk(indices, 64, block_size=(4, 16), lengths=lengths)

    same_plan(made, wanted)


def test_expanded_heads_are_planned_once(place):
    shared = torch.randint(0, 64, (1, 1, 9, 8), generator=generator(7))
    made = mp.from_topk(shared.to(place).expand(2, 4, 9, 8), 64, block_size=(4, 16))
    with on_the_cpu():
        wanted = mp.from_topk(shared.expand(2, 4, 9, 8), 64, block_size=(4, 16))

    assert made.num_patterns == 1
    assert made.pattern_id.shape == (2, 4)
    same_plan(made, wanted, turned=True)


@pytest.mark.parametrize(
    ("target", "size", "packed"),
    [
        ("sm90", (64, 16), (64, 16)),
        (mp.target("sm100", head_dim=128, group=16, pack_gqa=True), (16, 128), (256, 128)),
    ],
)
def test_lists_for_a_target(place, target, size, packed):
    indices = torch.randint(-1, 200, (1, 2, 20, 9), generator=generator(15))
    options = {"target": target, "block_size": size, "width": "dense"}
    made = mp.BlockSparseTensors.from_topk(indices.to(place), 200, **options)
    with on_the_cpu():
        wanted = mp.BlockSparseTensors.from_topk(indices, 200, **options)

    assert made.block_size == packed
    same_lists(made, wanted)


@pytest.mark.parametrize("view", ["transposed", "sliced", "strided lanes", "offset"])
def test_strides_of_any_kind(place, view):
    base = torch.randint(0, 64, (1, 9, 2, 18), generator=generator(8)).to(torch.int32)
    indices = {
        "transposed": base.transpose(1, 2),
        "sliced": base[..., :11].transpose(1, 2),
        "strided lanes": base[..., ::2].transpose(1, 2),
        "offset": base[..., 3:16].transpose(1, 2),
    }[view]
    made = mp.from_topk(base.to(place).as_strided(indices.shape, indices.stride(),
                        indices.storage_offset()), 64, block_size=(4, 16))  # fmt: skip
    with on_the_cpu():
        wanted = mp.from_topk(indices, 64, block_size=(4, 16))

    same_plan(made, wanted)


@pytest.mark.parametrize(("sq", "sk", "topk"), [(0, 8, 3), (8, 0, 0), (8, 16, 0), (0, 0, 0)])
def test_nothing_to_plan(place, sq, sk, topk):
    indices = torch.zeros(1, 2, sq, topk, dtype=torch.int32)
    made, wanted = both(place, indices, sk, block_size=(4, 16))

    assert made.cpu() == wanted
    assert made.transpose().cpu() == wanted.transpose()


@pytest.mark.parametrize("bad", [64, -2, 2**31 - 1, -(2**31)])
def test_bad_indices_are_dropped_and_recorded(place, bad):
    indices = torch.randint(0, 64, (1, 1, 6, 8), generator=generator(9)).to(torch.int32)
    cleaned = indices.clone()
    indices[0, 0, 3, 5], cleaned[0, 0, 3, 5] = bad, -1
    made = mp.from_topk(indices.to(place), 64, block_size=(2, 16))
    with on_the_cpu():
        wanted = mp.from_topk(cleaned, 64, block_size=(2, 16))

    with pytest.raises(PlanError, match=r"index out of range in the plan's status word \(1\)"):
        made.validate()
    with pytest.raises(PlanError, match="index out of range"):
        made.cpu()
    made.status.zero_()
    same_plan(made, wanted)


def test_indices_of_another_batch_are_dropped_and_recorded(place):
    indices = torch.tensor([3, 9]).view(2, 1, 1, 1)  # of 8 keys: batch 1 holds 8 to 15
    made = mp.from_topk(indices.to(place), 8, block_size=(1, 4), base="global")
    assert int(made.status) == 0
    made = mp.from_topk(indices.flip(0).to(place), 8, block_size=(1, 4), base="global")
    assert int(made.status) == 1
    assert int(made.row_ptr[-1]) == 0


def test_lengths_out_of_range_are_cut_and_recorded(place):
    indices = torch.arange(8).view(1, 1, 2, 4).to(place)
    made = mp.from_topk(indices, 8, block_size=(1, 2),
                        lengths=torch.tensor([[[-1, 9]]], device=place))  # fmt: skip

    assert int(made.status) == 16
    assert made.row_ptr.tolist() == [0, 0, 2]
    with pytest.raises(PlanError, match="length out of range"):
        made.validate()


def test_blocks_beyond_the_capacity_are_dropped_and_recorded(place):
    indices = torch.arange(16).expand(1, 1, 3, 16).contiguous().to(place)
    made = mp.from_topk(indices, 16, block_size=(1, 4), capacity=6)

    assert made.row_ptr.tolist() == [0, 4, 6, 6]
    assert made.col.tolist() == [0, 1, 2, 3, 0, 1]
    assert int(made.status) == 2
    with pytest.raises(PlanError, match=r"more blocks than there is room for .* raise capacity="):
        made.cpu()


@pytest.mark.parametrize("size", [(1, 16), (4, 16), (4, 32)])
def test_whole_blocks_take_no_tiles(place, size):
    blocks = torch.tensor([[0, 3], [1, 2], [-1, 1]])
    keys = blocks[..., None] * 32 + torch.arange(32)
    keys = torch.where(blocks[..., None] < 0, -1, keys).flatten(1).clamp(min=-1)
    keys = torch.where(keys < 110, keys, -1)  # the last block is ragged
    indices = keys.repeat_interleave(4, 0)[None, None, :, :]
    made, wanted = both(place, indices, 110, block_size=size, whole=True)

    assert made.tile_id is None
    assert made.num_tiles == 0
    same_plan(made, wanted)


def test_partial_blocks_called_whole_are_dropped_and_recorded(place):
    indices = torch.tensor([0, 1, 2, 3, 4, 5]).view(1, 1, 1, 6)
    made = mp.from_topk(indices.to(place), 8, block_size=(1, 4), whole=True)

    assert int(made.status) == 8
    assert made.col[: int(made.row_ptr[-1])].tolist() == [0]
    with pytest.raises(PlanError, match=r"a block is not whole .* leave out whole=True"):
        made.validate()
    with (
        on_the_cpu(),
        pytest.raises(PlanError, match=r"block is not whole in pattern 0, Q block 0, KV block 1"),
    ):
        mp.from_topk(indices, 8, block_size=(1, 4), whole=True)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 128), (128, 128), (64, 96)])
@pytest.mark.parametrize("aligned", [True, False])
def test_large_lists(place, size, aligned):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    sq, sk, topk = 517, 33_000, 4096
    g = generator(10)
    if aligned:
        blocks = torch.rand(1, 2, sq, -(-sk // 128), generator=g).argsort(-1)[..., : topk // 128]
        indices = (blocks[..., None] * 128 + torch.arange(128)).flatten(3)
        indices = torch.where(indices < sk, indices, -1)
    else:
        indices = torch.randint(-1, sk, (1, 2, sq, topk), generator=g)

    same_plan(*both(place, indices.to(torch.int32), sk, block_size=size))


@pytest.mark.gpu
@pytest.mark.parametrize("read", ["cuda", "triton"])
def test_both_readers_agree_on_more_keys_than_shared_memory_holds(place, read, monkeypatch):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    for name in COMPILERS:
        monkeypatch.setattr(f"{name}.runs", lambda tensor: read == "cuda")  # noqa: ARG005
    sk = 3_000_000
    indices = torch.randint(-1, sk, (1, 1, 40, 5000), generator=generator(11), dtype=torch.int32)
    indices[0, 0, 7, :4096] = torch.arange(4096) + sk - 4096
    made = mp.from_topk(indices.to(place), sk, block_size=(1, 128))

    spare_is_minus_one(made)
    assert made.cpu() == mp.from_topk(indices, sk, block_size=(1, 128))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 128), (48, 64)])
def test_triton_alone_gives_the_same(place, size, monkeypatch):
    """Where CUDA C++ cannot be compiled; in few lines and in many."""
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    for name in COMPILERS:
        monkeypatch.setattr(f"{name}.runs", lambda tensor: False)  # noqa: ARG005
    for sq in (300, 5000):
        indices = torch.randint(-1, 9000, (1, 2, sq, 100), generator=generator(13))
        same_plan(*both(place, indices, 9000, block_size=size))


@pytest.mark.gpu
@pytest.mark.parametrize("topk", [100, 5000])
def test_many_lines(place, topk):
    """More than whose counts a CTA adds up; words with few bits and with many."""
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    indices = torch.randint(-1, 9000, (1, 2, 5000, topk), generator=generator(14))
    same_plan(*both(place, indices, 9000, block_size=(1, 16)))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 64), (16, 128)])
def test_a_graph_replays_with_new_indices(place, size):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    g = generator(12)
    first, second = (
        torch.randint(-1, 4096, (1, 2, 100, 300), generator=g, dtype=torch.int32) for _ in range(2)
    )
    given = first.to(place)

    def work():
        plan = mp.from_topk(given, 4096, block_size=size)
        turned = plan.transpose()
        return (
            plan,
            plan.block_sparse_tensors(width="dense"),
            turned,
            turned.block_sparse_tensors(width="dense", spt=True),
            mp.BlockSparseTensors.from_topk(given, 4096, block_size=size, width="dense"),
        )

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan, lists, turned, turned_lists, alone = work()
    for indices in (second, first):
        given.copy_(indices)
        graph.replay()
        torch.cuda.synchronize()
        wanted = mp.from_topk(indices, 4096, block_size=size)
        assert plan.cpu() == wanted
        assert turned.cpu() == wanted.transpose()
        for made in (lists, alone):
            same_lists(made, wanted.block_sparse_tensors(width="dense"))
        options = {"width": "dense", "spt": True}
        same_lists(turned_lists, wanted.transpose().block_sparse_tensors(**options))
