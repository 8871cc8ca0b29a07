"""The kernel of `read_lists.cu`: its arguments, and its compilation."""

import ctypes
from functools import cache
from pathlib import Path

from maskplan.device.nvrtc import CudaKernel, shared_memory

_SOURCE = Path(__file__).with_name("read_lists.cu")
_MOST_SHARED = 200 << 10  # two CTAs of most lists fit an SM; enough for 1.6M keys in one pass
SPARE = 32 * 4  # bytes behind the bits: a word a lane


class GivenLists(ctypes.Structure):
    """Lists and how they are read; `Lists` there."""

    _fields_ = [
        ("indices", ctypes.c_void_p),
        ("strides", ctypes.c_longlong * 4),
        ("lengths", ctypes.c_void_p),
        ("length_strides", ctypes.c_longlong * 3),
        ("heads", ctypes.c_int),
        ("lists", ctypes.c_int),
        ("topk", ctypes.c_int),
        ("limit", ctypes.c_int),
        ("keys", ctypes.c_int),
        ("batch_origin", ctypes.c_longlong),
        ("blocks", ctypes.c_int),
        ("blocks_a_pass", ctypes.c_int),
        ("lists_a_line", ctypes.c_int),
        ("lines", ctypes.c_int),
        ("queries", ctypes.c_int),
        ("tile_rows", ctypes.c_int),
        ("whole", ctypes.c_int),
    ]


class FoundBits(ctypes.Structure):
    """Where what is found goes; `Found` there."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("bits", "listed", "full", "counts", "status")]


@cache
def reader(
    is_long: bool, bk: int, words: int, classify: bool, device: int
) -> tuple[CudaKernel, int]:
    """(the compiled kernel, bytes of shared memory for its bits)."""
    room = min(_MOST_SHARED, shared_memory(device) - 2048)
    defines = (
        f"INDEX={'long' if is_long else 'int'}",
        f"BLOCK={bk}",
        f"WORDS={words}",
        f"CLASSIFY={int(classify)}",
    )
    return CudaKernel(_SOURCE, "read_lists", defines, device, room + SPARE), room
