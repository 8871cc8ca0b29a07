"""The compiled kernel spills no register."""

import pytest

from kernels_sm100.config import ForwardConfig
from kernels_sm100.forward_host import FORWARD_SOURCES, build_forward
from kernels_sm100.launch import compile_kernel
from kernels_sm100.modes import OuterStoreMode
from tests.kernels.forward.cubin import resources

# Among them head dimensions that are no power of two, whose descriptors take more registers.
CONFIGS = [
    ForwardConfig(),
    ForwardConfig(dtype="float16", head_dim=96, head_dim_v=96),
    ForwardConfig(head_dim=48, head_dim_v=112),
    ForwardConfig(dtype="float16", group=4, pack_gqa=True, q_tiles=1, parts=1),
    ForwardConfig(q_tiles=1, parts=1, group=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_nothing_is_spilled(forward_kernel, config):
    registers, stack = resources(forward_kernel(config).compiled.entry.cubin)

    assert stack == 0
    assert registers * 512 <= 65536


@pytest.mark.parametrize("mode", [OuterStoreMode.STG, OuterStoreMode.TMA_1D])
def test_stores_row_by_row_spill_nothing(forward_kernel, mode):
    assert resources(forward_kernel(ForwardConfig(outer_store=mode)).compiled.entry.cubin)[1] == 0


def test_it_compiles_for_the_other_sm100(compile_cache):
    """B300's sm_103a, whose code does not run on B200."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    made = compile_kernel(
        build_forward, ForwardConfig(), arch="sm_103a", sources=FORWARD_SOURCES, cache=compile_cache
    )

    assert ".target sm_103a" in made.ptx
    assert resources(made.entry.cubin)[1] == 0


def test_a_frame_is_seen_in_a_cubin():
    # One attribute of each kind for symbol 7: 128 registers, a frame of 24 bytes.
    info = bytes([4, 0x2F, 8, 0, 7, 0, 0, 0, 128, 0, 0, 0, 4, 0x11, 8, 0, 7, 0, 0, 0, 24, 0, 0, 0])
    names = b"\0.nv.info\0.names\0"
    header = 64
    sections = header + len(info) + len(names)

    def section(name, offset, size):
        words = (name, 1, 0, 0, offset, size)
        body = b"".join(
            value.to_bytes(width, "little")
            for value, width in zip(words, (4, 4, 8, 8, 8, 8), strict=True)
        )
        return body.ljust(64, b"\0")

    elf = bytearray(b"\x7fELF".ljust(header, b"\0"))
    elf[40:48] = sections.to_bytes(8, "little")
    elf[58:64] = b"".join(n.to_bytes(2, "little") for n in (64, 2, 1))
    elf += info + names
    elf += section(1, header, len(info)) + section(10, header + len(info), len(names))

    assert resources(bytes(elf)) == (128, 24)
