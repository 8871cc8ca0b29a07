"""Kernels in CUDA C++ on a GPU that is played on the CPU, judged by the CPU's plans.

What they share with the other tests is everything but the size: a fibre for each thread is slow.
"""

import os
import shutil

import pytest
import torch

import maskplan as mp
from maskplan.errors import PlanError
from tests.device.host_gpu import HostKernel
from tests.device.planning import COMPILERS, generator, on_the_cpu, same_plan
from tests.device.test_token_tiles import POLICIES, check
from tests.device.test_topk import both

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests run them on the GPU"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs the interpreter"),
]


@pytest.fixture(autouse=True)
def played(place, monkeypatch):  # noqa: ARG001 - the place makes the interpreter work
    """Kernels run on the CPU."""
    for name in COMPILERS:
        monkeypatch.setattr(f"{name}.runs", lambda tensor: True)  # noqa: ARG005
    for name in ("list_reader", "rank_reader", "list_writer"):
        monkeypatch.setattr(f"maskplan.device.{name}.CudaKernel", HostKernel)
    for name in ("topk", "rank_reader", "list_writer"):
        monkeypatch.setattr(f"maskplan.device.{name}.place_of", lambda tensor: (0, 0))  # noqa: ARG005
    monkeypatch.setattr("maskplan.device.list_reader.shared_memory", lambda device: 227 << 10)  # noqa: ARG005
    yield
    from maskplan.device import list_reader, list_writer, rank_reader

    for cached in (list_reader.reader, list_writer._kernel, rank_reader._kernel):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("sq", "sk", "topk", "size", "dtype"),
    [
        (9, 1500, 90, (1, 128), torch.int32),  # words of few bits
        (3, 1200, 3000, (1, 1), torch.int64),  # and of many; 38 words a line
        (10, 200, 70, (4, 48), torch.int32),  # words that a block does not fill; ragged
        (5, 300, 9, (64, 64), torch.int64),
    ],
)
def test_token_lists(place, sq, sk, topk, size, dtype):
    indices = torch.randint(-1, sk, (1, 2, sq, topk), generator=generator(1)).to(dtype)
    indices[0, 0, 1, : topk // 2] = torch.arange(topk // 2) % sk  # a run
    same_plan(*both(place, indices, sk, block_size=size), turned=True)


@pytest.mark.parametrize("whole", [False, True])
def test_whole_blocks_and_a_capacity(place, whole):
    blocks = torch.tensor([[0, 3, 2], [1, 2, 4], [4, 1, 0]])
    keys = (blocks[..., None] * 32 + torch.arange(32)).flatten(1)
    indices = torch.where(keys < 140, keys, -1)[None, None]
    same_plan(*both(place, indices, 140, block_size=(1, 32), whole=whole), turned=True)
    made = mp.from_topk(indices, 140, block_size=(1, 32), whole=whole, capacity=5)
    assert made.row_ptr.tolist() == [0, 3, 5, 5]
    assert made.col.tolist() == [0, 2, 3, 1, 2]
    assert int(made.status) == 2
    assert mp.from_topk(indices, 140, block_size=(1, 32), whole=whole).block_sparse_tensors(
        width=2
    ).full_block_idx.tolist() == [[[[0, 2], [1, 2], [0, 1]]]]


def test_lists_without_a_plan_that_do_not_fit(place):
    """A line of two CTAs' warps, with more mask and more full blocks than slots."""
    keys = torch.cat([torch.arange(0, 1400, 7), torch.arange(1600, 1648)])
    indices = torch.stack([keys, keys.flip(0), torch.full_like(keys, -1)])[None, None].to(place)
    make = mp.BlockSparseTensors.from_topk
    lists = make(indices.expand(2, 3, -1, -1), 1650, block_size=(1, 1), width=100)
    assert int(lists.status) == 2
    assert lists.full_block_cnt.tolist() == [[[100, 100, 0]] * 3] * 2
    assert torch.equal(lists.full_block_idx[1, 2, 1], torch.arange(0, 700, 7).int())
    lists = make(indices, 1650, block_size=(1, 16), width=60)
    assert int(lists.status) == 2
    assert lists.mask_block_cnt.tolist() == [[[60, 60, 0]]]
    assert torch.equal(lists.mask_block_idx[0, 0, 0], torch.arange(60).int())
    assert torch.equal(lists.mask_tile_id[0, 0, 1], torch.arange(60).int() + 104)
    assert lists.full_block_idx[0, 0, :, :4].tolist() == [[100, 101, 102, -1]] * 2 + [[-1] * 4]
    assert bool((lists.full_block_idx[0, 0, :, 3:] == -1).all())
    with pytest.raises(PlanError, match=r"more blocks than there is room for in the lists' status"):
        lists.validate()


def test_bad_indices_of_any_kind(place):
    indices = torch.randint(0, 64, (2, 1, 3, 40), generator=generator(2)).to(torch.int32)
    cleaned = indices.clone()
    for slot, bad in enumerate((64, -2, 2**31 - 1, -(2**31))):
        indices[0, 0, 1, slot], cleaned[0, 0, 1, slot] = bad, -1
    made = mp.from_topk(indices.to(place), 64, block_size=(1, 16))
    assert int(made.status) == 1
    made.status.zero_()
    with on_the_cpu():
        wanted = mp.from_topk(cleaned, 64, block_size=(1, 16))
    same_plan(made, wanted)


@pytest.mark.parametrize(("sk", "size"), [(200, (4, 16)), (1060, (2, 1))])
def test_batches_that_share_lists_share_tiles(place, sk, size):
    """A line's tiles are those of its pattern, also where four warps share a line."""
    own = torch.randint(-1, sk, (1, 2, 6, 30), generator=generator(8))
    made, wanted = both(place, own.expand(3, -1, -1, -1), sk, block_size=size)
    assert made.num_patterns == 2
    same_plan(made, wanted)


def test_global_blocks_and_lengths(place):
    local = torch.randint(0, 7, (3, 2, 10, 6), generator=generator(3))
    indices = local + torch.arange(3).view(3, 1, 1, 1) * 7
    lengths = torch.randint(0, 7, (3, 2, 10), generator=generator(4))
    made, wanted = both(
        place, indices, 100, block_size=(4, 16), unit="block", base="global", lengths=lengths
    )
    same_plan(made, wanted)


def test_more_lines_than_a_cta_adds_up(place):
    indices = torch.randint(-1, 40, (1, 1, 4200, 2), generator=generator(5))
    made, wanted = both(place, indices, 40, block_size=(1, 16))
    assert made.cpu() == wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_token_tiles(place, policy):
    """Two chunks of words."""
    keys = torch.randperm(20_000, generator=generator(6))[:400]
    rows = [keys, keys.flip(0), torch.arange(400) + 16_200, torch.arange(400) + 16_200, keys]
    if policy != "uniform":
        rows[1] = torch.randint(-1, 20_000, (400,), generator=generator(7))
    indices = torch.stack(rows)[None, None].int()
    check(place, indices, 20_000, policy=policy, group=64, max_coverage=1.0)
