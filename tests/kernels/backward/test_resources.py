"""No backward kernel spills a register."""

import pytest

from kernels_sm100.backward_config import BackwardConfig
from tests.kernels.backward.test_loopq import DOWN, PACKED, SPLIT
from tests.kernels.backward.test_values import K_64, K_128, Q_64, Q_128, Q_TURNS
from tests.kernels.forward.cubin import resources

THREADS, REGISTERS = 512, 65536
# D 128 with everything that takes registers.
FULL = BackwardConfig(group=8, parts=4, head_split=2, descending=True)


@pytest.mark.parametrize(
    "config", [Q_128, Q_64, Q_TURNS, DOWN, PACKED, SPLIT, FULL, K_128, K_64], ids=str
)
def test_nothing_is_spilled(backward_kernel, config):
    registers, stack = resources(backward_kernel(config).compiled.entry.cubin)

    assert stack == 0
    assert registers * THREADS <= REGISTERS
