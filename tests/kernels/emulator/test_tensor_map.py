"""Tensor maps: fields that come back, and fields that are refused."""

import numpy as np
import pytest

from kernels_sm100.emulator.machine.tensor_map import TensorMap, decode, encode
from kernels_sm100.errors import (
    TensorMapError,
)


def test_descriptors_survive_the_round_trip():
    for kind in ("u8", "u16", "s64", "f16", "f64", "bf16"):
        size = {"u8": 1, "f64": 8, "s64": 8}.get(kind, 2)
        tensor = TensorMap(
            address=0x7F0012345670,
            kind=kind,
            size=(256, 4096, 3, 1 << 31),
            strides=(size, 4096, 1 << 36, 1 << 37),
            box=(32, 256, 1, 2),
            swizzle=0,
        )
        assert decode(encode(tensor)) == tensor


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        (2, 0x2 | 7 << 4, "impossible rank"),
        (2, 0x2 | 1 << 4 | 15 << 7, "impossible rank or element type"),
        (13, 1, "element strides"),
        (2, 0x2 | 1 << 4 | 7 << 7 | 1 << 11, "interleaved layout"),
        (0, 8, "misaligned tensor"),
        (13, 6 << 24, "inner box"),
    ],
)
def test_descriptors_that_are_refused(word, value, said):
    tensor = TensorMap(1 << 40, "f32", (64, 64), (4, 256), (32, 8), 0)
    words = np.frombuffer(encode(tensor), "<u4").copy()
    words[word] = value

    with pytest.raises(TensorMapError, match=said):
        decode(words.tobytes())


def test_a_swizzled_box_may_not_be_wider_than_its_span():
    with pytest.raises(TensorMapError, match="at most 64"):
        decode(encode(TensorMap(1 << 40, "f32", (64, 64), (4, 256), (32, 8), 2)))
