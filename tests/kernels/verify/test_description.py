"""Every byte of the parameters is described once, as what it is."""

import struct

import numpy as np
import pytest

from kernels_sm100.emulator import GlobalMemory, Launch
from kernels_sm100.emulator.machine.tensor_map import TensorMap, encode
from kernels_sm100.errors import LaunchError
from kernels_sm100.verify import Captured, describe
from kernels_sm100.verify.description import parameter_types

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry other(.param .u32 n) { ret; }
.visible .entry k(
    .param .align 64 .b8 k_param_0[128],
    .param .align 8 .b8 k_param_1[24],
    .param .f32 k_param_2,
    .param .u64 k_param_3,
    .param .u32 k_param_4,
    .param .align 1 .b8 k_param_5[3]
)
{ ret; }
"""


@pytest.fixture
def captured():
    memory = GlobalMemory()
    x = memory.add("x", np.zeros((40, 64), np.float32))
    table = memory.add("table", np.array([3, -1, 7], np.int32))
    tensor_map = encode(
        TensorMap(
            address=x.address + 256, kind="f32", size=(64, 39), strides=(4, 256), box=(32, 8),
            swizzle=3,
        )
    )  # fmt: skip
    struct_bytes = struct.pack("<QiiQ", table.address, 5, -2, 12345)
    launch = Launch(
        kernel="k", ptx=PTX, grid=(2, 3, 1), block=(64, 1, 1), cluster=(2, 1, 1),
        shared_bytes=1000,
        parameters=(
            tensor_map, struct_bytes, struct.pack("<f", 0.5), x.address.to_bytes(8, "little"),
            struct.pack("<I", 9), b"\1\2\3",
        ),
    )  # fmt: skip
    return Captured.of(launch, memory)


def test_types_of_parameters():
    assert parameter_types(PTX, "k") == [None, None, "f32", "u64", "u32", None]
    assert parameter_types(PTX, "other") == ["u32"]
    assert parameter_types(PTX, "none") == []


def test_each_byte_is_described_once(captured):
    found = describe(captured)

    covered = [0] * 6
    sizes = {"u8": 1, "u32": 4, "f32": 4, "u64": 8}
    for record in found["arguments"]:
        covered[record["parameter"]] += sizes[record["type"]]
    for record in found["declarations"]:
        covered[record["parameter"]] += 8
    for record in found["tma_descriptors"]:
        covered[record["parameter"]] += 128
    assert covered == [128, 24, 4, 8, 4, 3]


def test_what_is_what(captured):
    found = describe(captured, branches={30: False, 20: True}, assumptions=["b", "a"])

    assert found["entry"] == "k"
    assert found["launch"] == {
        "grid_dim": [2, 3, 1], "block_dim": [64, 1, 1], "cluster_dim": [2, 1, 1],
        "dynamic_shared_bytes": 1000,
    }  # fmt: skip
    (tensor_map,) = found["tma_descriptors"]
    assert tensor_map == {
        "parameter": 0, "offset": 0, "object": "x", "element_type": "f32", "rank": 2,
        "base_byte_offset": 256, "global_shape": [64, 39], "box_shape": [32, 8],
        "coordinate_strides_bytes": [4, 256], "element_strides": [1, 1], "swizzle": "128B",
        "interleave": "none", "oob_fill": "zero",
    }  # fmt: skip
    assert [(r["parameter"], r["offset"], r["object"]) for r in found["declarations"]] == [
        (1, 0, "table"),
        (3, 0, "x"),
    ]
    assert [tuple(r.values()) for r in found["arguments"]] == [
        (1, 8, "u32", 5),
        (1, 12, "u32", 2**32 - 2),
        (1, 16, "u32", 12345),
        (1, 20, "u32", 0),
        (2, 0, "f32", 0.5),
        (4, 0, "u32", 9),
        (5, 0, "u8", 1),
        (5, 1, "u8", 2),
        (5, 2, "u8", 3),
    ]
    assert "shape_arrays" not in found
    assert found["branch_decisions"] == [
        {"line": 20, "taken": True},
        {"line": 30, "taken": False},
    ]
    assert found["assumptions"] == {"a": True, "b": True}


def test_tables_show_their_values(captured):
    found = describe(captured, tables={"table": 4})

    assert found["shape_arrays"] == [
        {"parameter": 1, "offset": 0, "element_type": "u32", "shapes": [[3, 2**32 - 1, 7]]}
    ]
    assert len(found["declarations"]) == 2  # and stays a pointer


def test_contents_are_those_of_the_launch():
    memory = GlobalMemory()
    values = np.array([1], np.int64)
    address = memory.add("table", values).address
    ptx = ".visible .entry k(.param .u64 p) { ret; }"
    launch = Launch(
        kernel="k", ptx=ptx, grid=(1, 1, 1), block=(32, 1, 1),
        parameters=(address.to_bytes(8, "little"),),
    )  # fmt: skip
    captured = Captured.of(launch, memory)
    values[0] = 2

    found = describe(captured, tables={"table": 8})
    assert found["shape_arrays"][0]["shapes"] == [[1]]
    assert found["shape_arrays"][0]["element_type"] == "s64"


def test_unknown_tables_and_inner_pointers_are_refused(captured):
    with pytest.raises(LaunchError, match=r"unknown table in describe: got \['t'\], wanted names"):
        describe(captured, tables={"t": 4})
    name, address, contents = captured.regions[0]
    moved = Captured(captured.launch, ((name, address - 16, bytes(16) + contents),))
    with pytest.raises(LaunchError, match="pointer into the middle of an allocation in parameter "):
        describe(moved)
