"""The kernel of `ranks.cu`: its arguments, and its compilation."""

import ctypes
from functools import cache
from pathlib import Path

import torch

from maskplan.device.nvrtc import CudaKernel, place_of, runs
from maskplan.plan import BlockLists

_SOURCE = Path(__file__).with_name("ranks.cu")
_MOST_WORDS = 6144  # of a line; with those of full blocks 48 KiB, which need no asking for


class Lines(ctypes.Structure):
    """Lists and where their bits go; `Lines` there."""

    _fields_ = [
        *((name, ctypes.c_void_p)
          for name in ("row_ptr", "col", "tile_id", "listed", "full", "before")),
        ("words", ctypes.c_int),
    ]  # fmt: skip


@cache
def _kernel(full: bool, device: int) -> CudaKernel:
    return CudaKernel(_SOURCE, "ranks", (f"FULL={int(full)}",), device, 48 << 10)


def reads(plan: BlockLists, words: int) -> bool:
    """Whether lists of a plan are read by it: where kernels run, and their bits fit."""
    return words <= _MOST_WORDS and runs(plan.col)


def read_ranks(
    plan: BlockLists, listed: torch.Tensor, full: torch.Tensor | None, before: torch.Tensor
) -> None:
    """Fill `listed`, `before` and, if given, `full`, int32 [lines, words] each."""
    lines, words = listed.shape
    device, stream = place_of(listed)
    tile_id = 0 if plan.tile_id is None else plan.tile_id.data_ptr()
    given = Lines(
        plan.row_ptr.data_ptr(), plan.col.data_ptr(), tile_id, listed.data_ptr(),
        0 if full is None else full.data_ptr(), before.data_ptr(), words,
    )  # fmt: skip
    threads = 64 if words <= 32 else 128 if words <= 256 else 256
    kernel = _kernel(full is not None, device)
    kernel(lines, threads, words * (1 + (full is not None)) * 4, stream, (given,))
