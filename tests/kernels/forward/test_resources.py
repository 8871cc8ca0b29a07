"""The compiled kernel spills no register."""

import pytest

from kernels_sm100.config import ForwardConfig
from tests.kernels.forward.cubin import resources

# Among them head dimensions that are no power of two, whose descriptors take more registers.
CONFIGS = [
    ForwardConfig(),
    ForwardConfig(dtype="float16", head_dim=96, head_dim_v=96),
    ForwardConfig(head_dim=48, head_dim_v=112),
    ForwardConfig(group=4, pack_gqa=True, stages=2),
    ForwardConfig(q_tiles=1, parts=1, group=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_nothing_is_spilled(forward_kernel, config):
    registers, stack = resources(forward_kernel(config).compiled.entry.cubin)

    assert stack == 0
    assert registers * 512 <= 65536


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
