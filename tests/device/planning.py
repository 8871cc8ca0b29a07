"""Device plans beside those of the CPU, and inputs for both."""

import contextlib
from collections.abc import Iterator
from importlib import import_module

import torch
from torch import Tensor

import maskplan as mp
from maskplan.device import move

# Modules that ask whether a tensor is on a GPU.
DISPATCHERS = (
    "maskplan.build.topk",
    "maskplan.build.topk_arguments",
    "maskplan.build.block_mask",
    "maskplan.lower.token_lists",
    "maskplan.lower.topk_tensors",
)

# Modules that ask whether kernels in CUDA C++ run.
COMPILERS = tuple(
    f"maskplan.device.{name}"
    for name in ("topk", "topk_padded", "rank_reader", "lists", "padded", "token_tables")
)


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """Public calls take the CPU's path, where the interpreter has made tensors pass for a GPU's."""
    modules = [import_module(name) for name in DISPATCHERS]
    kept = [module.on_gpu for module in modules]
    for module in modules:
        module.on_gpu = move.on_gpu
    try:
        yield
    finally:
        for module, dispatch in zip(modules, kept, strict=True):
            module.on_gpu = dispatch


def generator(seed: int) -> torch.Generator:
    """Numbers that repeat, on the CPU."""
    return torch.Generator().manual_seed(seed)


def same_lists(made: object, wanted: object, *, tiles: bool = True) -> None:
    """Check two BlockSparseTensors to be equal, mask blocks by their bits."""
    for name in (
        "mask_block_cnt",
        "mask_block_idx",
        "full_block_cnt",
        "full_block_idx",
        "dq_write_order",
        "dq_write_order_full",
    ):
        one, other = getattr(made, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert torch.equal(one.cpu(), other), name
    assert made.block_size == wanted.block_size
    assert made.spt == wanted.spt
    if tiles:
        one, other = bits_of(made), bits_of(wanted)
        assert torch.equal(one, other)


def same_slots(made: object, wanted: object) -> None:
    """Check two BlockSparseTensors of a device to be equal, slot for slot, tile numbers too."""
    for name in (
        "mask_block_cnt",
        "mask_block_idx",
        "full_block_cnt",
        "full_block_idx",
        "mask_tile_id",
    ):
        assert torch.equal(getattr(made, name), getattr(wanted, name)), name
    assert made.tiles.shape == wanted.tiles.shape


def bits_of(lists: object) -> Tensor:
    """Bits of every mask block of padded lists, in their order: int32 [blocks, rows, words]."""
    ids = lists.mask_tile_id.cpu()
    width = torch.arange(ids.shape[-1])
    held = width < lists.mask_block_cnt.cpu()[..., None]
    assert bool((ids[held] >= 0).all())
    assert bool((ids[~held] == -1).all())
    return lists.tiles.cpu()[ids[held].long()]


def spare_is_minus_one(plan: mp.Plan) -> None:
    """Check that nothing but -1 lies beyond the lists."""
    used = int(plan.row_ptr[-1])
    assert bool((plan.col[used:] == -1).all())
    if plan.tile_id is not None:
        assert bool((plan.tile_id[used:] == -1).all())


def same_plan(made: mp.Plan, wanted: mp.Plan, *, turned: bool = False) -> None:
    """Check a device plan and its padded lists; on a GPU, or `turned`, its transpose and theirs.

    Triton's interpreter takes milliseconds a row, so there only some tests ask for all of it.
    """
    assert made.status is not None
    spare_is_minus_one(made)
    assert made.cpu() == wanted
    assert made.cpu().tiles.dtype == torch.int32
    same_lists(made.block_sparse_tensors(width="dense"), wanted.block_sparse_tensors(width="dense"))
    if not turned and not made.col.is_cuda:
        return
    across, wanted_across = made.transpose(), wanted.transpose()
    spare_is_minus_one(across)
    assert across.cpu() == wanted_across
    for spt in (False, True):
        options = {"width": "dense", "spt": spt}
        same_lists(
            across.block_sparse_tensors(**options), wanted_across.block_sparse_tensors(**options)
        )
    assert across.transpose().cpu() == wanted
